"""The embedded engine: every stage runs in namespaces of its own, made by bubblewrap, with our launcher as pid 1."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from ..core.stage import Facts, Limits, Outcome, Place, Runtime, Stage, Tree
from . import machine, results, sandbox
from .job import Job
from .stages import Stages

NAME = "bubblewrap"
ISOLATION = "user+mount+pid+net+ipc+uts namespaces, no capabilities, no_new_privs, seccomp, read-only mounts"
_NONCE = re.compile(r"[0-9A-Za-z._-]{1,128}")


class Bubblewrap:
    """Runs stages as the Engine protocol says. Usable as an async context manager.

    ``trees`` puts a tree into a folder and returns it; ``places`` says where a runtime lives; ``cache`` is the gate's
    cache folder (None: nothing is reused); ``capacity`` is how many stages run at once.
    """

    def __init__(
        self,
        *,
        trees: Callable[[Tree], Path],
        places: Callable[[Runtime], Place],
        cache: Path | None = None,
        capacity: int = 0,
    ) -> None:
        self.trees, self.places = trees, places
        self.capacity = capacity or max(2, os.cpu_count() or 1)
        self.stages = Stages(cache / "stages") if cache is not None else None
        self.facts = Facts(name=NAME)
        self._jobs: set[Job] = set()
        self._slots: anyio.CapacityLimiter | None = None

    async def __aenter__(self) -> Bubblewrap:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> Facts:
        """Ready to run: a sandbox was started and its launcher answered. Raises EngineUnavailable with what is closed."""
        if self._slots is None:
            version = await anyio.to_thread.run_sync(machine.bwrap_version)
            machine.no_dumps()
            self._slots = anyio.CapacityLimiter(self.capacity)
            self.facts = self.describe(version)
            empty = Stage(name="open", trust="trusted", runtime=Runtime("gate", ""), mounts=(), argv=(), limits=Limits(wall=30))
            try:
                await self._answer(empty, "open", Place(python=machine.interpreter()))
            except BaseException:
                self._slots = None
                raise
        return self.facts

    async def run(self, stage: Stage, nonce: str) -> Outcome:
        """The stage's outcome, or where the stage says that it may: an earlier one, with the nonce of the run that made it.

        Cancelling kills every process of the stage before the cancellation goes on.
        """
        if not _NONCE.fullmatch(nonce):
            raise ValueError(f"not a nonce: {nonce!r}")
        await self.open()
        key = self.key(stage) if stage.reusable and self.stages is not None else ""
        if key and self.stages is not None and (known := self.stages.load(key)) is not None:
            return msgspec.structs.replace(known, facts=msgspec.structs.replace(self.facts, cache="reused"))
        outcome = await self._answer(stage, nonce, None)
        if key and self.stages is not None and self.kept(outcome):
            self.stages.save(key, outcome)
        return outcome

    async def close(self) -> None:
        """Nothing of the engine's is left running."""
        for job in list(self._jobs):
            job.kill()
        while self._jobs:
            await anyio.sleep(0.005)
        self._slots = None

    def kept(self, outcome: Outcome) -> bool:
        """Only a command that came to its own end is worth an answer later."""
        return outcome.end.how == "exited"

    def key(self, stage: Stage) -> str:
        """What a reusable stage is filed under: its digest, and what ran it."""
        return results.digest_of_run(stage, self.facts)

    def describe(self, version: str) -> Facts:
        """What this engine vouches for on this host."""
        return Facts(
            name=NAME,
            version=version,
            isolation=ISOLATION,
            network="loopback",
            uid=machine.Uid.choose().words,
            limits=sandbox.ENFORCED_BY,
        )

    def command(self, stage: Stage, place: Place, nonce: str) -> sandbox.Command:
        """Everything about one sandbox, as a value; nothing is started."""
        return sandbox.Command.of(stage, place, nonce, self.trees)

    async def _answer(self, stage: Stage, nonce: str, place: Place | None) -> Outcome:
        assert self._slots is not None
        async with self._slots:
            job = Job(lambda: self.command(stage, place or self.places(stage.runtime), nonce))
            self._jobs.add(job)
            finished = anyio.Event()
            try:
                async with anyio.create_task_group() as group:
                    group.start_soon(self._in_thread, job, finished)
                    try:
                        await finished.wait()
                    finally:
                        job.kill()
            finally:
                self._jobs.discard(job)
        if job.error is not None:
            raise job.error
        assert job.outcome is not None
        return msgspec.structs.replace(job.outcome, facts=self.facts)

    @staticmethod
    async def _in_thread(job: Job, finished: anyio.Event) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(job.run)
        finished.set()
