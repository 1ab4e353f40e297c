"""A control twin is a sealed test changed so that it cannot pass whatever the code does; a twin that passes was forged.

Text in, text out: spans are edited in place, so that line numbers and formatting stay. Changed is only what decides
(expected sides of ``==``, whole assertions, the end of the body) and only where it is certainly reached; inputs and bounds
never, because that would accuse honest code.
"""

from __future__ import annotations

import ast
import functools
import itertools
import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from .twin_rows import rows
from .twin_values import Edit, Text, is_literal, shifted

Kind = Literal["value", "sentinel", "assert", "end"]
KINDS: tuple[Kind, ...] = ("value", "sentinel", "assert", "end")

Function = ast.FunctionDef | ast.AsyncFunctionDef

EQUAL = frozenset(
    f"assert{name}Equal{s}"
    for name in ("", "List", "Dict", "Tuple", "Set", "Sequence", "Count", "MultiLine")
    for s in ("", "s")
)
PLAIN_MANAGERS = frozenset(
    {"subTest", "test", "warns", "catch_warnings", "open", "context", "object", "dict", "patch", "localcontext"}
)
"""Context managers that never swallow an exception, by the last part of their name. Any other hides its body from us."""


class Site(msgspec.Struct, frozen=True):
    """A test function as written, the node ids that it stands behind, and what each kind of twin would edit."""

    name: str
    line: int
    ids: tuple[str, ...]
    edits: Mapping[Kind, tuple[Edit, ...]]


def sites(source: bytes, ids: Iterable[str], nonce: str) -> list[Site]:
    """The test functions of a module behind ``ids`` (full node ids of that module), in source order.

    A module that cannot be parsed, or is no UTF-8, has none. ``nonce`` chooses among equal edits and makes constants fresh.
    """
    text, defined = _parsed(source)
    if text is None or defined is None:
        return []
    found: dict[Function, list[str]] = {}
    for each in ids:
        qualname = each.partition("::")[2].partition("[")[0]
        function = defined.find(qualname.split("::"))
        if function is not None:
            found.setdefault(function, []).append(each)
    rows = []
    for function in sorted(found, key=lambda node: node.lineno):
        rng = random.Random(f"{nonce} {function.lineno} {function.name}")
        edits = _edits(text, function, found[function], rng)
        rows.append(
            Site(function.name, function.lineno, tuple(found[function]), {kind: edit for kind, edit in edits.items() if edit})
        )
    return rows


def twin(source: bytes, chosen: Iterable[tuple[Site, Kind]], nonce: str) -> bytes | None:
    """``source`` with the edits of every chosen site; None when the result is no longer Python of as many lines."""
    edits = sorted({edit for site, kind in chosen for edit in site.edits[kind]}, key=lambda edit: (edit.start, edit.end))
    if any(one.end > two.start for one, two in itertools.pairwise(edits)):
        return None
    out, at = [], 0
    for edit in edits:
        out += [source[at : edit.start], edit.text.encode()]
        at = edit.end
    result = marked(b"".join([*out, source[at:]]), nonce)
    try:
        ast.parse(result)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return result


def marked(source: bytes, nonce: str) -> bytes:
    """``source`` and a closing comment that only this gate run has: the digest of a file tells nobody what it is."""
    end = b"" if source.endswith(b"\n") or not source else b"\n"
    return source + end + b"# " + nonce.encode() + b"\n"


@functools.lru_cache(maxsize=64)
def _parsed(source: bytes) -> tuple[Text | None, _Scope | None]:
    text = Text.of(source)
    return text, None if text is None else _Scope(text.tree)


class _Scope:
    """Which function a qualified name means, where that is certain: defined once, not assigned, bases in this module."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = self.names(tree.body)

    @staticmethod
    def names(body: Iterable[ast.stmt]) -> dict[str, ast.stmt]:
        found: dict[str, ast.stmt] = {}
        for statement in body:
            if isinstance(statement, Function | ast.ClassDef):
                found[statement.name] = statement
            else:
                for node in ast.walk(statement):
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
                        found[node.id] = statement
                    elif isinstance(node, Function | ast.ClassDef | ast.ExceptHandler | ast.alias):
                        found[(node.name or "").partition(".")[0]] = statement
        return found

    def find(self, parts: list[str]) -> Function | None:
        names = self.module
        for part in parts[:-1]:
            node = names.get(part)
            if not isinstance(node, ast.ClassDef):
                return None
            names = self.members(node, 0)
        found = names.get(parts[-1])
        return found if isinstance(found, Function) else None

    def members(self, node: ast.ClassDef, depth: int) -> dict[str, ast.stmt]:
        """Own members over those of bases that this module defines. A base from elsewhere hides nothing of our own."""
        found: dict[str, ast.stmt] = {}
        for base in reversed(node.bases) if depth < 8 else ():
            other = self.module.get(base.id) if isinstance(base, ast.Name) else None
            if isinstance(other, ast.ClassDef) and other is not node:
                found.update(self.members(other, depth + 1))
        return {**found, **self.names(node.body)}


def _edits(text: Text, function: Function, ids: Collection[str], rng: random.Random) -> dict[Kind, tuple[Edit, ...]]:
    if any(isinstance(node, ast.Yield | ast.YieldFrom) for node in _own(function.body)):
        return {}
    reached = list(_certain(function.body))
    asserts = [node for node in reached if isinstance(node, ast.Assert) or _method(function, node)]
    sides = [side for node in asserts for side in _sides(function, node)]
    values: list[tuple[Edit, ...]] = []
    for side in sides:
        edits = _value(text, function, reached, side, ids, rng)
        if edits:
            values.append(edits)
    return {
        "value": rng.choice(values) if values else (),
        "sentinel": (text.over(rng.choice(sides)[0], "object()"),) if sides else (),
        "assert": _failing(text, function, rng.choice(asserts)) if asserts else (),
        "end": _end(text, function, rng),
    }


def _value(
    text: Text,
    function: Function,
    reached: list[ast.stmt],
    side: tuple[ast.expr, ast.expr],
    ids: Collection[str],
    rng: random.Random,
) -> tuple[Edit, ...]:
    """The expected side made unequal by a fresh constant: in place, where a local name was set, or in parametrize's rows."""
    expected = side[0]
    if isinstance(expected, ast.Constant) and isinstance(expected.value, bool):
        return ()  # a fresh object is as unequal, and no other test can have left it behind
    if not isinstance(expected, ast.Name):
        return shifted(text, expected, rng)
    uses = [node for part in function.body for node in ast.walk(part) if isinstance(node, ast.Name) and node.id == expected.id]
    if len(uses) == 1:
        return rows(text, function, expected.id, ids, rng)
    if len(uses) == 2:
        for statement in reached:
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and statement.targets[0] in uses:
                return shifted(text, statement.value, rng) if is_literal(statement.value) else ()
    return ()


