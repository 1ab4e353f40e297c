"""The engine for pinned containers: every stage is a step of an image build without a network, on a Dagger engine."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from ..core.stage import Facts, Limits, Mount, Outcome, Place, Runtime, Stage, Tree
from ..errors import EngineUnavailable
from . import dagger_build, machine, results, sandbox
from .dagger_build import VARIABLE, Build, Image, pinned
from .dagger_context import Contexts
from .dagger_line import Lines
from .dagger_session import OTHER, Session, theirs
from .stages import Stages

NAME = "dagger"
ISOLATION = (
    "container: mount+pid+net+ipc+uts namespaces, no capabilities, no_new_privs, seccomp (the runtime's and ours), "
    "read-only mounts"
)
ENFORCED_BY = (
    "wall: launcher; memory: launcher's watch; processes: rlimit and watch; file: rlimit; disk: tmpfs size and watch; "
    "output, report: launcher"
)
GRACE = 30
"""Seconds after a stage's wall limit at which an engine that has said nothing counts as lost."""

PULL = 900
"""Seconds that the engine may take to fetch the image."""

_NONCE = re.compile(r"[0-9A-Za-z._-]{1,128}")


class Dagger:
    """Runs stages as the Engine protocol says. Usable as an async context manager.

    ``image`` is the runner image by digest ("": the variable PROBATUM_RUNNER_IMAGE); the others are as bubblewrap's.
    """

    def __init__(
        self,
        *,
        trees: Callable[[Tree], Path],
        places: Callable[[Runtime], Place],
        cache: Path | None = None,
        capacity: int = 0,
        image: str = "",
    ) -> None:
        self.trees, self.places = trees, places
        self.capacity = capacity or max(2, os.cpu_count() or 1)
        self.stages = Stages(cache / "stages") if cache is not None else None
        self.image = image or os.environ.get(VARIABLE, "")
        self.facts = Facts(name=NAME)
        self._session: Session | None = None
        self._slots: anyio.CapacityLimiter | None = None
        self._images: dict[str, Image] = {}
        self._contexts: Contexts | None = None
        self._box: Path | None = None
        self._lines: Lines | None = None
        self._socket: Any = None
        self._scopes: set[anyio.CancelScope] = set()
        self._running: set[str] = set()

    async def __aenter__(self) -> Dagger:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> Facts:
        """Ready to run: the image is there, a container was started and its launcher answered."""
        if self._slots is not None:
            return self.facts
        ref = pinned(self.image)
        self._session = self.connect()
        try:
            version = await self._session.open()
            self._slots = anyio.CapacityLimiter(self.capacity)
            self._box = Path(tempfile.mkdtemp(prefix="probatum-dagger-"))
            self._contexts = Contexts(self._session, self._box)
            self._lines = Lines(self._box / "line")
            self._socket = self._session.dag.host().unix_socket(str(self._lines.path))
            self.facts = Facts(
                name=NAME,
                version=version,
                isolation=ISOLATION,
                network="loopback",
                uid="fresh uid, owns nothing",
                image=ref,
                limits=ENFORCED_BY,
            )
            async with self._engine("image", PULL):
                await self._look(ref)
            await self._hello()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self.close()
            raise
        return self.facts

    async def run(self, stage: Stage, nonce: str) -> Outcome:
        """The stage's outcome, or where the stage says that it may: an earlier one, with the nonce of the run that made it."""
        if not _NONCE.fullmatch(nonce):
            raise ValueError(f"not a nonce: {nonce!r}")
        await self.open()
        key = self.key(stage) if stage.reusable and self.stages is not None else ""
        if key and self.stages is not None and (known := self.stages.load(key)) is not None:
            return msgspec.structs.replace(known, facts=msgspec.structs.replace(self.facts_of(stage), cache="reused"))
        outcome = await self._answer(stage, nonce, self.places(stage.runtime))
        if key and self.stages is not None and self.kept(outcome):
            self.stages.save(key, outcome)
        return outcome

    async def close(self) -> None:
        """Nothing of the engine's is left running."""
        for scope in list(self._scopes):
            scope.cancel()
        while self._running:
            await anyio.sleep(0.005)
        session, self._session, self._slots = self._session, None, None
        if session is not None:
            await session.close()
        self._contexts = None
        self._images.clear()
        if self._lines is not None:
            self._lines.close()
        if self._box is not None:
            shutil.rmtree(self._box, ignore_errors=True)
            self._box = None

    def connect(self) -> Session:
        """A session that is not open yet."""
        return Session()

    def kept(self, outcome: Outcome) -> bool:
        """Only a command that came to its own end is worth an answer later."""
        return outcome.end.how == "exited"

    def key(self, stage: Stage) -> str:
        """What a reusable stage is filed under: its digest, and what ran it."""
        return results.digest_of_run(stage, self.facts_of(stage))

    def facts_of(self, stage: Stage) -> Facts:
        """The facts of one stage: a stage may bring an image of its own."""
        return msgspec.structs.replace(self.facts, image=self.ref_of(stage))

    def ref_of(self, stage: Stage) -> str:
        """The image that the stage runs on."""
        return pinned(stage.runtime.ref if stage.runtime.kind == "image" else self.image)

    def command(self, stage: Stage, place: Place, nonce: str) -> sandbox.Command:
        """Everything about one sandbox, as a value; nothing is started."""
        return sandbox.Command.of(stage, place, nonce, self.trees)

    def build(self, command: sandbox.Command, image: Image, carried: tuple[Mount, ...] = ()) -> Build:
        """The same as a target of a Dockerfile."""
        return Build.of(command, image, carried)

    async def _hello(self) -> None:
        """The gate's own interpreter runs on this image, and is the one that runs here."""
        code = "import os, sys; os.write(3, sys.version.encode())"
        stage = Stage(
            name="open",
            trust="trusted",
            runtime=Runtime("gate", ""),
            mounts=(),
            argv=("{python}", "-I", "-S", "-B", "-c", code),
            limits=Limits(wall=60),
        )
        outcome = await self._answer(stage, "open", Place(python=machine.interpreter()))
        if outcome.report.decode("utf-8", "replace") != sys.version:
            what = f"{machine.interpreter()} in the image is another Python than here"
            raise EngineUnavailable(NAME, what, f"use an image with this one, {OTHER}")

    async def _answer(self, stage: Stage, nonce: str, place: Place) -> Outcome:
        slots, contexts = self._slots, self._contexts
        assert slots is not None and contexts is not None
        async with self._engine(stage.name, stage.limits.wall + GRACE + PULL):
            image = await self._look(self.ref_of(stage))
            carried = dagger_build.carried(stage)
            rest = msgspec.structs.replace(stage, mounts=tuple(mount for mount in stage.mounts if mount not in carried))
            command = await anyio.to_thread.run_sync(self.command, rest, place, nonce)
            build = self.build(command, image, carried)
            folder = await contexts.place(build, image, command)
            async with slots:
                started = time.time_ns() // 1000
                with anyio.fail_after(stage.limits.wall + GRACE):
                    data = await self._build(build, folder)
                finished = time.time_ns() // 1000
        outcome = results.read(data, stage, nonce, started, finished, NAME)
        return msgspec.structs.replace(outcome, facts=self.facts_of(stage))

    async def _build(self, build: Build, folder: Any) -> bytes:
        """Runs the build's step once more, whatever the engine remembers, and fetches the result."""
        assert self._session is not None and self._lines is not None
        sdk = self._session.sdk
        run = secrets.token_hex(16)
        container = folder.docker_build(
            target=build.name,
            build_args=[sdk.BuildArg("RUN", run)],
            ssh=self._socket,
            no_init=True,
        )
        said = await self._last(run, build, container)
        if said:
            return base64.b64decode(said)
        assert self._box is not None
        path = self._box / run
        await container.file(f"{dagger_build.HOME}/large").export(str(path))
        try:
            return path.read_bytes()
        finally:
            path.unlink()

    async def _last(self, run: str, build: Build, container: Any) -> str:
        """The result as text. When cancelled, the launcher ends its command first and only then the engine the container.

        The other way round the container's first process would die first, and the line close a moment before the others.
        """
        lines, answer = self._lines, anyio.Event()
        assert lines is not None
        said = ""

        async def ask(scope: anyio.CancelScope) -> None:
            nonlocal said
            with scope:
                said = await container.file(f"{dagger_build.HOME}/result").contents()
            answer.set()

        lines.want(run, build.config)
        self._running.add(run)
        try:
            async with anyio.create_task_group() as group:
                scope = anyio.CancelScope(shield=True)
                group.start_soon(ask, scope)
                try:
                    await answer.wait()
                finally:
                    await lines.end(run)
                    scope.cancel()
        finally:
            self._running.discard(run)
        return said

    async def _look(self, ref: str) -> Image:
        """The image's folders; fetches it where the engine has not got it."""
        if ref not in self._images:
            assert self._session is not None
            root = self._session.dag.container().from_(ref).rootfs()
            link = self._session.sdk.FileType.SYMLINK
            found: dict[str, bool] = {}

            async def one(path: str) -> None:
                if await root.exists(path, do_not_follow_symlinks=True):
                    found[path] = await root.stat(path, do_not_follow_symlinks=True).file_type() == link

            await root.sync()
            async with anyio.create_task_group() as group:
                for path in (*dagger_build.SYSTEM, *dagger_build.LOADER):
                    group.start_soon(one, path)
            self._images[ref] = Image.of(ref, found)
        return self._images[ref]

    @contextlib.asynccontextmanager
    async def _engine(self, name: str, seconds: float) -> AsyncIterator[None]:
        """Everything that goes wrong in here is the engine's failure, in one line."""
        session = self._session
        assert session is not None
        try:
            with anyio.fail_after(seconds) as scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
            if scope.cancelled_caught:
                raise EngineUnavailable(NAME, f"stage {name}: the engine was closed")
        except TimeoutError:
            session.kill()
            raise EngineUnavailable(NAME, f"stage {name}: the engine does not answer", "run the gate again") from None
        except Exception as error:  # the SDK asks several things at once: what it raises may be a group
            told = theirs(error)
            if told is None:
                raise
            raise self._failed(name, told, session) from None

    def _failed(self, name: str, error: Any, session: Session) -> EngineUnavailable:
        sdk = session.sdk
        if isinstance(error, sdk.ExecError):
            said = error.stderr.strip().splitlines()
            what = f"the launcher ended with {error.exit_code}: {said[-1] if said else 'no word'}"
            remedy = f"the image must be able to run {machine.interpreter()}, {OTHER}"
            return EngineUnavailable(NAME, f"stage {name}: {what}", remedy)
        if not isinstance(error, sdk.QueryError):
            session.lost = True
        said = re.sub(r"\[traceparent:\S*\]", "", str(error)).strip().splitlines()
        return EngineUnavailable(NAME, f"stage {name}: {said[0] if said else type(error).__name__}", "see the engine's log")
