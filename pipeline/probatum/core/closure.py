"""A test's ``source_digest``: its canonical closure over sealed files, the same on every Python from 3.11 up.

The closure holds the test, its decorators without skip markers, defaults, class shell, helpers, constants, fixtures (by
parameter name, through the conftest chain, autouse ones too), hooks, and sealed data files that a string in it names. It
follows sealed files only and imports nothing. Names are taken without regard to scope, so that it holds too much rather than
too little. Layout is out: comments, blank lines, quotes, docstrings (unless something in the closure reads ``__doc__``).
"""

from __future__ import annotations

import ast
import fnmatch
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping

from ..errors import one_line
from .astform import form, without_docstring
from .canonical import escape
from .family import Family, fixtures_of, generated, is_fixture
from .markers import Strip
from .modules import Library, Module, Unresolved, dotted, parse

_IDENTIFIER = re.compile(r"[^\W\d]\w*\Z")
_REFLECTION = frozenset({"globals", "eval", "exec", "locals", "vars", "__import__"})
_DOC_READERS = frozenset({"__doc__", "getdoc", "doctest"})
_MODULE_NAMES = (
    "pytestmark",
    "pytest_plugins",
    "setUpModule",
    "tearDownModule",
    "setup_module",
    "teardown_module",
    "setup_function",
    "teardown_function",
    "load_tests",
)
_ROUNDS = 20


def split_id(test: str) -> tuple[str, str]:
    """``PATH::CLASS::NAME[param]`` as path and name without the parameters; the name is "" for a whole module."""
    path, _, name = test.partition("::")
    return path, name.partition("[")[0]


class Closures:
    """Digests over one set of sealed files. ``files`` maps path to bytes; ``roots`` are the folders on sys.path."""

    def __init__(self, files: Mapping[bytes, bytes], roots: Iterable[bytes] = (b"",)) -> None:
        self.raw = Library(files, roots)
        self.stripped = _Stripped(self.raw)
        self._known: dict[tuple[bytes, str], str] = {}

    def digest(self, path: bytes, name: str) -> str:
        """64 hex digits for the test ``CLASS::NAME`` (or ``CLASS.NAME``) in ``path``; for the whole module when empty.

        Raises Unresolved when there is no such test, or when a file in its closure does not parse.
        """
        name = name.partition("[")[0].replace(".", "::")
        key = (path, name)
        if key not in self._known:
            try:
                text = self._closure(path, name)
            except RecursionError:
                raise Unresolved(escape(path), f"{one_line(name)} is nested too deeply to digest", "flatten it") from None
            self._known[key] = hashlib.sha256(text.encode("ascii")).hexdigest()
        return self._known[key]

    def _closure(self, path: bytes, name: str) -> str:
        """Walked again with what the last walk used until nothing new is used: a method may be named from a helper."""
        used: set[str] = set()
        for _ in range(_ROUNDS):
            walk = _Walk(self.stripped, path, name, frozenset(used))
            text = walk.text()
            if walk.used <= used:
                break
            used |= walk.used
        return text


class _Stripped(Library):
    """The same files with every skip marker taken away."""

    def __init__(self, raw: Library) -> None:
        super().__init__(raw.files, raw.roots)
        self.raw = raw
        self._fixtures: dict[bytes, dict[str, list[str]]] = {}

    def fixtures(self, module: Module) -> dict[str, list[str]]:
        """``fixtures_of`` once a module."""
        if module.path not in self._fixtures:
            self._fixtures[module.path] = fixtures_of(module)
        return self._fixtures[module.path]

    def module(self, path: bytes) -> Module:
        if path not in self._modules:
            original = self.raw.module(path)
            tree = Strip(original, self.raw).visit(parse(self.files[path], path))
            self._modules[path] = Module(path, tree)
        return self._modules[path]


