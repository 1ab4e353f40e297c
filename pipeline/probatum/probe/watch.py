"""What was loaded before the tree's code is left as it was: the watch compares by identity and says what changed.

Seen: attributes of modules and of the classes they define, the code, defaults and closures of functions, modules swapped in
sys.modules, finders, tracers, signal handlers, hooks and plugins. Not seen: what is changed and put back between two
looks, audit hooks, and what lives in data. What differs on base in the same way is for the judge to take off.
"""

from __future__ import annotations

import sys
from operator import eq, is_
from typing import Any

FUNCTION = type(lambda: None)
BUILTIN = type(len)
WRAPPERS = (property, staticmethod, classmethod)
HEAP = 1 << 9

look: Any = None
"""The module look.py; run.py puts it here, since nothing of the probe is importable."""

HOT = (
    "builtins", "time", "random", "math", "operator", "datetime", "json", "re", "unittest.case", "_pytest.outcomes",
    "_pytest.approx", "_pytest.python_api", "_pytest.raises", "_pytest.recwarn", "_pytest.runner", "_pytest.reports",
    "_pytest.assertion.util", "pluggy._callers", "pluggy._hooks",
)  # fmt: skip
"""Modules looked at after every test, with their hot classes; every module is looked at in the end."""

HOT_CLASSES = frozenset(
    ("TestCase", "CallInfo", "TestReport", "RaisesExc", "RaisesContext", "ApproxScalar", "HookCaller", "Random")
)

EXPECTED = frozenset(
    ("__doc__", "__abstractmethods__", "_abc_impl", "__annotations__", "__annotate__", "__annotations_cache__", "__slotnames__",
     "__static_attributes__", "__warningregistry__", "__dict__", "__weakref__", "__pytest_wrapped__")
)  # fmt: skip
"""Attributes that Python itself adds or changes."""

WHOLE = {"random": ("_inst",), "sys": ("meta_path", "path_hooks", "modules"), "unittest.case": (), "os": ("environ",)}
"""Attributes that hold no callable and are compared all the same."""


