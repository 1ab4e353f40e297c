"""The class shell of a test: the classes around it and their sealed bases, without the tests it does not use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ..errors import one_line
from .astform import without_docstring
from .canonical import escape
from .markers import constant_text
from .modules import Function, Library, Module, Unresolved, bound_by, dotted, last_definition

LIFECYCLE = frozenset(
    {
        "setUp",
        "tearDown",
        "setUpClass",
        "tearDownClass",
        "asyncSetUp",
        "asyncTearDown",
        "setup_method",
        "teardown_method",
        "setup_class",
        "teardown_class",
        "setup",
        "teardown",
        "run",
        "debug",
        "subTest",
        "id",
        "shortDescription",
    }
)


class Family:
    """The classes ``A``, ``B`` of ``A::B::test`` and every sealed class that they inherit from."""

    def __init__(self, library: Library, home: Module, name: str) -> None:
        self.library = library
        parts = name.split("::")
        self.test = parts[-1]
        self.classes: list[tuple[Module, ast.ClassDef]] = []
        body: Iterable[ast.AST] = home.tree.body
        module = home
        for index, part in enumerate(parts[:-1]):
            found = last_definition(body, part)
            if not isinstance(found, ast.ClassDef):
                raise Unresolved(escape(home.path), f"has no class {one_line(part)!r}", "name it as PATH::[CLASS::]NAME")
            self._add(module, found)
            if index == len(parts) - 2:
                self._find_test(home, found)
            body = found.body

    def holds(self, module: Module, name: str) -> bool:
        """Whether ``name`` is a class of the family: its shell is in the closure already."""
        return any(node.name == name and module.definitions.get(name) is node for _, node in self.classes)

    def shells(self, used: frozenset[str]) -> Iterator[tuple[Module, ast.ClassDef, list[ast.stmt]]]:
        """Each class with the statements of its body that count, given the names that the closure uses."""
        for module, node in self.classes:
            yield module, node, [statement for statement in without_docstring(node.body) if self._counts(statement, used)]

    def _counts(self, statement: ast.stmt, used: frozenset[str]) -> bool:
        if isinstance(statement, Function):
            fixture, autouse = is_fixture(statement)
            return (
                statement.name in (self.test, *LIFECYCLE)
                or (statement.name.startswith("__") and statement.name.endswith("__"))
                or autouse
                or statement.name in used
                or (fixture and fixture_name(statement) in used)
            )
        if isinstance(statement, ast.ClassDef):
            return statement.name in used and not any(statement is node for _, node in self.classes)
        return True

    def _add(self, module: Module, node: ast.ClassDef) -> None:
        if any(node is known for _, known in self.classes):
            return
        self.classes.append((module, node))
        for base in node.bases:
            found = self._resolve(module, base.value if isinstance(base, ast.Subscript) else base, 0)
            if found is not None:
                self._add(*found)

    def _resolve(self, module: Module, base: ast.expr, depth: int) -> tuple[Module, ast.ClassDef] | None:
        chain = dotted(base)
        if not chain or depth > 8:
            return None
        found = module.definitions.get(chain[0])
        for part in chain[1:]:
            found = last_definition(found.body, part) if isinstance(found, ast.ClassDef) else None
        if isinstance(found, ast.ClassDef):
            return module, found
        for imported, alias in module.imports.get(chain[0], ()):
            if isinstance(imported, ast.ImportFrom):
                inner = self._at(module, self.library.absolute(imported, module), [alias.name, *chain[1:]], depth)
            else:
                inner = self._at(module, alias.name if alias.asname else chain[0], chain[1:], depth)
            if inner is not None:
                return inner
        for star in module.stars:
            inner = self._at(module, self.library.absolute(star, module), chain, depth)
            if inner is not None:
                return inner
        return None

    def _at(self, importer: Module, name: str, chain: list[str], depth: int) -> tuple[Module, ast.ClassDef] | None:
        while len(chain) > 1 and self.library.find(".".join(filter(None, (name, chain[0]))), importer):
            name, chain = ".".join(filter(None, (name, chain[0]))), chain[1:]
        target = self.library.find(name, importer)
        if target is None or not chain or target == importer.path:
            return None
        value: ast.expr = ast.Name(chain[0])
        for part in chain[1:]:
            value = ast.Attribute(value, part)
        return self._resolve(self.library.module(target), value, depth + 1)

    def _find_test(self, home: Module, leaf: ast.ClassDef) -> None:
        for _, node in self.classes:
            if any(self.test in bound_by(statement) for statement in node.body):
                return
        for _, node in self.classes:
            close = generated(self.test, node.body)
            if close:
                self.test = close
                return
        raise Unresolved(
            escape(home.path),
            f"class {one_line(leaf.name)} has no test {one_line(self.test)!r}",
            "name it as PATH::[CLASS::]NAME",
        )


def is_fixture(node: ast.AST) -> tuple[bool, bool]:
    """Whether a function is a pytest fixture, and whether it is an autouse one (anything but a constant false counts)."""
    for decorator in node.decorator_list if isinstance(node, Function) else ():
        call = decorator if isinstance(decorator, ast.Call) else None
        target = call.func if call is not None else decorator
        word = target.attr if isinstance(target, ast.Attribute) else target.id if isinstance(target, ast.Name) else ""
        if word == "yield_fixture" or word.endswith("fixture"):
            autouse = next((item.value for item in call.keywords if item.arg == "autouse"), None) if call is not None else None
            return True, autouse is not None and not (isinstance(autouse, ast.Constant) and not autouse.value)
    return False, False


def fixture_name(node: ast.AST) -> str:
    """The name under which a fixture is asked for: ``name=`` or the function's."""
    if not isinstance(node, Function):
        return ""
    for decorator in node.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "name" and constant_text(keyword.value):
                return constant_text(keyword.value)
    return node.name


def fixtures_of(module: Module) -> dict[str, list[str]]:
    """Fixture name to the top-level names that may answer to it: fixture functions, and names that an import or call makes."""
    found: dict[str, list[str]] = {}
    for name in sorted(module.bindings):
        node = module.definitions.get(name)
        if node is None or is_fixture(node)[0]:
            found.setdefault(name, []).append(name)
        if node is not None and is_fixture(node)[0] and fixture_name(node) != name:
            found.setdefault(fixture_name(node), []).append(name)
    return found


def generated(name: str, body: Iterable[ast.AST]) -> str:
    """The decorated function that ``name`` was generated from (``test_add_0_zeros`` from ``test_add``), else ""."""
    best = ""
    for node in body:
        if (
            isinstance(node, Function)
            and node.decorator_list
            and name.startswith(node.name + "_")
            and len(node.name) > len(best)
        ):
            best = node.name
    return best
