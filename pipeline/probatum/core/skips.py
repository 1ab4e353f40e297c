"""Every skip and xfail that can be seen in sealed files without running them.

Seen: decorators, ``pytestmark`` of modules and classes, ``marks=`` of parameters, calls that skip, raised SkipTest, markers
that a fixture or hook adds; aliases and sealed imports are followed. What hides better is seen at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Literal

from .astform import form
from .canonical import escape
from .family import is_fixture
from .markers import CALLS, RAISED, kind_of, meaning
from .modules import Function, FunctionNode, Library, Module
from .records import Body

Scope = Literal["test", "class", "module", "param", "fixture", "hook", "helper"]

_BRANCHES = (
    ast.If,
    ast.Try,
    ast.For,
    ast.While,
    ast.With,
    ast.AsyncFor,
    ast.AsyncWith,
    ast.ExceptHandler,
    ast.Match,
    ast.IfExp,
)


class Skip(Body, frozen=True, kw_only=True):
    """One place that skips. ``name`` is the dotted-by-``::`` definition around it ("" for the module).

    ``condition`` is the source text of what decides ("" for nothing); ``conditional`` whether anything decides at all;
    ``marker`` whether it is a marker, which a forced run can take away.
    """

    path: str
    name: str
    scope: Scope
    kind: str
    condition: str
    conditional: bool
    marker: bool
    line: int
    text: str

    @property
    def stem(self) -> str:
        """``PATH[::NAME]``."""
        return f"{self.path}::{self.name}" if self.name else self.path

    def speaks_of(self, stem: str) -> bool:
        """Whether a test lies under this place: the test itself, its class, its module."""
        return stem == self.stem or stem.startswith(self.stem + "::")


def scan(library: Library, path: bytes) -> list[Skip]:
    """The skips in one sealed file, in the order of their lines. Raises Unresolved when it does not parse."""
    module = library.module(path)
    found = list(_Scan(library, module).body(module.tree.body, (), "", False))
    return sorted(found, key=lambda skip: (skip.line, skip.name, skip.kind))


def same_condition(one: str, other: str) -> bool:
    """Whether two condition texts are one expression, whatever their layout."""
    return _condition(one) == _condition(other)


def _condition(text: str) -> str:
    try:
        return form(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return " ".join(text.split())


class _Scan:
    def __init__(self, library: Library, module: Module) -> None:
        self.library, self.module = library, module
        self.conftest = module.path.rpartition(b"/")[2] == b"conftest.py"

    def body(self, body: Iterable[ast.AST], around: tuple[str, ...], condition: str, branch: bool) -> Iterator[Skip]:
        """Statements at module or class level."""
        for node in body:
            if isinstance(node, Function):
                yield from self.function(node, around, condition, branch)
            elif isinstance(node, ast.ClassDef):
                inside = (*around, node.name)
                for decorator in node.decorator_list:
                    yield from self.decorator(decorator, inside, "class", condition, branch)
                yield from self.body(node.body, inside, condition, branch)
            elif isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_pytestmark(node) and node.value is not None:
                values = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
                for value in values:
                    yield from self.decorator(value, around, "class" if around else "module", condition, branch)
            elif isinstance(node, (*_BRANCHES, ast.match_case)):
                inner = ast.unparse(node.test) if isinstance(node, ast.If) else condition
                yield from self.body(ast.iter_child_nodes(node), around, inner, True)
            elif isinstance(node, (ast.stmt, ast.expr)):
                yield from self.calls(node, around, "class" if around else "module", condition, branch, markers=False)

    def function(self, node: FunctionNode, around: tuple[str, ...], condition: str, branch: bool) -> Iterator[Skip]:
        name = (*around, node.name)
        scope = self.scope_of(node, around)
        for decorator in node.decorator_list:
            yield from self.decorator(decorator, name, "test" if scope == "helper" else scope, condition, branch)
        for statement in node.body:
            yield from self.calls(statement, name, scope, "", False, markers=True)

    def scope_of(self, node: FunctionNode, around: tuple[str, ...]) -> Scope:
        if is_fixture(node)[0]:
            return "fixture"
        if node.name.startswith("pytest_") and not around:
            return "hook"
        if node.name.startswith("test"):
            return "test"
        return "helper"

    def decorator(self, node: ast.expr, name: tuple[str, ...], scope: Scope, condition: str, branch: bool) -> Iterator[Skip]:
        kind, call = kind_of(node, self.module, self.library)
        if not kind:
            yield from self.calls(node, name, scope, condition, branch, markers=False)
            return
        text, decided = self.decides(kind, call)
        if decided == "never":
            return
        conditional = branch or decided == "sometimes"
        yield self.skip(node, name, scope, kind, text or condition, conditional, True)

    def decides(self, kind: str, call: ast.Call | None) -> tuple[str, Literal["always", "sometimes", "never"]]:
        """The condition's text, and whether it can go either way."""
        if kind in ("skip", "unittest.skip", "unittest.expectedFailure") or call is None:
            return "", "always"
        conditions = list(call.args) if kind in ("skipif", "xfail") else call.args[:1]
        conditions += [keyword.value for keyword in call.keywords if keyword.arg == "condition"]
        if not conditions:
            return "", "always"
        constants = [
            bool(item.value) for item in conditions if isinstance(item, ast.Constant) and not isinstance(item.value, str)
        ]
        if kind == "unittest.skipUnless":
            constants = [not value for value in constants]
        text = " or ".join(_text_of(item) for item in conditions)
        if any(constants):
            return text, "always"
        return text, "never" if len(constants) == len(conditions) else "sometimes"

    def calls(
        self, root: ast.AST, name: tuple[str, ...], scope: Scope, condition: str, branch: bool, *, markers: bool
    ) -> Iterator[Skip]:
        """Calls that skip, raised skips and, inside functions, markers that are added; below ``root``."""
        if isinstance(root, ast.Call):
            kind = self.call_kind(root)
            if kind:
                text = ast.unparse(root) if "importorskip" in kind else condition
                yield self.skip(root, name, scope, kind, text, branch or "importorskip" in kind, False)
                return
            for keyword in root.keywords:
                if keyword.arg == "marks":
                    values = keyword.value.elts if isinstance(keyword.value, (ast.List, ast.Tuple)) else [keyword.value]
                    for value in values:
                        yield from self.decorator(value, name, "param", condition, True)
                else:
                    yield from self.calls(keyword.value, name, scope, condition, branch, markers=markers)
            for argument in (root.func, *root.args):
                marker = kind_of(argument, self.module, self.library)[0] if markers else ""
                if marker:
                    text, _ = self.decides(marker, argument if isinstance(argument, ast.Call) else None)
                    yield self.skip(argument, name, scope, marker, text or condition, True, True)
                else:
                    yield from self.calls(argument, name, scope, condition, branch, markers=markers)
            return
        if isinstance(root, ast.Raise) and root.exc is not None:
            kind = RAISED.get(meaning(root.exc, self.module, self.library)[0], "")
            if kind:
                yield self.skip(root, name, scope, kind, condition, branch, False)
                return
        if isinstance(root, (*Function, ast.ClassDef)):
            for decorator in root.decorator_list:
                yield from self.decorator(decorator, (*name, root.name), "helper", condition, True)
        for child in ast.iter_child_nodes(root):
            decided = isinstance(root, _BRANCHES)
            inner = ast.unparse(root.test) if isinstance(root, (ast.If, ast.IfExp)) and child is not root.test else condition
            yield from self.calls(child, name, scope, inner, branch or decided, markers=markers)

    def call_kind(self, node: ast.Call) -> str:
        if isinstance(node.func, ast.Attribute) and node.func.attr == "skipTest":
            return "self.skipTest()"
        name, calls = meaning(node.func, self.module, self.library)
        return "" if calls else CALLS.get(name, "")

    def skip(
        self, node: ast.AST, name: tuple[str, ...], scope: Scope, kind: str, condition: str, conditional: bool, marker: bool
    ) -> Skip:
        return Skip(
            path=escape(self.module.path),
            name="::".join(name),
            scope=scope,
            kind=kind,
            condition=condition,
            conditional=conditional,
            marker=marker,
            line=getattr(node, "lineno", 0),
            text=" ".join(ast.unparse(node).split())[:500],
        )


def _is_pytestmark(node: ast.Assign | ast.AnnAssign) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in targets)


def _text_of(node: ast.expr) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ast.unparse(node)
