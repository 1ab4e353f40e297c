"""Edits of a source text in place: spans of bytes, and constants shifted to others of their own type."""

from __future__ import annotations

import ast
import math
import random
import warnings

import msgspec


class Edit(msgspec.Struct, frozen=True):
    """Bytes ``start`` to ``end`` become ``text``, which has as many line ends."""

    start: int
    end: int
    text: str


class Text:
    """A parsed source and where its nodes lie in its bytes."""

    def __init__(self, source: bytes, tree: ast.Module) -> None:
        self.source, self.tree = source, tree
        self.bom = 3 if source.startswith(b"\xef\xbb\xbf") else 0
        self.starts = [self.bom]
        at = source.find(b"\n")
        while at >= 0:
            self.starts.append(at + 1)
            at = source.find(b"\n", at + 1)

    @classmethod
    def of(cls, source: bytes) -> Text | None:
        """None for what cannot be edited by byte offsets: no UTF-8, a lone carriage return, no Python of this version."""
        try:
            source.decode("utf-8")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        return None if source.replace(b"\r\n", b"").count(b"\r") or b"\x0c" in source else cls(source, tree)

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[node.end_lineno - 1] + node.end_col_offset

    def code(self, node: ast.expr | ast.stmt) -> bytes:
        start, end = self.span(node)
        return self.source[start:end]

    def over(self, node: ast.expr, text: str) -> Edit:
        """``text`` instead of ``node``, with its line ends kept inside parentheses."""
        start, end = self.span(node)
        lines = self.source.count(b"\n", start, end)
        kept = ("\r\n" if b"\r\n" in self.source[start:end] else "\n") * lines
        return Edit(start, end, f"({text}{kept})" if kept else text)

    def before(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        start = self.span(node)[0]
        return Edit(start, start, text)

    def after(self, node: ast.expr | ast.stmt, text: str) -> Edit:
        end = self.span(node)[1]
        return Edit(end, end, text)

    def indent(self, node: ast.stmt) -> str:
        """The white space before ``node``."""
        start = self.starts[node.lineno - 1]
        return self.source[start : start + node.col_offset].decode()

    def blank_after(self, node: ast.stmt, text: str) -> tuple[Edit, ...]:
        """``text`` in the blank line after ``node``'s last; nothing where there is none."""
        line = node.end_lineno or 0
        if line >= len(self.starts):
            return ()
        start = self.starts[line]
        end = self.starts[line + 1] - 1 if line + 1 < len(self.starts) else len(self.source)
        if self.source[start:end].strip():
            return ()
        return (Edit(start, start + len(self.source[start:end].rstrip(b"\r")), text),)


def is_literal(node: ast.expr) -> bool:
    """Constants, signed numbers, and displays of them: nothing runs when it is evaluated."""
    if isinstance(node, ast.Constant):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.USub | ast.UAdd) and isinstance(node.operand, ast.Constant)
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return all(is_literal(each) for each in node.elts)
    return (
        isinstance(node, ast.Dict)
        and all(key is not None and is_literal(key) for key in node.keys)
        and all(map(is_literal, node.values))
    )


def shifted(text: Text, node: ast.expr, rng: random.Random, flip: bool = False) -> tuple[Edit, ...]:
    """One constant in ``node``, reached through displays only, becomes another of its type; else a display gets one more.

    Booleans are flipped only where ``flip`` says so: state that an earlier test left behind may well be the other one.
    """
    leaves = _leaves(node)
    if leaves:
        leaf = rng.choice(leaves)
        return (shift(text, leaf, rng, flip),)
    if isinstance(node, ast.List | ast.Tuple | ast.Set) and node.elts:
        return (text.before(node.elts[0], f"{rng.randrange(7001, 9973)}, "),)
    if isinstance(node, ast.List):
        return (text.over(node, f"[{rng.randrange(7001, 9973)}]"),)
    if isinstance(node, ast.Tuple):
        return (text.over(node, f"({rng.randrange(7001, 9973)},)"),)
    if isinstance(node, ast.Dict) and not node.keys:
        return (text.over(node, f"{{{rng.randrange(7001, 9973)}: 0}}"),)
    return ()


def _leaves(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.Constant) or (isinstance(node, ast.UnaryOp) and is_literal(node)):
        return [node]
    if isinstance(node, ast.List | ast.Tuple):
        return [leaf for each in node.elts for leaf in _leaves(each)]
    if isinstance(node, ast.Dict):
        return [leaf for each in node.values for leaf in _leaves(each)]
    return []


def shift(text: Text, node: ast.expr, rng: random.Random, flip: bool) -> Edit:
    """A constant of the same type that is far from equal: numbers by thousands, strings by a fresh word."""
    value = ast.literal_eval(node)
    if isinstance(value, str | bytes):
        fresh = f"{'b' if isinstance(value, bytes) else ''}'qz{rng.getrandbits(24):06x}'"
        return Edit(*text.span(node), f"({text.code(node).decode()} {fresh})")
    return text.over(node, other(value, rng, flip))


def other(value: object, rng: random.Random, flip: bool) -> str:
    far = rng.randrange(7001, 9973)
    if isinstance(value, bool) and flip:
        return repr(not value)
    if isinstance(value, int) and not isinstance(value, bool):
        return repr(value + far)
    if isinstance(value, float):
        moved = value + far * max(1.0, abs(value))
        return repr(moved) if math.isfinite(moved) else "0.5"
    if isinstance(value, complex):
        return repr(value + far)
    return repr(f"qz{rng.getrandbits(24):06x}")
