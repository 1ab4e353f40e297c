"""What the conformance suite knows about an engine: how to make it, and how to make it weaker.

The walls (``engine_walls.py``) are written against ``core.stage.Engine`` alone. A second engine adds a kit here and nothing
else. A kit weakens an engine by the name of the wall: the wall's attack must then win.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from bubblewrap_weaker import WEAKER, Weak

from probatum.core.stage import Place, Runtime, Tree
from probatum.engines import machine
from probatum.engines.bubblewrap import Bubblewrap


def place(_: Runtime) -> Place:
    """The interpreter of these tests, without its packages."""
    return Place(python=machine.interpreter(), binds=() if sys.base_prefix == "/usr" else ((sys.base_prefix, sys.base_prefix),))


class Folders:
    """Puts trees into folders, writable by all on purpose: only the engine's read-only mounts keep them unchanged."""

    def __init__(self, work: Path) -> None:
        self.work = work

    def __call__(self, tree: Tree) -> Path:
        root = self.work / tree.digest.removeprefix("sha256:")
        if not root.exists():
            for name, blob in tree.files.items():
                path = root / os.fsdecode(name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(blob.data or b"")
                path.chmod(blob.mode & 0o777)
            for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
                folder.chmod(0o777)
        return root


class Kit:
    """One engine. ``drops``: whether what runs inside is another uid than the caller's. ``local``: no service is needed."""

    name = "bubblewrap"
    local = True

    def missing(self) -> str:
        """Why this engine cannot be tried here, "" where it can."""
        return ""

    @property
    def drops(self) -> bool:
        return os.geteuid() == 0

    def make(self, work: Path, *, cache: Path | None = None, weaker: str = "") -> Bubblewrap:
        """The engine, or with ``weaker`` the engine without the defence of that wall."""
        kind = Weak if weaker else Bubblewrap
        engine = kind(trees=Folders(work), places=place, cache=cache, capacity=4)
        if isinstance(engine, Weak):
            engine.weaker = WEAKER[weaker]
        return engine

    def lose_trees(self, engine: Bubblewrap) -> None:
        """From now on the engine finds no tree."""
        engine.trees = lambda _: Path("/nowhere")

    def weakened(self, wall: str) -> str:
        """ "wins", or why this defence cannot be taken away."""
        weaker = WEAKER[wall]
        return weaker if isinstance(weaker, str) else "wins"


from dagger_kit import DaggerKit  # noqa: E402

KITS = {kit.name: kit for kit in (Kit(), DaggerKit())}
