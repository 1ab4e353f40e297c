"""The ledger of replays: one canonical JSON line each, every line holding the digest of the line before it.

A replay writes a line when it begins and one when it ends. What begins counts: a run that was cancelled before it could fail
has spent its attempt, or one could try until green by pressing ^C in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from ..errors import EvidenceCorrupt
from . import canonical
from .records import Body

BUDGET = 2
"""Replays after the first run, a change."""

LONGEST = 4 << 20
"""Bytes of a ledger that are still read."""

NOTHING = "sha256:" + "0" * 64
"""What the first line says of the line before it."""

What = Literal["began", "passed", "failed", "infrastructure"]
"""``failed``: the tests did (product). ``infrastructure``: no record, by an engine-side fact."""


class Line(Body, frozen=True, kw_only=True):
    """One line. ``run`` is the replay's nonce; ``subject`` keys what was replayed; ``record`` is the admission's digest."""

    seq: int
    previous: str
    at: str
    run: str
    what: What
    change: str
    subject: str
    base: str
    head: str
    tree: str
    seed: int
    attempt: int
    record: str = ""
    why: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Who wants to replay what."""

    change: str
    subject: str
    base: str
    head: str
    tree: str


class Refused(Exception):
    """No replay may be spent; the reason is one line."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name, self.reason = name, reason


def subject_of(base: str, tree: str, said: object) -> str:
    """What makes two replays replays of the same: base, merged tree, and what base's policy says of replays."""
    return canonical.digest_of([base, tree, said])


def parse(data: bytes, where: str = "ledger") -> tuple[Line, ...]:
    """The lines of a ledger whose chain holds. Raises EvidenceCorrupt: removed, edited and reordered lines show."""
    if len(data) > LONGEST:
        raise EvidenceCorrupt(where, f"is longer than {LONGEST} bytes")
    if data and not data.endswith(b"\n"):
        raise EvidenceCorrupt(where, "its last line has no end", "it was cut: take the copy beside an earlier record")
    lines: list[Line] = []
    previous = NOTHING
    for number, raw in enumerate(data.splitlines(keepends=True), 1):
        line: Line = canonical.decode(raw, Line, f"{where}:{number}")
        if line.previous != previous or line.seq != number:
            what = f"says it is line {line.seq}" if line.seq != number else "does not follow from the line before it"
            raise EvidenceCorrupt(f"{where}:{number}", f"{what}: a line was removed, edited or moved", _REMEDY)
        previous = canonical.digest(raw)
        lines.append(line)
    return tuple(lines)


def used_twice(lines: Iterable[Line]) -> str:
    """What is wrong with the nonces of a ledger, "" for nothing: each begins once, and ends once at most."""
    open_: dict[str, Line | None] = {}
    for line in lines:
        known = open_.get(line.run)
        if line.what == "began":
            if line.run in open_:
                return f"the nonce {line.run[:12]} begins twice (line {line.seq})"
            open_[line.run] = line
        elif known is None or (known.change, known.subject) != (line.change, line.subject):
            return f"the nonce {line.run[:12]} ends twice, or ends what never began (line {line.seq})"
        else:
            open_[line.run] = None
    return ""


def line_after(lines: Sequence[Line], **fields: object) -> tuple[Line, bytes]:
    """The next line and its bytes."""
    previous = canonical.digest(canonical.encode(lines[-1])) if lines else NOTHING
    line = msgspec.convert({"seq": len(lines) + 1, "previous": previous, **fields}, Line)
    return line, canonical.encode(line)


def digest_of(line: Line) -> str:
    """What the next line will say of this one."""
    return canonical.digest(canonical.encode(line))


def attempt(lines: Sequence[Line], asked: Asked) -> int:
    """The number of the attempt that may begin now, from 1. Raises Refused: product failures are never replayed, and

    replays are counted over the change, whatever job asks.
    """
    mine = [line for line in lines if line.subject == asked.subject]
    for line in mine:
        if line.what == "failed":
            raise Refused("product", f"replay {line.attempt} of this tree failed in its tests ({line.why}): mend the code")
    began = sum(line.what == "began" for line in mine)
    spent = replays(lines, asked.change, asked.subject)
    if began and spent >= BUDGET:
        raise Refused("spent", f"{spent} replays of this change are spent, {BUDGET} is the most: a person decides")
    return began + 1


def replays(lines: Iterable[Line], change: str, subject: str) -> int:
    """How many runs after a first one the change has had, and its subject under any other name."""
    return sum(
        line.what == "began" and line.attempt > 1 and (line.change == change or line.subject == subject) for line in lines
    )


_REMEDY = "replay again with the ledger that the replays wrote"
