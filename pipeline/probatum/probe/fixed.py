"""What a run fixes so that two of them are the same: options, seeds, order; and what a forced run takes away."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pytest

OPTIONS = {
    "numprocesses": 0,
    "maxprocesses": 0,
    "dist": "no",
    "tx": [],
    "maxfail": 0,
    "continue_on_collection_errors": True,
    "randomly_reorganize": False,
    "randomly_reset_seed": False,
    "reruns": 0,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "collectonly": False,
    "usepdb": False,
    # Source lines in tracebacks are slow, and CPython 3.11 can fail while it parses them; messages do not depend on it.
    "tbstyle": "native",
}
"""Options of pytest and well-known plugins that would run a test elsewhere, twice, not at all, or in another order."""


def seeder() -> Any:
    """A function that seeds the generators a test may use without asking; bound before any code of a tree runs."""
    import random

    seed, modules = random.seed, sys.modules

    def again() -> None:
        seed(0)
        numpy = modules.get("numpy.random")
        if numpy is not None:
            with contextlib.suppress(Exception):
                numpy.seed(0)

    return again


def as_planned(items: Any, expect: Any) -> None:
    """Nothing runs where the collection is not exactly the planned one: pytest ends with exit status 4 and says why."""
    found = [plain(item.nodeid) for item in items]
    seen = set(found)
    wrong = []
    for what, ids in (("missing", expect - seen), ("not in the plan", seen - expect)):
        if ids:
            wrong.append(f"{len(ids)} {what}, the first is {min(ids)}")
    if len(found) != len(seen):
        wrong.append(f"{len(found) - len(seen)} collected twice")
    if wrong:
        items[:] = []
        raise pytest.UsageError("what is collected is not what the plan says: " + "; ".join(wrong))


def shuffle(items: Any, order: Any) -> None:
    """Modules in an order that ``order`` chooses, and the tests of each module likewise."""
    import random

    rng = random.Random(order)
    groups: dict[str, Any] = {}
    for item in items:
        groups.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = sorted(groups)
    rng.shuffle(names)
    for name in names:
        rng.shuffle(groups[name])
    items[:] = [item for name in names for item in groups[name]]


def unskip(collector: Any, name: Any, obj: Any) -> Any:
    """unittest's skip and expectedFailure leave attributes and wrappers; a forced run takes both away."""
    if isinstance(obj, type):
        for cls in obj.__mro__[:-1]:
            for key, value in list(vars(cls).items()):
                inner = unwrapped(value)
                if inner is not value:
                    setattr(cls, key, inner)
            for key in ("__unittest_skip__", "__unittest_expecting_failure__"):
                if vars(cls).get(key):
                    setattr(cls, key, False)
        return None
    inner = unwrapped(obj)
    if inner is obj or isinstance(collector.obj, type) or not isinstance(collector.obj, type(sys)):
        return None
    setattr(collector.obj, name, inner)
    return collector.ihook.pytest_pycollect_makeitem(collector=collector, name=name, obj=inner)


def unwrapped(value: Any) -> Any:
    marks = getattr(value, "__dict__", None)
    if not isinstance(marks, dict):
        return value
    if marks.get("__unittest_expecting_failure__"):
        value.__unittest_expecting_failure__ = False
    if not isinstance(value, type) and marks.get("__unittest_skip__"):
        value.__unittest_skip__ = False
        return marks.get("__wrapped__", value)
    return value


class _Profile:
    """Finds ``hypothesis`` once, for the loader that was going to load it, and makes its default profile deterministic."""

    def find_spec(self, name: Any, path: Any = None, target: Any = None) -> Any:
        if name != "hypothesis":
            return None
        sys.meta_path.remove(self)
        from importlib.machinery import PathFinder, SourceFileLoader

        spec = PathFinder.find_spec(name, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader.__class__ = profiled(SourceFileLoader)
        return spec


def profiled(base: Any) -> Any:
    """A loader class that settles the module it loads, once."""

    def exec_module(self: Any, module: Any) -> None:
        self.__class__ = base
        base.exec_module(self, module)
        settle(module)

    return type(base.__name__, (base,), {"exec_module": exec_module})


def settle(module: Any) -> None:
    """Examples follow from the test alone: no database, no deadline; a conftest's own profile still gets a fixed seed."""
    module.settings.register_profile("gate", derandomize=True, database=None, deadline=None, print_blob=False)
    module.settings.load_profile("gate")
    core: Any = sys.modules.get("hypothesis.core")
    if core is not None:
        core.global_force_seed = 0


def derandomise() -> None:
    # Before the finder of assertion rewriting, which would answer first.
    if "hypothesis" in sys.modules:
        settle(sys.modules["hypothesis"])
    else:
        sys.meta_path.insert(0, _Profile())


def plain(text: Any) -> Any:
    """``text`` without lone surrogates, which no JSON reader takes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")