class Watch:
    """One job's watch. ``tree`` is its folder, ``sealed`` the relative paths of sealed Python files."""

    def __init__(self, tree: Any, sealed: Any) -> None:
        self.tree, self.sealed = tree.rstrip("/") + "/", frozenset(sealed)
        self.seen: dict[Any, bool] = {}
        self.spaces: list[Any] = []
        self.hot: list[Any] = []
        self.functions: list[Any] = []
        self.modules: dict[str, Any] = {}
        self.found: set[str] = set()
        self.codes: dict[str, Any] = {}
        self.items: dict[str, Any] = {}
        self.states: dict[str, Any] = {}
        self.hooks: Any = None
        self.insides: Any = ([], [], [], [])
        self.known: Any = frozenset()

    def begin(self) -> None:
        """Before the first code of the tree: everything that is loaded."""
        for name, module in list(sys.modules.items()):
            self.add(name, module)
        self.seal()
        self.states = look.states()
        observer = look.Observer(self.late)
        sys.meta_path.insert(0, observer)

    def late(self, module: Any) -> None:
        """A module of the standard library, just loaded."""
        self.add(module.__name__, module)
        self.seal()

    def more(self, config: Any) -> None:
        """Before the first conftest: what installed plugins changed while they were loaded is the environment's own doing."""
        if not any((getattr(module, "__file__", None) or "").startswith(self.tree) for module in list(sys.modules.values())):
            self.again()
        for name, module in list(sys.modules.items()):
            if name not in self.modules:
                self.add(name, module)
        self.seal()
        self.hooks = (config, look.hookimpls(config), look.instances(config))
        self.states.update(look.finders())
        self.known = {id(row[2]) for row in self.functions}

    def again(self) -> None:
        """What stands now is what was loaded."""
        for name, _, space, held in self.spaces:
            if look.differ(space, held):
                for key, value in dict(space).items():
                    if held.get(key, held) is not value and type(value) is FUNCTION:
                        self.functions.append((name, key, value))
                held.clear()
                held.update(space)
        self.insides = ([], [], [], [])
        self.states = look.states()

    def add(self, name: Any, module: Any) -> None:
        """Remembers what ``module`` and the classes it defines hold."""
        space = getattr(module, "__dict__", None)
        if type(space) is not dict or name in self.modules:
            return
        self.modules[name] = module
        functions, seen, hot = self.functions, self.seen, name in HOT
        held = self.keep(name, None, space, hot)
        for key, value in held.items():
            kind = type(value)
            if kind is FUNCTION:
                functions.append((name, key, value))
            elif kind is BUILTIN:
                continue
            elif isinstance(value, type) and value.__module__ == name and value not in seen and value.__flags__ & HEAP:
                seen[value] = True
                label = name + "." + key
                for attribute, member in self.keep(label, value, value.__dict__, hot and key in HOT_CLASSES).items():
                    kind = type(member)
                    if kind is FUNCTION:
                        functions.append((label, attribute, member))
                    elif kind in WRAPPERS:
                        member = member.fget if kind is property else member.__func__
                        if type(member) is FUNCTION:
                            functions.append((label, attribute, member))

    def keep(self, name: Any, owner: Any, space: Any, hot: Any) -> Any:
        held = dict(space)
        row = (name, owner, space, held)
        self.spaces.append(row)
        if hot:
            self.hot.append(row)
        return held

    def seal(self) -> None:
        """Remembers the insides of the functions added since."""
        fresh = [row[2] for row in self.functions[len(self.insides[0]) :]]
        for number, new in enumerate(look.insides(fresh)):
            self.insides[number].extend(new)

    def collected(self, session: Any) -> None:
        """After collection: sealed modules and test functions are watched from here on."""
        self.look()
        files = {self.tree + path for path in self.sealed}
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) in files:
                self.add(name, module)
        self.seal()
        for item in session.items:
            function = look.function_of(getattr(item, "obj", None))
            if function is not None:
                self.items[item.nodeid] = (function, function.__code__, function.__defaults__)

    def before_call(self, item: Any) -> None:
        """A test's own function is the one that was collected."""
        kept = self.items.get(item.nodeid)
        if kept is not None:
            function = look.function_of(getattr(item, "obj", None))
            if function is not kept[0] or function.__code__ is not kept[1] or function.__defaults__ is not kept[2]:
                self.found.add(item.nodeid + ": the test's own code was changed after collection")

    def after_call(self) -> None:
        """Before fixtures are torn down: only product code in a hot place counts, a fixture's patches are the test's own."""
        if self.quick():
            self.look(product_only=True)

    def after_test(self) -> None:
        """After teardown: what is still changed is nobody's monkeypatch."""
        if self.quick():
            self.look()

    def quick(self) -> Any:
        """Whether a second look is needed."""
        for row in self.hot:
            if look.differ(row[2], row[3]):
                return True
        return sys.gettrace() is not None or sys.getprofile() is not None

    def look(self, product_only: Any = False) -> None:
        """Compares the hot places and notes what is found."""
        for row in self.hot:
            if look.differ(row[2], row[3]):
                self.compare(row, product_only)
        if not product_only:
            for name, value in (("sys.settrace", sys.gettrace()), ("sys.setprofile", sys.getprofile())):
                if value is not None:
                    self.note(name, value)

    def compare(self, row: Any, product_only: Any = False) -> None:
        name, owner, space, held = row
        now = dict(space)
        for key in [key for key in now if type(key) is str]:
            value, was = now[key], held.get(key, held)
            if value is was or key in EXPECTED:
                continue
            if was is held:
                found = look.shadows(owner, key) if owner is not None else key in look.BUILTINS
                relevant = found and (callable(value) or look.descriptor(value) or value is None)
            else:
                relevant = callable(was) or callable(value) or look.descriptor(was) or key in WHOLE.get(name, ())
            if relevant and (not product_only or self.product(value)) and not self.installed(key, value):
                self.note(name + "." + key, value)
        for key, was in held.items():
            if key not in now and key not in EXPECTED and (callable(was) or look.descriptor(was)) and not product_only:
                self.found.add(f"{name}.{key}: gone")

    def note(self, name: Any, value: Any) -> None:
        if not self.own(value) and not (name == "gc.callbacks" and self.installed(None, value)):
            self.found.add(f"{name}: now {self.describe(value)}")

    def end(self) -> Any:
        """What is found, sorted: every place is looked at once more."""
        for row in self.spaces:
            if look.differ(row[2], row[3]):
                self.compare(row)
        self.inside()
        for name, module in self.modules.items():
            other = sys.modules.get(name, module)
            if other is not module and getattr(other, "__file__", 0) != getattr(module, "__file__", 1):
                self.note(f"sys.modules[{name}]", other)
        for nodeid, (function, code, defaults) in self.items.items():
            if function.__code__ is not code or function.__defaults__ is not defaults:
                self.found.add(nodeid + ": the test's own code was changed after collection")
        states = {**look.states(), **look.finders()}
        for name, value in states.items():
            was = self.states.get(name)
            if isinstance(value, list):
                for one in value:
                    if not any(one is other for other in was or ()):
                        self.note(name, one)
                for one in was or ():
                    # The finder that waits for hypothesis takes itself out.
                    if not any(one is other for other in value) and type(one).__name__ != "_Profile":
                        self.found.add(f"{name}: without {self.describe(one)}")
            elif value is not was and value != was:
                self.note(name, value)
        if self.hooks is not None:
            config, impls, instances = self.hooks
            for one in look.hookimpls(config, self.known) - impls:
                self.found.add("hook " + " ".join(one).replace(self.tree, ""))
            for one in look.instances(config) - instances:
                self.found.add("instance attribute " + one)
        return sorted(look.clean(text) for text in self.found)

    def inside(self) -> None:
        """Functions whose code, defaults or closure are others now."""
        new = look.insides([row[2] for row in self.functions])
        for number, what in enumerate(("code", "defaults", "keyword defaults", "closure")):
            was, now = self.insides[number], new[number]
            same = is_ if number < 2 else eq
            for place, unchanged in enumerate(map(same, was, now)):
                if not unchanged:
                    self.found.add(f"{self.functions[place][0]}.{self.functions[place][1]}: another {what}")

    def describe(self, value: Any) -> Any:
        """Who ``value`` is, without addresses, temporary folders or line numbers: base must give the same text."""
        try:
            code = look.code_of(value)
            if code is not None:
                return f"{self.short(code.co_filename)}:{getattr(code, 'co_qualname', code.co_name)}"
            kind = value if isinstance(value, type) else type(value)
            text = f"{kind.__module__}.{kind.__qualname__}"
            if kind is value:
                return text
            if kind.__module__ == "builtins":
                return f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')} ({text})"
            return "a " + text
        except BaseException:
            return "something that hides its name"

    def short(self, path: Any) -> Any:
        return path[len(self.tree) :] if path.startswith(self.tree) else "/".join(path.split("/")[-2:])

    def product(self, value: Any) -> Any:
        """Whether ``value``'s code lies in the tree and is not sealed."""
        try:
            code = look.code_of(value)
            if code is None:
                kind = value if isinstance(value, type) else type(value)
                path = getattr(sys.modules.get(kind.__module__), "__file__", "") or ""
            else:
                path = code.co_filename
            return (path.startswith(self.tree) and path[len(self.tree) :] not in self.sealed) or path.startswith("<")
        except BaseException:
            return True

    def own(self, value: Any) -> Any:
        """Whether ``value`` is a function that a sealed file defines: what the oracle does to itself is its own affair.

        A code object can claim any file, so it must be equal to one that the sealed source compiles to.
        """
        code = look.code_of(value)
        if code is None or not code.co_filename.startswith(self.tree):
            return False
        path = code.co_filename[len(self.tree) :]
        if path not in self.sealed:
            return False
        return self.genuine(code)

    def installed(self, key: Any, value: Any) -> Any:
        """Whether ``value`` is an installed package's own function of that very name (typing_extensions mends typing)."""
        code = look.function_of(value) and value.__code__
        return bool(code) and key in (None, code.co_name) and "/site-packages/" in code.co_filename and self.genuine(code)

    def genuine(self, code: Any) -> Any:
        path = code.co_filename
        if path not in self.codes:
            self.codes[path] = look.compiled(path)
        return code in self.codes[path]
