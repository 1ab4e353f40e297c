"""Whose code asks: which frame is product code, and what product code looks at that no production code needs.

An audit hook notes callers' frames, the heap's objects, and reads of sealed test modules or of the probe. A file's name in
a code object can be forged, and what an installed package does for the product is not seen.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import sys
import traceback
import warnings
from _thread import get_ident
from typing import Any

FRAMES = frozenset(("tb_frame", "gi_frame", "cr_frame", "ag_frame"))
CALLS = frozenset(
    ("sys._getframe", "sys._getframemodulename", "sys._current_frames", "sys.settrace", "sys.setprofile", "gc.get_objects",
     "gc.get_referrers", "gc.get_referents")
)  # fmt: skip
EVENTS = CALLS | {"open", "object.__getattr__"}
BETWEEN = frozenset((inspect.__file__, traceback.__file__))
"""A caller of these is asked for: they look on its behalf."""
SHOWS = frozenset((logging.__file__, traceback.__file__, warnings.__file__))
"""These read source lines to show them: that is no look of the product's."""


class Looks:
    """``hidden`` and ``sealed`` are paths below ``tree``; ``probe`` is the probe's folder."""

    def __init__(self, tree: Any, sealed: Any, hidden: Any, probe: Any) -> None:
        real = os.path.realpath(tree)
        self.tree, self.probe = tree.rstrip("/") + "/", probe + "/"
        self.sealed, self.shows = frozenset(sealed), SHOWS
        self.hidden = frozenset(os.path.join(real, path) for path in hidden)
        self.parents = frozenset(os.path.dirname(path) for path in self.hidden)
        self.found: set[str] = set()
        self.busy: set[int] = set()

    def product(self, path: Any) -> Any:
        """The path below the tree of a file that no human sealed, else ""."""
        if type(path) is str and path.startswith(self.tree) and path[len(self.tree) :] not in self.sealed:
            return path[len(self.tree) :]
        return ""

    def nearest(self, frame: Any, stop: Any = ()) -> Any:
        """The product file of the nearest frame that lies in the tree; "" for a sealed one, for none, and beyond ``stop``."""
        while frame is not None:
            path = frame.f_code.co_filename
            if path.startswith(self.tree):
                return self.product(path)
            if path in stop:
                return ""
            frame = frame.f_back
        return ""

    def direct(self, frame: Any) -> Any:
        """The product file that calls itself, or through ``inspect`` or ``traceback``, else ""."""
        while frame is not None:
            path = frame.f_code.co_filename
            if not path.startswith("<") and path not in BETWEEN:
                return self.product(path)
            frame = frame.f_back
        return ""

    def resolved(self, path: Any, folder: Any = None) -> Any:
        """``path`` without symlinks, "" where it cannot be told."""
        try:
            text = os.fsdecode(path)
            return os.path.realpath(text if folder is None else f"/proc/self/fd/{folder}/{text}")
        except Exception:
            return ""

    def read(self, frame: Any, where: Any) -> None:
        """``frame`` asks for the content of ``where``."""
        sealed = where in self.hidden and where.endswith(".py")
        if sealed or where.startswith(self.probe):
            self.note("a sealed test" if sealed else "the probe", self.nearest(frame, SHOWS))

    def note(self, what: Any, who: Any) -> None:
        if who:
            self.found.add(f"looks: {what} from {who}".encode("utf-8", "backslashreplace").decode("utf-8")[:300])

    def listen(self) -> None:
        """From here on; an audit hook stays until the process ends."""
        sys.addaudithook(self.hook())

    def hook(self) -> Any:
        getframe, busy = sys._getframe, self.busy

        def heard(event: Any, args: Any) -> None:
            if event not in EVENTS or (event == "object.__getattr__" and args[1] not in FRAMES):
                return
            mine = get_ident()
            if mine in busy:
                return
            busy.add(mine)
            with contextlib.suppress(Exception):  # a hook that raises would change what it only hears
                self.heard(event, args, getframe(1))
            busy.discard(mine)

        return heard

    def heard(self, event: Any, args: Any, frame: Any) -> None:
        if event == "open":
            if isinstance(args[0], (str, bytes)) and self.nearest(frame, SHOWS):
                self.read(frame, self.resolved(args[0]))
        elif event in CALLS:
            self.note(event, self.direct(frame))
        elif frame.f_code.co_filename not in BETWEEN:
            self.note(args[1], self.direct(frame))
