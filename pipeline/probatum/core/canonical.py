"""Canonical bytes: one value has exactly one spelling, and the digest is over that spelling."""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes

import msgspec

from ..errors import EvidenceCorrupt


def encode(value: Any) -> bytes:
    """Canonical JSON is UTF-8, keys sorted, no white space, no floats, one newline at the end.

    ``value`` is a msgspec Struct or plain data. Raises TypeError for a float: figures are integers with a
    unit in the name (``duration_us``).
    """
    plain = msgspec.to_builtins(value, builtin_types=())
    _refuse_floats(plain)
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8") + b"\n"


def decode(data: bytes, type_: Any, where: str) -> Any:
    """Bytes decode only from their own canonical form; anything else is corrupt.

    This also refuses duplicate keys, floats and trailing bytes. Raises EvidenceCorrupt.
    """
    try:
        value = msgspec.json.decode(data, type=type_)
        if encode(value) != data:
            raise ValueError("not byte-equal to its canonical form")
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise EvidenceCorrupt(where, str(error), "run the gate again; records are not edited") from None
    return value


def digest(data: bytes) -> str:
    """``sha256:`` and 64 hex digits over ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_of(value: Any) -> str:
    """The digest of ``value``'s canonical bytes."""
    return digest(encode(value))


def escape(path: bytes) -> str:
    """A path as text: UTF-8 stays, control bytes, ``%`` and bytes that are no UTF-8 are percent-escaped. Reversible."""
    text = path.decode("utf-8", "surrogateescape")
    if text.isprintable() and "%" not in text:  # nearly every path
        return text
    out = []
    for char in text:
        if char == "%" or not char.isprintable():
            out.append(quote_from_bytes(char.encode("utf-8", "surrogateescape"), safe=""))
        else:
            out.append(char)
    return "".join(out)


def unescape(text: str) -> bytes:
    """The bytes of an escaped path."""
    return unquote_to_bytes(text)


def _refuse_floats(value: Any) -> None:
    if isinstance(value, float):
        raise TypeError(f"a float has no canonical form: {value!r}")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"a key must be text: {key!r}")
            _refuse_floats(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_floats(item)
