"""What was loaded before the tree's code is left as it was: the watch compares by identity and says what changed.

Seen: attributes of modules and of the classes they define, the code, defaults and closures of functions, modules swapped in
sys.modules, finders, tracers, signal handlers, hooks and plugins. Not seen: what is changed and put back between two
looks, audit hooks, and what lives in data. What differs on base in the same way is for the judge to take off.
"""

import sys
from operator import attrgetter, eq, is_

FUNCTION = type(lambda: None)
BUILTIN = type(len)
WRAPPERS = (property, staticmethod, classmethod)
HEAP = 1 << 9
CELL = (FUNCTION, type, BUILTIN)

HOT = (
    "builtins", "time", "random", "math", "operator", "datetime", "json", "re", "unittest.case", "_pytest.outcomes",
    "_pytest.approx", "_pytest.python_api", "_pytest.raises", "_pytest.recwarn", "_pytest.runner", "_pytest.reports", "_pytest.assertion.util",
    "pluggy._callers", "pluggy._hooks",
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

    def __init__(self, tree, sealed):
        self.tree, self.sealed = tree.rstrip("/") + "/", frozenset(sealed)
        self.seen, self.spaces, self.hot, self.functions, self.modules = {}, [], [], [], {}
        self.found, self.codes, self.items, self.states, self.hooks = set(), {}, {}, {}, None
        self.insides, self.known = ([], [], [], []), frozenset()

    def begin(self):
        """Before the first code of the tree: everything that is loaded."""
        for name, module in list(sys.modules.items()):
            self.add(name, module)
        self.seal()
        self.states = _states()
        observer = _Observer(self.late)
        sys.meta_path.insert(0, observer)

    def late(self, module):
        """A module of the standard library, just loaded."""
        self.add(module.__name__, module)
        self.seal()

    def more(self, config):
        """Before the first conftest: what installed plugins changed while they were loaded is the environment's own doing."""
        if not any((getattr(module, "__file__", None) or "").startswith(self.tree) for module in list(sys.modules.values())):
            self.again()
        for name, module in list(sys.modules.items()):
            if name not in self.modules:
                self.add(name, module)
        self.seal()
        self.hooks = (config, _hookimpls(config), _instances(config))
        self.states.update(_finders())
        self.known = {id(row[2]) for row in self.functions}

    def again(self):
        """What stands now is what was loaded."""
        for name, _, space, held in self.spaces:
            if _differ(space, held):
                for key, value in dict(space).items():
                    if held.get(key, held) is not value and type(value) is FUNCTION:
                        self.functions.append((name, key, value))
                held.clear()
                held.update(space)
        self.insides = ([], [], [], [])
        self.states = _states()

    def add(self, name, module):
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

    def keep(self, name, owner, space, hot):
        held = dict(space)
        row = (name, owner, space, held)
        self.spaces.append(row)
        if hot:
            self.hot.append(row)
        return held

    def seal(self):
        """Remembers the insides of the functions added since."""
        fresh = [row[2] for row in self.functions[len(self.insides[0]) :]]
        for kept, new in zip(self.insides, _insides(fresh)):
            kept.extend(new)

    def collected(self, session):
        """After collection: sealed modules and test functions are watched from here on."""
        self.look()
        files = {self.tree + path for path in self.sealed}
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) in files:
                self.add(name, module)
        self.seal()
        for item in session.items:
            function = _function(getattr(item, "obj", None))
            if function is not None:
                self.items[item.nodeid] = (function, function.__code__, function.__defaults__)

    def before_call(self, item):
        """A test's own function is the one that was collected."""
        kept = self.items.get(item.nodeid)
        if kept is not None:
            function = _function(getattr(item, "obj", None))
            if function is not kept[0] or function.__code__ is not kept[1] or function.__defaults__ is not kept[2]:
                self.found.add(item.nodeid + ": the test's own code was changed after collection")

    def after_call(self):
        """Before fixtures are torn down: only product code in a hot place counts, a fixture's patches are the test's own."""
        if self.quick():
            self.look(product_only=True)

    def after_test(self):
        """After teardown: what is still changed is nobody's monkeypatch."""
        if self.quick():
            self.look()

    def quick(self):
        """Whether a second look is needed."""
        for row in self.hot:
            if _differ(row[2], row[3]):
                return True
        return sys.gettrace() is not None or sys.getprofile() is not None

    def look(self, product_only=False):
        """Compares the hot places and notes what is found."""
        for row in self.hot:
            if _differ(row[2], row[3]):
                self.compare(row, product_only)
        if not product_only:
            for name, value in (("sys.settrace", sys.gettrace()), ("sys.setprofile", sys.getprofile())):
                if value is not None:
                    self.note(name, value)

    def compare(self, row, product_only=False):
        name, owner, space, held = row
        now = dict(space)
        for key in [key for key in now if type(key) is str]:
            value, was = now[key], held.get(key, held)
            if value is was or key in EXPECTED:
                continue
            if was is held:
                found = _shadows(owner, key) if owner is not None else key in _BUILTINS
                relevant = found and (callable(value) or _descriptor(value) or value is None)
            else:
                relevant = callable(was) or callable(value) or _descriptor(was) or key in WHOLE.get(name, ())
            if relevant and (not product_only or self.product(value)) and not self.installed(key, value):
                self.note(name + "." + key, value)
        for key, was in held.items():
            if key not in now and key not in EXPECTED and (callable(was) or _descriptor(was)) and not product_only:
                self.found.add(f"{name}.{key}: gone")

    def note(self, name, value):
        if not self.own(value) and not (name == "gc.callbacks" and self.installed(None, value)):
            self.found.add(f"{name}: now {self.describe(value)}")

    def end(self):
        """What is found, sorted: every place is looked at once more."""
        for row in self.spaces:
            if _differ(row[2], row[3]):
                self.compare(row)
        self.inside()
        for name, module in self.modules.items():
            other = sys.modules.get(name, module)
            if other is not module and getattr(other, "__file__", 0) != getattr(module, "__file__", 1):
                self.note(f"sys.modules[{name}]", other)
        for nodeid, (function, code, defaults) in self.items.items():
            if function.__code__ is not code or function.__defaults__ is not defaults:
                self.found.add(nodeid + ": the test's own code was changed after collection")
        states = {**_states(), **_finders()}
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
            for one in _hookimpls(config, self.known) - impls:
                self.found.add("hook " + " ".join(one).replace(self.tree, ""))
            for one in _instances(config) - instances:
                self.found.add("instance attribute " + one)
        return sorted(_clean(text) for text in self.found)

    def inside(self):
        """Functions whose code, defaults or closure are others now."""
        new = _insides([row[2] for row in self.functions])
        for what, was, now in zip(("code", "defaults", "keyword defaults", "closure"), self.insides, new):
            same = map(is_, was, now) if what in ("code", "defaults") else map(eq, was, now)
            if not all(same):
                for (name, key, _), one, two in zip(self.functions, was, now):
                    if one is not two and (what in ("code", "defaults") or one != two):
                        self.found.add(f"{name}.{key}: another {what}")

    def describe(self, value):
        """Who ``value`` is, without addresses, temporary folders or line numbers: base must give the same text."""
        try:
            code = _code(value)
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

    def short(self, path):
        return path[len(self.tree) :] if path.startswith(self.tree) else "/".join(path.split("/")[-2:])

    def product(self, value):
        """Whether ``value``'s code lies in the tree and is not sealed."""
        try:
            code = _code(value)
            if code is None:
                kind = value if isinstance(value, type) else type(value)
                path = getattr(sys.modules.get(kind.__module__), "__file__", "") or ""
            else:
                path = code.co_filename
            return (path.startswith(self.tree) and path[len(self.tree) :] not in self.sealed) or path.startswith("<")
        except BaseException:
            return True

    def own(self, value):
        """Whether ``value`` is a function that a sealed file defines: what the oracle does to itself is its own affair.

        A code object can claim any file, so it must be equal to one that the sealed source compiles to.
        """
        code = _code(value)
        if code is None or not code.co_filename.startswith(self.tree):
            return False
        path = code.co_filename[len(self.tree) :]
        if path not in self.sealed:
            return False
        return self.genuine(code)

    def installed(self, key, value):
        """Whether ``value`` is an installed package's own function of that very name (typing_extensions mends typing)."""
        code = _function(value) and value.__code__
        return bool(code) and key in (None, code.co_name) and "/site-packages/" in code.co_filename and self.genuine(code)

    def genuine(self, code):
        path = code.co_filename
        if path not in self.codes:
            self.codes[path] = _compiled(path)
        return code in self.codes[path]


