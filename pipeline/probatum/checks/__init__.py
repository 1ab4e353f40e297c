"""The checks, one module each: NAME.py, NAME.md (the page) and NAME.schema.json (generated).

A new kind of evidence is one file here, its page and its tests; it is found by its place.
"""

from __future__ import annotations

import importlib
import pkgutil

from ..core.check import Check


def names() -> list[str]:
    """Every check that is installed, sorted. A check's name is its module's."""
    return sorted(found.name for found in pkgutil.iter_modules(__path__) if not found.name.startswith("_"))


def load(name: str) -> Check:
    """The check called ``name``; KeyError when there is none."""
    if name not in names():
        raise KeyError(name)
    check: Check = importlib.import_module(f".{name}", __name__)  # a module satisfies the protocol
    return check
