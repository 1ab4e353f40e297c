"""Expectations in data files are changed only where the sealed tests themselves show which leaves are expectations.

A key counts as an expectation when every sealed module that names the file uses it as a whole side of ``==`` or ``!=`` (or
of an assertEqual), bare or inside int(), float() or str(), and nowhere else. Where input and expectation cannot be told apart,
the data stays as it is.
"""

from __future__ import annotations

import ast
import csv
import io
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping

from .twin_values import Text
from .twins import EQUAL

CONVERSIONS = frozenset({"int", "float", "str", "Decimal", "Fraction", "bytes"})


def data_twin(path: bytes, data: bytes, sources: Mapping[bytes, bytes], nonce: str) -> tuple[bytes | None, set[str]]:
    """The changed file (None: it stays as it is) and the node ids without parameters of tests that read it."""
    name = path.rsplit(b"/", 1)[-1].decode("utf-8", "surrogateescape")
    users = [(module, source) for module, source in sources.items() if name.encode("utf-8", "surrogateescape") in source]
    trees = [(module, text.tree) for module, source in users if (text := Text.of(source)) is not None]
    if not trees or len(trees) != len(users):
        return None, set()
    keys = expectations([tree for _, tree in trees])
    changed = _changed(name, data, keys, random.Random(nonce))
    if changed is None or changed == data:
        return None, set()
    ids = {f"{module.decode('utf-8', 'surrogateescape')}::{test}" for module, tree in trees for test in _readers(tree, name)}
    return changed, ids


def expectations(trees: Iterable[ast.Module]) -> set[str]:
    """Keys that are only ever compared with what the code under test gave."""
    sides: dict[str, int] = {}
    uses: dict[str, int] = {}
    for tree in trees:
        for node in ast.walk(tree):
            key = _key(node)
            if key is not None:
                uses[key] = uses.get(key, 0) + 1
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                uses.setdefault(node.value, 0)
            for one, other in _pairs(node):
                found = _key(_bare(one))
                if found is not None and not any(_key(each) == found for each in ast.walk(other)):
                    sides[found] = sides.get(found, 0) + 1
    return {key for key, count in sides.items() if uses.get(key) == count}


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        yield node.left, node.comparators[0]
        yield node.comparators[0], node.left
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in EQUAL and len(node.args) > 1:
        yield node.args[0], node.args[1]
        yield node.args[1], node.args[0]


def _key(node: ast.AST) -> str | None:
    """``row["key"]`` or ``row.get("key")``."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        return node.slice.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        first = node.args[0]
        return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None
    return None


def _bare(node: ast.expr) -> ast.expr:
    while (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CONVERSIONS and len(node.args) == 1
    ):
        node = node.args[0]
    return node


def _changed(name: str, data: bytes, keys: set[str], rng: random.Random) -> bytes | None:
    if not keys:
        return None
    try:
        if name.endswith(".json"):
            value = json.loads(data)
            shifted = _shift(value, keys, rng)
            return None if shifted == value else json.dumps(shifted, ensure_ascii=False, indent=1).encode()
        if name.endswith((".csv", ".tsv")):
            return _csv(data.decode("utf-8"), keys, rng, "\t" if name.endswith(".tsv") else ",")
        if name.endswith((".yaml", ".yml")):
            return _yaml(data.decode("utf-8"), keys, rng)
    except (ValueError, RecursionError, csv.Error):
        return None
    return None


def _shift(value: object, keys: set[str], rng: random.Random, below: bool = False) -> object:
    if isinstance(value, dict):
        return {key: _shift(item, keys, rng, below or key in keys) for key, item in value.items()}
    if isinstance(value, list):
        return [_shift(item, keys, rng, below) for item in value]
    return _other(value, rng) if below else value


def _other(value: object, rng: random.Random) -> object:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + rng.randrange(7001, 9973)
    if isinstance(value, float):
        return value + rng.randrange(7001, 9973) * max(1.0, abs(value))
    return f"{value or ''}qz{rng.getrandbits(24):06x}"


def _csv(text: str, keys: set[str], rng: random.Random, mark: str) -> bytes | None:
    lines = list(csv.reader(io.StringIO(text, newline=""), delimiter=mark))
    columns = [at for at, head in enumerate(lines[0]) if head in keys] if lines else []
    if not columns:
        return None
    for line in lines[1:]:
        for at in columns:
            if at < len(line):
                line[at] = _number(line[at], rng)
    out = io.StringIO(newline="")
    csv.writer(out, delimiter=mark, lineterminator="\r\n" if "\r\n" in text else "\n").writerows(lines)
    return out.getvalue().encode()


def _yaml(text: str, keys: set[str], rng: random.Random) -> bytes | None:
    """Plain ``key: scalar`` lines; anything else of YAML is left alone."""

    def other(match: re.Match[str]) -> str:
        value = match[3]
        if value[0] in "\"'":
            return f"{match[1]}{match[2]}{value[:-1]}qz{rng.getrandbits(24):06x}{value[-1]}"
        if value in ("true", "false"):
            return match[1] + match[2] + ("false" if value == "true" else "true")
        return match[1] + match[2] + _number(value, rng)

    names = "|".join(map(re.escape, sorted(keys)))
    changed = re.sub(rf"(?m)^([ \t]*(?:- +)?)((?:{names}): +)(\"[^\"\n]*\"|'[^'\n]*'|[\w.+-]+)[ \t]*$", other, text)
    return None if changed == text else changed.encode()


def _number(text: str, rng: random.Random) -> str:
    far = rng.randrange(7001, 9973)
    try:
        return str(int(text) + far)
    except ValueError:
        pass
    try:
        return repr(float(text) + far * max(1.0, abs(float(text))))
    except ValueError:
        return f"{text}qz{rng.getrandbits(24):06x}"


def _readers(tree: ast.Module, name: str) -> set[str]:
    """Qualified names of tests that reach a constant naming the file: in their body, or through module names and fixtures."""
    holders: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            holders[node.name] = node
        elif isinstance(node, ast.Assign):
            holders.update({target.id: node for target in node.targets if isinstance(target, ast.Name)})
    reading: set[str] = set()
    grown = True
    while grown:
        grown = False
        for holder, node in holders.items():
            if holder not in reading and _mentions(node, name, reading):
                reading.add(holder)
                grown = True
    found = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in reading:
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            members = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
            found |= {f"{node.name}::{each.name}" for each in members if _mentions(each, name, reading)}
    return found


def _mentions(node: ast.AST, name: str, reading: set[str]) -> bool:
    for each in ast.walk(node):
        if isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.rsplit("/", 1)[-1] == name:
            return True
        if (isinstance(each, ast.Name) and each.id in reading) or (isinstance(each, ast.arg) and each.arg in reading):
            return True
    return False
