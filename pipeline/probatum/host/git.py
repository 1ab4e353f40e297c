"""Only ``ls-remote`` and ``fetch`` touch the workspace; everything else happens in a private bare cache.

The workspace may belong to the patch's author, its ``.git`` included. So git runs with an environment and a
configuration of ours alone, and even the serving side (``upload-pack``, which reads the workspace's configuration) gets
ours on its command line, where it wins. Objects are checked as they arrive, and what is judged is commits, never files.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..errors import EngineUnavailable, UsageError

OLDEST = (2, 39, 4)
"""From here on upload-pack does not fetch missing objects by itself (CVE-2024-32004), which runs configured commands."""

WAIT = 600.0
"""Seconds that one git command may take: a named pipe in a hostile ``.git`` would hold it for ever."""

HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

SERVING = (
    "core.fsmonitor=false",
    "core.hooksPath=/dev/null",
    "core.alternateRefsCommand=false",
    "core.sshCommand=false",
    "core.gitProxy=false",
    "protocol.allow=never",
    "uploadpack.allowAnySHA1InWant=true",
    "uploadpack.allowFilter=false",
    "transfer.hideRefs=!refs",
    "pack.threads=1",
)
"""What the serving side is told over the workspace's own configuration."""


class Ended(msgspec.Struct, frozen=True):
    """How one git command ended."""

    code: int
    out: bytes
    err: str

    @property
    def reason(self) -> str:
        """The first thing that git gives as a cause, without its prefixes."""
        lines = [line.strip(" \0") for line in self.err.splitlines() if line.strip()]
        told = [line for line in lines if re.match(r"(remote: )?(fatal|error):", line) and "died with" not in line] or lines
        return re.sub(r"^(remote: )?(fatal|error): ", "", told[0]) if told else f"exit {self.code}"


def disk_full(ended: Ended, where: Path) -> None:
    """Raises EngineUnavailable when that is why git ended."""
    if "No space left" in ended.err or "Disk quota exceeded" in ended.err:
        raise EngineUnavailable(str(where), "no space left for the cache of git objects", "make room, or set PROBATUM_CACHE")


class Git:
    """Git with our configuration and nobody else's. ``home`` is a private folder."""

    def __init__(self, home: Path) -> None:
        self.home = home
        private_folder(home)
        settings = home / "config"
        write_if_changed(settings, b"[safe]\n\tdirectory = *\n")
        path = os.pathsep.join(p for p in os.environ.get("PATH", os.defpath).split(os.pathsep) if os.path.isabs(p))
        found = shutil.which("git", path=path)
        if found is None:
            raise UsageError("git", "not found on PATH", f"install git {version_text(OLDEST)} or later")
        self.program = found
        self.env = {
            "PATH": path,
            "HOME": "/nonexistent",
            "XDG_CONFIG_HOME": "/nonexistent",
            "LC_ALL": "C",
            "GIT_ALLOW_PROTOCOL": "file",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(settings),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_SYSTEM": "/dev/null",
            "GIT_DIR": "/nonexistent",
            "GIT_GRAFT_FILE": "/nonexistent/grafts",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_TERMINAL_PROMPT": "0",
        }
        self._check_version()

    def _check_version(self) -> None:
        said = self.run(["version"]).out.decode("ascii", "replace")
        match = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", said)
        found = (int(match[1]), int(match[2]), int(match[3] or 0)) if match else (0, 0, 0)
        if found < OLDEST:
            raise UsageError(
                "git", f"{said.strip() or 'no version'} is too old", f"install git {version_text(OLDEST)} or later"
            )

    def start(
        self, arguments: Iterable[str], *, at: Path | None = None, keep: tuple[int, ...] = (), stdin: int = subprocess.DEVNULL
    ) -> subprocess.Popen[bytes]:
        """A git process in a session of its own; ``at`` is the git directory, ``keep`` are descriptors it inherits."""
        env = self.env if at is None else {**self.env, "GIT_DIR": str(at)}
        try:
            return subprocess.Popen(
                [self.program, *arguments],
                cwd=self.home,
                env=env,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if stdin == subprocess.DEVNULL else subprocess.DEVNULL,
                pass_fds=keep,
                start_new_session=True,
            )
        except OSError as error:
            raise EngineUnavailable("git", f"cannot start it: {error.strerror}") from None

    def run(self, arguments: Iterable[str], *, at: Path | None = None, keep: tuple[int, ...] = ()) -> Ended:
        """The end of one git command. Raises EngineUnavailable when it takes longer than WAIT seconds."""
        return finish(self.start(arguments, at=at, keep=keep))

    def serving(self) -> str:
        """The command line of the serving side; git adds the quoted path."""
        words = [self.program, *(word for setting in SERVING for word in ("-c", setting)), "upload-pack"]
        return "GIT_NO_REPLACE_OBJECTS=1 GIT_GRAFT_FILE=/nonexistent/grafts " + " ".join(map(shlex.quote, words))