class _Walk:
    """One breadth-first walk. Items are numbered as they are first named, so paths do not matter."""

    def __init__(self, library: _Stripped, path: bytes, name: str, used: frozenset[str]) -> None:
        self.library, self.name = library, name
        self.home = library.module(path)
        self.before = used
        self.used: set[str] = set()
        self.docs = bool(used & _DOC_READERS)
        self.numbers: dict[tuple[str, bytes, str], int] = {}
        self.queue: list[tuple[str, bytes, str]] = []
        self.conftests = [library.module(conftest) for conftest in library.conftests(path)]
        self.levels = [self.home, *self.conftests, *self._plugins()]
        self.reach = list(self._reach())
        self.family = Family(library, self.home, name) if name else None

    def text(self) -> str:
        items: list[list[object]] = []
        self._number("root", b"", "")
        while len(items) < len(self.queue):
            kind, path, name = self.queue[len(items)]
            items.append(self._item(kind, path, name))
        return json.dumps(items, separators=(",", ":"), sort_keys=True)

    def _number(self, kind: str, path: bytes, name: str) -> int:
        key = (kind, path, name)
        if key not in self.numbers:
            self.numbers[key] = len(self.queue)
            self.queue.append(key)
        return self.numbers[key]

    def _item(self, kind: str, path: bytes, name: str) -> list[object]:
        if kind == "data":
            return [kind, hashlib.sha256(self.library.files[path]).hexdigest()]
        if kind == "root":
            return self._root()
        module = self.library.module(path)
        if kind == "module":
            return self._forms(module, without_docstring(module.tree.body))
        if kind == "effects":
            return [sorted(module.futures), *self._forms(module, module.effects)]
        if kind == "hooks":
            return self._names(module, [key for key in module.bindings if key.startswith("pytest_")])
        return self._binding(module, name)

    def _root(self) -> list[object]:
        found: list[object] = []
        if not self.name:
            found.append(["module", self._number("module", self.home.path, "")])
        elif self.family is not None and self.family.classes:
            for module, node, statements in self.family.shells(self.before):
                shell = [*node.bases, *node.keywords, *node.decorator_list, *statements]
                found.append([node.name, *self._forms(module, shell)])
        else:
            found.append(self._top_level(self.name))
        found.append(["effects", self._number("effects", self.home.path, "")])
        for name in (*_MODULE_NAMES, *(key for key in self.home.bindings if key.startswith("pytest_"))):
            if name in self.home.bindings and name not in ("pytest_plugins", "pytest"):
                found.append([name, self._number("name", self.home.path, name)])
        for module in self.levels[1:]:
            found.append(["hooks", self._number("hooks", module.path, ""), self._number("effects", module.path, "")])
        for level, name in self._autouse():
            found.append(["autouse", name, self._number("name", level.path, name)])
        return found

    def _top_level(self, name: str) -> list[object]:
        if name in self.home.bindings:
            return [name, self._number("name", self.home.path, name)]
        for star in self.home.stars:
            target = self.library.find(self.library.absolute(star, self.home), self.home)
            if target is not None and name in self.library.module(target).bindings:
                return [name, self._number("name", target, name)]
        close = generated(name, self.home.tree.body)
        if close:
            return [close, self._number("name", self.home.path, close)]
        raise Unresolved(escape(self.home.path), f"has no test {one_line(name)!r}", "name it as PATH::[CLASS::]NAME")

    def _autouse(self) -> Iterator[tuple[Module, str]]:
        for level in self.reach:
            for name in sorted(level.bindings):
                found = self._defined(level, name, 0)
                if found is not None and is_fixture(found)[1]:
                    yield level, name

    def _defined(self, module: Module, name: str, depth: int) -> ast.stmt | None:
        """The function that ``name`` is, through imports from sealed files."""
        found = module.definitions.get(name)
        if found is not None or depth > 8:
            return found
        for node, alias in module.imports.get(name, ()):
            target = (
                self.library.find(self.library.absolute(node, module), module) if isinstance(node, ast.ImportFrom) else None
            )
            if target is not None:
                return self._defined(self.library.module(target), alias.name, depth + 1)
        return None

    def _plugins(self) -> list[Module]:
        """Sealed modules that ``pytest_plugins`` names, in the test's module or its conftest chain."""
        found: dict[bytes, Module] = {}
        queue = [self.home, *self.conftests]
        for module in queue:
            for statement in module.bindings.get("pytest_plugins", ()):
                for node in ast.walk(statement):
                    if isinstance(node, ast.Constant) and isinstance(node.value, str):
                        target = self.library.find(node.value, module)
                        if target is not None and target not in found:
                            found[target] = self.library.module(target)
                            queue.append(found[target])
        return list(found.values())

    def _reach(self) -> Iterator[Module]:
        """The modules whose fixtures the test may ask for: every level, each followed by what it imports whole."""
        for level in self.levels:
            yield level
            for star in level.stars:
                target = self.library.find(self.library.absolute(star, level), level)
                if target is not None:
                    yield self.library.module(target)

    def _names(self, module: Module, names: Iterable[str]) -> list[object]:
        return [[name, self._number("name", module.path, name)] for name in sorted(names)]

    def _binding(self, module: Module, name: str) -> list[object]:
        found: list[object] = []
        for statement in module.bindings.get(name, ()):
            if isinstance(statement, (ast.Import, ast.ImportFrom)):
                found.append(self._import(module, statement, name))
            else:
                found += self._forms(module, [statement])
        if module.effects and module is not self.home:
            found.append(["effects", self._number("effects", module.path, "")])
        return found

    def _import(self, module: Module, node: ast.Import | ast.ImportFrom, name: str) -> list[object]:
        """Only the alias that binds ``name``: the grouping of imports is layout."""
        for alias in node.names:
            bound = alias.asname or (alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name)
            if bound != name:
                continue
            if isinstance(node, ast.Import):
                return ["import", alias.name, alias.asname or ""]
            source = self.library.absolute(node, module)
            found: list[object] = ["from", node.module or "", node.level, alias.name, alias.asname or ""]
            target = self.library.find(source, module)
            if target is not None:
                inner = self.library.module(target)
                if alias.name in inner.bindings or inner.stars:
                    return [*found, self._number("name", target, self._star(inner, alias.name) or alias.name)]
            return found
        return []

    def _star(self, module: Module, name: str) -> str:
        return name if name in module.bindings else ""

    def _forms(self, module: Module, nodes: Iterable[ast.AST]) -> list[object]:
        nodes = list(nodes)
        labels: dict[str, list[int]] = {}
        for node in nodes:
            self._references(module, node, labels)
        texts = [hashlib.sha256(form(node, docs=self.docs).encode("ascii", "backslashreplace")).hexdigest() for node in nodes]
        return [texts, labels]

    def _references(self, module: Module, root: ast.AST, labels: dict[str, list[int]]) -> None:
        names: set[str] = set()
        chains: set[tuple[str, ...]] = set()
        words: set[str] = set()
        inside: set[int] = set()
        imports: list[ast.Import | ast.ImportFrom] = []
        for node in ast.walk(root):
            if isinstance(node, ast.Attribute):
                self.used.add(node.attr)
                chain = dotted(node)
                if chain and id(node) not in inside:
                    chains.add(tuple(chain))
                    inner: ast.expr = node
                    while isinstance(inner, ast.Attribute):
                        inner = inner.value
                        inside.add(id(inner))
            elif isinstance(node, ast.Name) and id(node) not in inside:
                names.add(node.id)
            elif isinstance(node, ast.arg):
                words.add(node.arg)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                words.add(node.value)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                imports.append(node)
        self.used |= names | {word for word in words if _IDENTIFIER.match(word)}
        for name in sorted(names | {chain[0] for chain in chains}):
            self._follow(module, name, labels)
            if name in _REFLECTION:
                labels.setdefault("module", []).append(self._number("module", module.path, ""))
        for found in sorted({*chains, *((name,) for name in names)}):
            self._follow_chain(module, list(found), labels)
        for node in imports:
            self._follow_local_import(module, node, labels)
        for word in sorted(words):
            self._follow_word(word, labels)

    def _follow(self, module: Module, name: str, labels: dict[str, list[int]]) -> None:
        if self.family is not None and self.family.holds(module, name):
            return
        if name in module.bindings:
            labels.setdefault(name, []).append(self._number("name", module.path, name))
            return
        for star in module.stars:
            target = self.library.find(self.library.absolute(star, module), module)
            if target is not None:
                inner = self.library.module(target)
                if name in inner.bindings:
                    labels.setdefault(name, []).append(self._number("name", target, name))
                elif inner.stars and target != module.path:
                    self._follow(inner, name, labels)

    def _follow_chain(self, module: Module, chain: list[str], labels: dict[str, list[int]]) -> None:
        """``helpers.make`` after ``import helpers``: that name of the sealed module; a bare ``helpers``: all of it."""
        for node, alias in module.imports.get(chain[0], ()):
            if isinstance(node, ast.Import):
                self._member(module, alias.name if alias.asname else chain[0], chain[1:], labels)
            else:
                name = ".".join(filter(None, (self.library.absolute(node, module), alias.name)))
                self._member(module, name, chain[1:], labels)

    def _member(self, module: Module, name: str, rest: list[str], labels: dict[str, list[int]]) -> None:
        while rest and (self.library.find(f"{name}.{rest[0]}", module) or self.library.is_package(f"{name}.{rest[0]}", module)):
            name, rest = f"{name}.{rest[0]}", rest[1:]
        target = self.library.find(name, module)
        if target is None:
            return
        inner = self.library.module(target)
        if rest and rest[0] in inner.bindings:
            if self.family is None or not self.family.holds(inner, rest[0]):
                labels.setdefault(f"{name}.{rest[0]}", []).append(self._number("name", target, rest[0]))
        elif target != self.home.path:
            labels.setdefault(name, []).append(self._number("module", target, ""))

    def _follow_local_import(self, module: Module, node: ast.Import | ast.ImportFrom, labels: dict[str, list[int]]) -> None:
        """An import inside a function: what it names is followed whole, for its local uses are not traced."""
        for alias in node.names:
            if isinstance(node, ast.Import):
                self._member(module, alias.name, [], labels)
            else:
                source = self.library.absolute(node, module)
                self._member(module, ".".join(filter(None, (source, alias.name))), [], labels)
                self._member(module, source, [alias.name] if alias.name != "*" else [], labels)

    def _follow_word(self, word: str, labels: dict[str, list[int]]) -> None:
        """A parameter or a string: a fixture of that name, at every level that has one; a sealed data file of that name."""
        if _IDENTIFIER.match(word):
            for level in self.reach:
                for name in self.library.fixtures(level).get(word, ()):
                    labels.setdefault(f"fixture {word}", []).append(self._number("name", level.path, name))
        elif "." in word and len(word) < 256:
            base = word.rpartition("/")[2]
            wild = "*" in base
            for known, paths in self.library.data.items():
                if known == base or (wild and base.strip("*.") and fnmatch.fnmatchcase(known, base)):
                    for path in paths:
                        labels.setdefault(f"data {known}", []).append(self._number("data", path, ""))