def _compiled(path):
    found = []
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


def _insides(functions):
    """Four lists: code, defaults, keyword defaults (as identities), callables in closures (as identities)."""
    codes, defaults, keywords, closures = (list(map(get, functions)) for get in _ALL)
    for number in (at for at, each in enumerate(keywords) if each is not None):
        keywords[number] = [(key, id(value)) for key, value in keywords[number].items()]
    for number in (at for at, each in enumerate(closures) if each is not None):
        closures[number] = _cells(closures[number])
    return codes, defaults, keywords, closures


def _differ(space, held):
    """Whether the same names hold the same objects in the same order. No ``__eq__`` runs: it might be the candidate's."""
    return len(space) != len(held) or not all(map(is_, space.values(), held.values()))


def _cells(closure):
    found = []
    for cell in closure:
        try:
            value = cell.cell_contents
        except ValueError:
            value = None
        found.append(id(value) if isinstance(value, CELL) else None)
    return found


def _function(value):
    """The plain function below bound methods."""
    value = getattr(value, "__func__", value)
    return value if type(value) is FUNCTION else None


def _code(value):
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


def _descriptor(value):
    return hasattr(type(value), "__get__")


def _shadows(owner, key):
    """Whether a new attribute of a class hides an inherited one, or is one that Python itself looks for."""
    return (key.startswith("__") and key.endswith("__")) or any(key in base.__dict__ for base in owner.__mro__[1:])