def finish(process: subprocess.Popen[bytes]) -> Ended:
    """Waits for a started command; one that overstays is killed with everything it started."""
    try:
        out, err = process.communicate(timeout=WAIT)
    except BaseException as error:
        _end_group(process)
        if isinstance(error, subprocess.TimeoutExpired):
            raise EngineUnavailable("git", f"no answer within {WAIT:.0f} s", "look for named pipes in its .git") from None
        raise
    return Ended(process.returncode, out, (err or b"").decode("utf-8", "backslashreplace"))


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """Nothing of its session lives on; what it left is reaped by others, so that is only waited for a moment."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(100):
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return
        time.sleep(0.01)


def version_text(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def private_folder(path: Path) -> None:
    """The folder exists, is no link, is ours, and nobody else may enter it."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise UsageError(str(path), "not a folder of ours", "remove it, or set PROBATUM_CACHE to another folder")
        if stat.S_IMODE(found.st_mode) != 0o700:
            path.chmod(0o700)
    except OSError as error:
        raise EngineUnavailable(str(path), f"cannot make the cache: {error.strerror}", "set PROBATUM_CACHE") from None


def write_if_changed(path: Path, data: bytes) -> None:
    """``path`` holds ``data``; written aside and renamed, so that a reader sees all or nothing."""
    with contextlib.suppress(OSError):
        if not path.is_symlink() and path.read_bytes() == data:
            return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        aside.write_bytes(data)
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise EngineUnavailable(str(path), f"cannot write it: {error.strerror}", "set PROBATUM_CACHE") from None


def find_repository(start: Path) -> Path:
    """The nearest folder upwards that git would serve: one with ``.git``, or a bare repository."""
    try:
        folder = start.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UsageError(str(start), "no such folder", "give --repo an existing repository") from None
    for candidate in (folder, *folder.parents):
        if os.path.lexists(candidate / ".git"):
            return candidate
        if all((candidate / name).exists() for name in ("HEAD", "objects", "refs")):
            return candidate
    raise UsageError(str(start), "not a git repository", "give --repo a folder that git init or git clone made")


def list_refs(git: Git, source: Path) -> tuple[dict[str, str], dict[str, str]]:
    """(ref name to commit, tags peeled; symbolic ref to its target), as the workspace serves them."""
    ended = git.run(["ls-remote", "--symref", f"--upload-pack={git.serving()}", "--", str(source)])
    if ended.code:
        raise UsageError(str(source), f"git cannot read it: {ended.reason}", "check that it is a whole git repository")
    refs: dict[str, str] = {}
    links: dict[str, str] = {}
    for line in ended.out.decode("utf-8", "surrogateescape").split("\n"):
        value, _, name = line.partition("\t")
        if value.startswith("ref: "):
            links[name] = value[5:]
        elif name.endswith("^{}"):
            refs[name[:-3]] = value
        elif name:
            refs[name] = value
    return refs, links


def cache_folder() -> Path:
    """The gate's cache: ``$PROBATUM_CACHE``, else ``$XDG_CACHE_HOME/probatum``, else ``~/.cache/probatum``."""
    named = os.environ.get("PROBATUM_CACHE")
    if named:
        return Path(named).absolute()
    above = os.environ.get("XDG_CACHE_HOME", "")
    return Path(above if os.path.isabs(above) else Path.home() / ".cache") / "probatum"