def _sides(function: Function, node: ast.stmt) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(expected, actual) of every equality that ``node`` asserts. Of two literals, or none, the right one is expected."""
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.Assert):
        pairs += _compared(node.test)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Attribute):
        args, name = node.value.args, node.value.func.attr
        if any(isinstance(arg, ast.Starred) for arg in args):
            return
        if name in EQUAL and len(args) >= 2:
            pairs.append((args[0], args[1]))
        elif name == "assertTrue" and args:
            pairs += _compared(args[0])
    for left, right in pairs:
        yield (left, right) if is_literal(left) and not is_literal(right) else (right, left)


def _compared(test: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [pair for value in test.values for pair in _compared(value)]
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        right = test.comparators[0]
        if isinstance(test.ops[0], ast.Eq):
            return [(test.left, right)]
        boolean = isinstance(right, ast.Constant) and isinstance(right.value, bool)
        if isinstance(test.ops[0], ast.Is) and (boolean or isinstance(right, ast.Name)):
            return [(test.left, right)]
    return []


def _failing(text: Text, function: Function, node: ast.stmt) -> tuple[Edit, ...]:
    """The assertion still runs what it ran, and then fails."""
    if isinstance(node, ast.Assert):
        return (text.before(node.test, "("), text.after(node.test, ") and False"))
    first = function.args.args[0].arg
    return (text.before(node, "("), text.after(node, f", {first}.fail())"))


def _end(text: Text, function: Function, rng: random.Random) -> tuple[Edit, ...]:
    """A raise after the last statement, unless the body may be left before."""
    if any(isinstance(node, ast.Return) for node in _own(function.body)):
        return ()
    last = function.body[-1]
    failure = f'raise AssertionError("{rng.getrandbits(32):08x}")'
    if isinstance(last, ast.Raise | ast.Continue | ast.Break):
        return ()
    if not hasattr(last, "body") and not isinstance(last, ast.Match):
        return (text.after(last, "; " + failure),)
    return text.blank_after(last, text.indent(last) + failure)


def _method(function: Function, node: ast.stmt) -> bool:
    """``self.assertSomething(...)`` as a statement."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr.startswith("assert")
        and not node.value.func.attr.startswith(("assertRaises", "assertWarns", "assertLogs", "assertNoLogs"))
        and isinstance(node.value.func.value, ast.Name)
        and bool(function.args.args)
        and node.value.func.value.id == function.args.args[0].arg
    )


def _certain(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that a run of ``body`` that ends well has executed. A failure or a skip on the way is no pass either."""
    for node in body:
        yield node
        if isinstance(node, ast.With | ast.AsyncWith) and all(_plain(item.context_expr) for item in node.items):
            yield from _certain(node.body)
        elif isinstance(node, ast.Try) and not node.handlers and not _leaves_by(node.finalbody):
            yield from _certain([*node.body, *node.finalbody])
        elif isinstance(node, ast.For) and _runs(node.iter):
            yield from _certain(node.body)
        if _leaves_by([node]):
            return


def _leaves_by(body: Iterable[ast.stmt]) -> bool:
    return any(isinstance(each, ast.Return | ast.Break | ast.Continue) for each in _own(body))


def _runs(iterable: ast.expr) -> bool:
    """Whether a loop over it has at least one turn: a display, or range(N), with something in it."""
    if isinstance(iterable, ast.List | ast.Tuple):
        return bool(iterable.elts) and not any(isinstance(each, ast.Starred) for each in iterable.elts)
    return (
        isinstance(iterable, ast.Call)
        and isinstance(iterable.func, ast.Name)
        and iterable.func.id == "range"
        and len(iterable.args) == 1
        and isinstance(iterable.args[0], ast.Constant)
        and isinstance(iterable.args[0].value, int)
        and iterable.args[0].value > 0
    )


def _plain(manager: ast.expr) -> bool:
    called = manager.func if isinstance(manager, ast.Call) else manager
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name in PLAIN_MANAGERS and isinstance(manager, ast.Call)


def _own(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """All nodes below, but not those of functions and classes defined inside."""
    left = list(body)
    while left:
        node = left.pop()
        yield node
        if not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            left.extend(ast.iter_child_nodes(node))
