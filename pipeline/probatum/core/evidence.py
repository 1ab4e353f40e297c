"""The evidence envelope: an in-toto Statement v1 whose predicate is one complete, typed record."""

from __future__ import annotations

import datetime
from typing import Any, Generic, Literal, TypeVar

import msgspec

from ..errors import EvidenceCorrupt
from . import canonical
from .lanes import may_write
from .stage import Facts

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://probatum.dev/{kind}/v1"

Body = TypeVar("Body")


class Subject(msgspec.Struct, frozen=True, kw_only=True):
    """The patch, by git object ids. ``merged_tree`` is "" where the merge conflicts."""

    base: str
    head: str
    merge_base: str = ""
    merged_tree: str = ""


class Predicate(msgspec.Struct, Generic[Body], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who says what about which patch. Times are RFC 3339 UTC; ``input_digest`` covers everything the lane read."""

    kind: str
    part: str
    lane: str
    attempt: int
    status: Literal["complete"]
    started: str
    finished: str
    base: str
    head: str
    merged_tree: str
    input_digest: str
    nonce: str
    tool: str
    policy_digest: str
    engine: Facts
    body: Body


class Resource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    digest: dict[str, str]


class Statement(msgspec.Struct, Generic[Body], frozen=True, forbid_unknown_fields=True, rename={"type_": "_type"}):
    """An in-toto Statement v1 (https://github.com/in-toto/attestation, spec v1)."""

    type_: str
    subject: list[Resource]
    predicateType: str
    predicate: Predicate[Body]


def seal(predicate: Predicate[Any]) -> bytes:
    """The canonical bytes of the statement around ``predicate``. Raises EvidenceCorrupt for a lane without authority."""
    if not may_write(predicate.lane, predicate.kind):
        raise EvidenceCorrupt(predicate.kind, f"lane {predicate.lane!r} may not write it")
    if predicate.attempt < 1:
        raise EvidenceCorrupt(predicate.kind, f"attempt {predicate.attempt} is below 1")
    return canonical.encode(Statement(STATEMENT, _subjects(predicate), PREDICATE.format(kind=predicate.kind), predicate))


def unseal(data: bytes, body: type[Body], where: str) -> Predicate[Body]:
    """The predicate inside canonical statement bytes. Raises EvidenceCorrupt when anything is not as ``seal`` writes it."""
    statement = canonical.decode(data, Statement[body], where)  # type: ignore[valid-type]
    predicate: Predicate[Body] = statement.predicate
    if (
        statement.type_ != STATEMENT
        or statement.predicateType != PREDICATE.format(kind=predicate.kind)
        or statement.subject != _subjects(predicate)
        or predicate.attempt < 1
        or not may_write(predicate.lane, predicate.kind)
    ):
        raise EvidenceCorrupt(where, "the statement does not match its predicate", "run the gate again")
    return predicate


def file_name(kind: str, part: str = "", attempt: int = 1) -> str:
    """``kind[.part][.attempt].json``; the first attempt carries no number."""
    return ".".join([kind, *([part] if part else []), *([str(attempt)] if attempt > 1 else []), "json"])


def rfc3339(unix_us: int) -> str:
    """Unix microseconds as RFC 3339 UTC."""
    moment = datetime.datetime.fromtimestamp(unix_us // 1_000_000, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{unix_us % 1_000_000:06d}Z"


def _subjects(predicate: Predicate[Any]) -> list[Resource]:
    found = [
        Resource("base", {"gitCommit": predicate.base}),
        Resource("head", {"gitCommit": predicate.head}),
    ]
    if predicate.merged_tree:
        found.append(Resource("merged_tree", {"gitTree": predicate.merged_tree}))
    return found
