"""A stage is a value: an isolated command with everything it may see. An engine runs it and knows no policy."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from typing import Literal, Protocol

import msgspec

from .canonical import digest_of

Trust = Literal["trusted", "base", "candidate"]
"""Whose code runs: ours, base's, or the patch's."""


class Blob(msgspec.Struct, frozen=True):
    """A file of a tree: git mode (0o100644, 0o100755, 0o120000) and either an object id or the bytes themselves."""

    mode: int
    oid: str = ""
    data: bytes | None = None


class Tree:
    """A folder as a value: path (bytes, ``/`` between parts) to Blob. Immutable; two equal trees have one digest."""

    def __init__(self, files: Mapping[bytes, Blob]) -> None:
        self.files: dict[bytes, Blob] = dict(files)

    @functools.cached_property
    def digest(self) -> str:
        """sha256 over the sorted (path, mode, content id) of every file."""
        total = hashlib.sha256()
        for path in sorted(self.files):
            blob = self.files[path]
            content = blob.oid if blob.data is None else "data:" + hashlib.sha256(blob.data).hexdigest()
            total.update(b"%d:%b %o %b\n" % (len(path), path, blob.mode, content.encode()))
        return "sha256:" + total.hexdigest()

    def with_files(self, files: Mapping[bytes, Blob]) -> Tree:
        """This tree with ``files`` laid over it."""
        return Tree({**self.files, **files})


class Mount(msgspec.Struct, frozen=True):
    """A tree at an absolute path inside the sandbox; always read-only."""

    target: str
    tree: Tree


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage may use. Each has a name of its own in Outcome.end. Seconds, bytes and counts."""

    wall: int = 900
    memory: int = 4 << 30
    processes: int = 256
    file: int = 256 << 20
    disk: int = 2 << 30
    output: int = 16 << 20
    report: int = 64 << 20


class Runtime(msgspec.Struct, frozen=True):
    """What the command runs on: ``gate`` (our own interpreter and code), ``environment`` (a virtual environment) or ``image``.

    ``ref`` is its digest; the engine knows where the bytes are. In argv and env, ``{python}`` stands for its interpreter.
    """

    kind: Literal["gate", "environment", "image"]
    ref: str


class Place(msgspec.Struct, frozen=True):
    """Where a runtime lives on this host: its interpreter as named inside, read-only binds (host path, target inside), and

    ``rootfs``, a folder that replaces the host's /usr ("" takes the host's). ``path`` goes first on PATH.
    """

    python: str
    binds: tuple[tuple[str, str], ...] = ()
    rootfs: str = ""
    path: str = ""


FIXED_ENV = {
    "HOME": "/tmp/home",
    "LANG": "C.UTF-8",
    "PATH": "/usr/bin:/bin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": "1700000000",
    "TMPDIR": "/tmp",
    "TZ": "UTC",
}
"""The environment of every command, before the stage's own."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """An isolated command as a value.

    The working folder is ``cwd``. The command gets the nonce and a newline, then ``stdin``, on descriptor 0, and reports on
    descriptor 3. It may write to /tmp (TMPDIR; HOME is /tmp/home), to each of ``scratch`` (absolute paths, empty, writable)
    and, when ``outputs`` names files, to /out; nothing else. ``reusable``: an engine may answer from an earlier run of the
    same digest, after it has verified the entry.
    """

    name: str
    trust: Trust
    runtime: Runtime
    mounts: tuple[Mount, ...]
    argv: tuple[str, ...]
    cwd: str = "/tmp"
    env: tuple[tuple[str, str], ...] = ()
    stdin: bytes = b""
    limits: Limits = Limits()
    scratch: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    reusable: bool = False

    @property
    def digest(self) -> str:
        """Keys reuse: over everything the stage reads, not over its name."""
        return digest_of(
            {
                "trust": self.trust,
                "runtime": self.runtime,
                "mounts": sorted([mount.target, mount.tree.digest] for mount in self.mounts),
                "argv": self.argv,
                "cwd": self.cwd,
                "env": sorted(self.env),
                "stdin": hashlib.sha256(self.stdin).hexdigest(),
                "limits": self.limits,
                "scratch": sorted(self.scratch),
                "outputs": sorted(self.outputs),
            }
        )


class End(msgspec.Struct, frozen=True):
    """How the command ended, seen from outside it.

    ``exited`` with a code, ``signalled`` with a signal number, ``over`` with the name of the limit (a field of Limits),
    ``setup`` when the launcher could not start it (code is an errno).
    """

    how: Literal["exited", "signalled", "over", "setup"]
    code: int = 0
    limit: str = ""


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine vouches for, in every record, so that a policy can demand it."""

    name: str
    version: str = ""
    isolation: str = ""
    network: str = "loopback"
    uid: str = ""
    image: str = ""
    cache: Literal["none", "reused"] = "none"
    limits: str = ""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came back from a stage. ``report`` is testimony when candidate code ran; ``end`` and ``nonce`` are the launcher's.

    ``started`` and ``finished`` are unix microseconds; ``first_process`` is when the sandbox's first process started.
    """

    end: End
    nonce: str
    report: bytes = b""
    stdout: bytes = b""
    stderr: bytes = b""
    outputs: dict[str, bytes] = {}
    started: int = 0
    finished: int = 0
    first_process: int = 0
    facts: Facts = Facts(name="")


class Engine(Protocol):
    """Runs stages. ``async with`` opens and closes it; leaving it leaves no process and no scratch behind."""

    async def open(self) -> Facts:
        """Ready to run, or EngineUnavailable."""

    async def run(self, stage: Stage, nonce: str) -> Outcome:
        """The stage's outcome. Raises EngineUnavailable only when the engine failed, never when the command did."""

    async def close(self) -> None:
        """Nothing of the engine's is left running."""
