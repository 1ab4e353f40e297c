"""A test's ``bytecode_hash``: a recursive digest of its code objects on the interpreter that runs this, positions pinned.

Positions are pinned to one place before compiling, so that layout changes nothing: the compiler puts line numbers into
class bodies and keeps no-ops for lines. Constants count by type and value, inner functions with all they hold.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from types import CodeType
from typing import Any

from ..errors import one_line
from .astform import literal
from .canonical import escape
from .modules import Unresolved, parse

PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
"""The interpreter whose bytecode this is; hashes of different minor versions never compare."""


def bytecode_hash(data: bytes, path: bytes, name: str) -> str:
    """64 hex digits for ``CLASS::NAME`` in the module ``data``; nothing is executed. Raises Unresolved."""
    tree = parse(data, path)
    for node in ast.walk(tree):
        for position in node._attributes:
            setattr(node, position, 1 if position.endswith("lineno") else 0)
    try:
        code = compile(tree, "<sealed>", "exec", dont_inherit=True, optimize=0)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Unresolved(escape(path), f"does not compile: {error}", "mend the file") from None
    for part in name.replace(".", "::").partition("[")[0].split("::") if name else ():
        inner = [const for const in code.co_consts if isinstance(const, CodeType) and const.co_name == part]
        if not inner:
            raise Unresolved(escape(path), f"has no code for {one_line(name)!r}", "name it as PATH::[CLASS::]NAME")
        code = inner[-1]
    return hashlib.sha256(_text(code).encode("ascii")).hexdigest()


def _text(value: Any) -> str:
    if isinstance(value, CodeType):
        parts: list[Any] = [
            value.co_name,
            value.co_argcount,
            value.co_posonlyargcount,
            value.co_kwonlyargcount,
            value.co_flags,
            value.co_code,
            value.co_names,
            value.co_varnames,
            value.co_freevars,
            value.co_cellvars,
            value.co_exceptiontable,
            value.co_consts,
        ]
        return "code(" + ",".join(map(_text, parts)) + ")"
    if isinstance(value, tuple):
        return "(" + ",".join(map(_text, value)) + ")"
    if isinstance(value, frozenset):
        return "{" + ",".join(sorted(map(_text, value))) + "}"
    if isinstance(value, slice):
        return "slice" + _text((value.start, value.stop, value.step))
    return literal(value)
