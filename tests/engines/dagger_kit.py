"""What the conformance suite knows about Dagger. Its tests are skipped, with the reason, where no engine is reachable."""

from __future__ import annotations

import atexit
import functools
import importlib.util
import os
from pathlib import Path
from typing import Any

from probatum.engines import dagger_session
from probatum.engines.dagger import VARIABLE, Dagger
from probatum.errors import EngineUnavailable


@functools.cache
def client() -> dict[str, str]:
    """One client for all tests: its start would cost each of them a second. Raises EngineUnavailable."""
    if dagger_session.inside():
        return {name: os.environ[name] for name in (dagger_session.PORT, dagger_session.TOKEN)}
    session = dagger_session.Session()
    atexit.register(session.kill)
    return session.start()


@functools.cache
def missing() -> str:
    """Why no Dagger engine can be tried here, "" where one can."""
    spec = importlib.util.find_spec("dagger")
    if spec is None or spec.origin is None:  # a folder of that name is no SDK
        return "Dagger: the SDK is not installed (probatum[dagger])"
    if not os.environ.get(VARIABLE):
        return f"Dagger: no runner image is named in {VARIABLE}"
    try:
        client()
    except EngineUnavailable as error:
        return f"Dagger: {error}"
    return ""


class Joined(dagger_session.Session):
    """A session over the tests' one client."""

    def start(self) -> dict[str, str]:
        return client()


class Joining(Dagger):
    """The engine as it is, over the tests' one client."""

    def connect(self) -> dagger_session.Session:
        return Joined()


class DaggerKit:
    """Dagger, whole or weaker."""

    name = "dagger"
    local = False
    drops = True

    def missing(self) -> str:
        return missing()

    def make(self, work: Path, *, cache: Path | None = None, weaker: str = "") -> Dagger:
        from dagger_weaker import WEAKER, Weak
        from engine_kit import Folders, place

        kind: Any = Weak if weaker else Joining
        engine: Dagger = kind(trees=Folders(work), places=place, cache=cache, capacity=4)
        if isinstance(engine, Weak):
            engine.weaker = WEAKER[weaker]
        return engine

    def lose_trees(self, engine: Dagger) -> None:
        engine.trees = lambda _: Path("/nowhere")

    def weakened(self, wall: str) -> str:
        from dagger_weaker import WEAKER

        weaker = WEAKER[wall]
        return weaker if isinstance(weaker, str) else "wins"
