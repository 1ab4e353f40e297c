"""Expectations that stand in parametrize's rows are shifted there; every row keeps the id that it had."""

from __future__ import annotations

import ast
import random
from collections.abc import Collection

from .twin_values import Edit, Text, is_literal, shifted


def rows(
    text: Text, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str, ids: Collection[str], rng: random.Random
) -> tuple[Edit, ...]:
    """Every row's value of parameter ``name`` shifted, or nothing where that is not certainly harmless.

    Certain means: one parametrize that names plain parameters, as many literal rows as there are node ids, ids that pytest
    takes back as they are, and a literal in every row. The rows keep their shape: code that reads them finds what it looks for.
    """
    marks = [mark for mark in function.decorator_list if isinstance(mark, ast.Call) and _last(mark.func) == "parametrize"]
    if len(marks) != 1 or len(marks[0].args) != 2:
        return ()
    mark = marks[0]
    names = _names(mark.args[0])
    table = _table(text, mark.args[1])
    brackets = [each.partition("::")[2].partition("[")[2].removesuffix("]") for each in ids]
    if name not in names or not table or len(table) != len(brackets):
        return ()
    if not all(each and each.isascii() and each.isprintable() and "\\" not in each for each in brackets):
        return ()
    edits: list[Edit] = []
    for row in table:
        found = _cell(text, row, names.index(name), len(names), rng)
        if not found:
            return ()
        edits += found
    keywords = {keyword.arg: keyword.value for keyword in mark.keywords}
    if not set(keywords) <= {"ids"}:
        return ()
    told = f"[{', '.join(map(repr, brackets))}]"
    if "ids" in keywords:
        return (*edits, text.over(keywords["ids"], told))
    return (*edits, text.after(mark.args[1], f", ids={told}"))


def _cell(text: Text, row: ast.expr, at: int, width: int, rng: random.Random) -> tuple[Edit, ...]:
    """The edit of one row: a tuple, a list, a pytest.param, or the bare value of an only parameter."""
    if isinstance(row, ast.Call) and _last(row.func) == "param":
        cells = row.args
    elif width == 1:
        cells = [row]
    else:
        cells = row.elts if isinstance(row, ast.Tuple | ast.List) else []
    if len(cells) != width or not is_literal(cells[at]):
        return ()
    return shifted(text, cells[at], rng, flip=True)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [part.strip() for part in node.value.split(",") if part.strip()]
    if isinstance(node, ast.List | ast.Tuple):
        return [each.value for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
    return []


def _table(text: Text, node: ast.expr) -> list[ast.expr] | None:
    """The rows as written: a display here, or one that a module constant holds that nothing else reads."""
    if isinstance(node, ast.Name):
        uses = [each for each in ast.walk(text.tree) if isinstance(each, ast.Name) and each.id == node.id]
        homes = [
            each.value
            for each in text.tree.body
            if isinstance(each, ast.Assign) and len(each.targets) == 1 and each.targets[0] in uses
        ]
        if len(uses) != 2 or len(homes) != 1:
            return None
        node = homes[0]
    if not isinstance(node, ast.List | ast.Tuple) or any(isinstance(each, ast.Starred) for each in node.elts):
        return None
    return list(node.elts)
