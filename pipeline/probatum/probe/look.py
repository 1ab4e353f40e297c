"""What the watch looks at: the insides of functions, process-wide hooks, plugins, and modules that are imported late."""

from __future__ import annotations

import builtins
import os
import sys
from operator import attrgetter, is_
from typing import Any

FUNCTION = type(lambda: None)
BUILTIN = type(len)
CELL = (FUNCTION, type, BUILTIN)


def compiled(path: Any) -> Any:
    found: list[Any] = []
    try:
        with open(path, "rb") as handle:
            left = [compile(handle.read(), path, "exec", dont_inherit=True)]
    except Exception:
        return found
    while left:
        code = left.pop()
        found.append(code)
        left += [const for const in code.co_consts if type(const) is type(code)]
    return found


_ALL = (attrgetter("__code__"), attrgetter("__defaults__"), attrgetter("__kwdefaults__"), attrgetter("__closure__"))


def insides(functions: Any) -> Any:
    """Four lists: code, defaults, keyword defaults (as identities), callables in closures (as identities)."""
    codes, defaults, keywords, closures = (list(map(get, functions)) for get in _ALL)
    for number in (at for at, each in enumerate(keywords) if each is not None):
        keywords[number] = [(key, id(value)) for key, value in keywords[number].items()]
    for number in (at for at, each in enumerate(closures) if each is not None):
        closures[number] = cells(closures[number])
    return codes, defaults, keywords, closures


def differ(space: Any, held: Any) -> Any:
    """Whether the same names hold the same objects in the same order. No ``__eq__`` runs: it might be the candidate's."""
    return len(space) != len(held) or not all(map(is_, space.values(), held.values()))


def cells(closure: Any) -> Any:
    found = []
    for cell in closure:
        try:
            value = cell.cell_contents
        except ValueError:
            value = None
        found.append(id(value) if isinstance(value, CELL) else None)
    return found


def function_of(value: Any) -> Any:
    """The plain function below bound methods."""
    value = getattr(value, "__func__", value)
    return value if type(value) is FUNCTION else None


def code_of(value: Any) -> Any:
    """The code that a call of ``value`` would run, where that can be told."""
    for _ in range(8):
        kind = type(value)
        if kind is FUNCTION:
            return value.__code__
        inner = None
        for name in ("__func__", "func", "fget", "__wrapped__"):
            if name in ("func",) and kind.__module__ != "functools":
                continue
            inner = getattr(value, name, None) if not isinstance(value, type) else None
            if inner is not None:
                break
        if inner is None:
            return None
        value = inner
    return None


def descriptor(value: Any) -> Any:
    return hasattr(type(value), "__get__")


def shadows(owner: Any, key: Any) -> Any:
    """Whether a new attribute of a class hides an inherited one, or is one that Python itself looks for."""
    return (key.startswith("__") and key.endswith("__")) or any(key in base.__dict__ for base in owner.__mro__[1:])


BUILTINS = frozenset(vars(builtins))


def finders() -> Any:
    return {"sys.meta_path": list(sys.meta_path), "sys.path_hooks": list(sys.path_hooks)}


def states() -> Any:
    """Process-wide hooks by name."""
    import gc
    import signal
    import threading
    import warnings

    found = {
        "sys.excepthook": sys.excepthook,
        "sys.settrace": sys.gettrace(),
        "sys.setprofile": sys.getprofile(),
        "threading.settrace": getattr(threading, "_trace_hook", None),
        "threading.setprofile": getattr(threading, "_profile_hook", None),
        "gc.callbacks": list(gc.callbacks),
        "warnings.filters": [],
        **finders(),
    }
    for number in range(1, 32):
        found[f"signal {number}"] = signal.getsignal(number)
    for action, message, category, module, line in warnings.filters:
        shown = [getattr(each, "pattern", each) for each in (message, module)]
        found[f"warnings.filters {action} {shown} {getattr(category, '__name__', '')} {line}"] = True
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is not None:
        for tool in range(6):
            found[f"sys.monitoring {tool}"] = monitoring.get_tool(tool)
    return found


def hookimpls(config: Any, known: Any = ()) -> Any:
    """Every hook implementation whose function is not ``known``, as (hook, plugin, where)."""
    found = set()
    for hook, caller in vars(config.pluginmanager.hook).items():
        for impl in getattr(caller, "get_hookimpls", list)():
            if id(getattr(impl.function, "__func__", impl.function)) in known:
                continue
            code = code_of(impl.function)
            where = f"{code.co_filename}:{code.co_name}" if code is not None else type(impl.function).__name__
            found.add((hook, str(impl.plugin_name) if not str(impl.plugin_name).isdigit() else "a plugin", where))
    return found


def instances(config: Any) -> Any:
    """Functions that lie on pytest's own objects, where only classes hold functions."""
    found = set()
    for owner in (
        config,
        config.pluginmanager,
        config.hook,
        getattr(config, "_store", None),
        config.pluginmanager.get_plugin("session"),
    ):
        for key, value in getattr(owner, "__dict__", {}).items():
            if type(value) is FUNCTION:
                found.add(f"{type(owner).__name__}.{key}: {value.__code__.co_name}")
    return found


def clean(text: Any) -> Any:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:300]


class Observer:
    """Sees every module of the standard library at the end of its import, before anybody else can touch it."""

    def __init__(self, late: Any) -> None:
        self.late = late
        names = getattr(sys, "stdlib_module_names", None)
        if names is None:  # before Python 3.10
            names = [name.partition(".")[0] for name in os.listdir(os.path.dirname(os.__file__))]
        self.names = frozenset(names) | {"hypothesis", "_pytest", "pytest", "pluggy"}

    def find_spec(self, name: Any, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in self.names:
            return None
        from importlib.machinery import PathFinder, SourceFileLoader

        spec = PathFinder.find_spec(name, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader.__class__ = observed(SourceFileLoader, self.late)
        return spec


def observed(base: Any, late: Any) -> Any:
    """A loader class that looks like ``base``, becomes it when it is used, and tells ``late`` of the module."""

    def exec_module(self: Any, module: Any) -> None:
        self.__class__ = base
        base.exec_module(self, module)
        late(module)

    return type(base.__name__, (base,), {"exec_module": exec_module})