import builtins as _builtins  # noqa: E402

_BUILTINS = frozenset(vars(_builtins))


def _finders():
    return {"sys.meta_path": list(sys.meta_path), "sys.path_hooks": list(sys.path_hooks)}


def _states():
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
        **_finders(),
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


def _hookimpls(config, known=()):
    """Every hook implementation whose function is not ``known``, as (hook, plugin, where)."""
    found = set()
    for hook, caller in vars(config.pluginmanager.hook).items():
        for impl in getattr(caller, "get_hookimpls", list)():
            if id(getattr(impl.function, "__func__", impl.function)) in known:
                continue
            code = _code(impl.function)
            where = f"{code.co_filename}:{code.co_name}" if code is not None else type(impl.function).__name__
            found.add((hook, str(impl.plugin_name) if not str(impl.plugin_name).isdigit() else "a plugin", where))
    return found


def _instances(config):
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


def _clean(text):
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:300]


class _Observer:
    """Sees every module of the standard library at the end of its import, before anybody else can touch it."""

    def __init__(self, late):
        self.late = late
        self.names = frozenset(getattr(sys, "stdlib_module_names", ())) | {"hypothesis", "_pytest", "pytest", "pluggy"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.names:
            return None
        from importlib.machinery import PathFinder, SourceFileLoader

        spec = PathFinder.find_spec(name, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader.__class__ = _observed(SourceFileLoader, self.late)
        return spec


def _observed(base, late):
    class SourceFileLoader(base):
        def exec_module(self, module):
            self.__class__ = base
            base.exec_module(self, module)
            late(module)

    return SourceFileLoader
