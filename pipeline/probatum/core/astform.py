"""One syntax tree has one text, whatever Python (3.11 to 3.14) parsed it and however it was laid out.

Never ``ast.dump``: its format changes between versions. Dropped: positions, contexts, type comments, string prefixes,
fields that are empty or None. Made alike: parts of f-strings (3.12 splits them otherwise), ``del (a, b)`` and ``del a, b``.
"""

from __future__ import annotations

import ast
from typing import Any

_DROPPED = frozenset({"ctx", "type_comment", "kind", "type_ignores"})
_DOCUMENTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)


def form(node: ast.AST, *, docs: bool = False) -> str:
    """The canonical text of ``node``. ``docs``: docstrings count; without it they are layout."""
    out: list[str] = []
    _node(node, out, docs)
    return "".join(out)


def without_docstring(body: list[ast.stmt]) -> list[ast.stmt]:
    """``body`` without a leading string expression."""
    first = body[0] if body else None
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        return body[1:]
    return body


def _node(node: ast.AST, out: list[str], docs: bool) -> None:
    if isinstance(node, ast.JoinedStr) or type(node).__name__ == "TemplateStr":
        out.append(type(node).__name__)
        _value(_joined(getattr(node, "values", [])), out, docs)
        return
    out.append(type(node).__name__)
    out.append("(")
    for name in sorted(node._fields):
        value = getattr(node, name, None)
        if name in _DROPPED or (value is None and not isinstance(node, ast.Constant)):
            continue
        if isinstance(value, list):
            value = _list(node, name, value, docs)
            if not value:
                continue
        elif name == "format_spec" and isinstance(value, ast.JoinedStr) and not _joined(value.values):
            continue
        elif name == "str":
            # An interpolation keeps the text of its expression: the layout of the expression, not its meaning.
            continue
        out.append(name)
        out.append("=")
        _value(value, out, docs)
        out.append(";")
    out.append(")")


def _list(node: ast.AST, name: str, value: list[Any], docs: bool) -> list[Any]:
    if name == "body" and not docs and isinstance(node, _DOCUMENTED):
        return without_docstring(value)
    if name == "targets" and isinstance(node, ast.Delete):
        return [part for target in value for part in _flat(target)]
    return value


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, (ast.Tuple, ast.List)):
        return [part for item in target.elts for part in _flat(item)]
    return [target]


def _joined(values: list[ast.expr]) -> list[ast.expr]:
    """Neighbouring constants are one constant; an empty one is nothing."""
    found: list[ast.expr] = []
    for value in values:
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            before = found[-1] if found else None
            if isinstance(before, ast.Constant) and isinstance(before.value, str):
                found[-1] = ast.Constant(before.value + value.value)
            elif value.value:
                found.append(value)
        else:
            found.append(value)
    return found


def _value(value: Any, out: list[str], docs: bool) -> None:
    if isinstance(value, ast.AST):
        _node(value, out, docs)
    elif isinstance(value, (list, tuple)):
        out.append("[")
        for item in value:
            _value(item, out, docs)
            out.append(",")
        out.append("]")
    else:
        out.append(literal(value))


def literal(value: Any) -> str:
    """A constant with its type: ``1``, ``1.0``, ``True`` and ``"1"`` are four texts."""
    if isinstance(value, bool) or value is None or value is Ellipsis:
        return repr(value)
    if isinstance(value, str):
        return "s" + value.encode("utf-8", "surrogatepass").hex() + "."
    if isinstance(value, bytes):
        return "b" + value.hex() + "."
    if isinstance(value, int):
        return f"i{value:x}."
    if isinstance(value, float):
        return f"f{value.hex()}."
    if isinstance(value, complex):
        return f"c{value.real.hex()},{value.imag.hex()}."
    raise TypeError(f"no constant of a source file: {value!r}")
