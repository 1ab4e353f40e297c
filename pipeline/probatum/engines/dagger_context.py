"""Build contexts on the engine: sources go up once a gate, and stages that start together share one context.

Whatever is mounted from a context is hashed by the engine once a context, so a new one is made only for new sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import msgspec

from . import dagger_build
from .dagger_build import BOX, PREFIX, Build, Image, Source
from .dagger_session import Session
from .sandbox import Command

TOGETHER = 0.01
"""Seconds that the first stage of a wave waits for the others."""

NOT_IN_CONTEXT = (
    "lib/python*/site-packages",
    "lib/python*/config-*",
    "lib/python*/test/*",
    "!lib/python*/test/__init__.py",
    "!lib/python*/test/support",
    "**/*.opt-[12].pyc",
    "share",
    "include",
    "lib/*.a",
)
"""Parts of an interpreter's prefix that no stage reads: a virtual environment hides them, or only builds need them."""


class Batch:
    """Builds that will share a context, and the context once it is there."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.builds: list[Build] = []
        self.done = anyio.Event()
        self.folder: Any = None


class Context(msgspec.Struct, frozen=True):
    """A folder on the engine, and the targets that its Dockerfile has."""

    targets: frozenset[str]
    folder: Any


class Contexts:
    """The contexts of one session. ``box`` is a folder of ours for what every stage shares."""

    def __init__(self, session: Session, box: Path) -> None:
        self.session, self.box = session, box
        self._uploads: dict[str, Any] = {}
        self._known: list[Context] = []
        self._waiting: dict[str, Batch] = {}

    async def place(self, build: Build, image: Image, command: Command) -> Any:
        """The folder on the engine that holds the build's sources and a Dockerfile with its target."""
        shared = self.box / image.ref[-64:]
        if not shared.exists():
            dagger_build.box(shared, command, image)
        while True:
            for context in self._known:
                if build.name in context.targets:
                    return context.folder
            batch = self._waiting.get(image.ref)
            if batch is not None:
                batch.builds.append(build)
                await batch.done.wait()  # and look again: whoever made it may have failed or been cancelled
                continue
            batch = self._waiting[image.ref] = Batch(image)
            batch.builds.append(build)
            try:
                await anyio.sleep(TOGETHER)
                del self._waiting[image.ref]
                folder = await self._folder(image, batch.builds)
                self._known.append(Context(frozenset(each.name for each in batch.builds), folder))
                return folder
            finally:
                if self._waiting.get(image.ref) is batch:
                    del self._waiting[image.ref]
                batch.done.set()

    async def _folder(self, image: Image, builds: list[Build]) -> Any:
        dag = self.session.dag
        sources = {source for build in builds for source in build.sources} | {
            Source(BOX, str(self.box / image.ref[-64:]), PREFIX)
        }
        folder = dag.directory()
        # What is the same in every context comes first: then the engine has that part already.
        for source in sorted(sources, key=lambda source: (source.kind, source.name)):
            if source.path not in self._uploads:
                left_out = list(NOT_IN_CONTEXT) if source.kind == PREFIX and source.name != BOX else []
                self._uploads[source.path] = dag.host().directory(source.path, exclude=left_out)
            folder = folder.with_directory(source.name, self._uploads[source.path])
        return await folder.with_new_file("Dockerfile", dagger_build.dockerfile(image, builds)).sync()
