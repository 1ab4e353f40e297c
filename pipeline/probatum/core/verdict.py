"""Verdicts, findings and the join. The join stays boring."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec


class Verdict(enum.Enum):
    """PASS < HOLD < BLOCK."""

    PASS = "PASS"
    HOLD = "HOLD"
    BLOCK = "BLOCK"

    def __lt__(self, other: Verdict) -> bool:
        return _RANK[self] < _RANK[other]

    def __le__(self, other: Verdict) -> bool:
        return _RANK[self] <= _RANK[other]


_RANK = {Verdict.PASS: 0, Verdict.HOLD: 1, Verdict.BLOCK: 2}


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One line of why: a stable id (``check/kebab-name``), its verdict, a reason, and what to do.

    ``subject`` is the node id or escaped path it speaks of ("" for none); ``reproduce`` is a command.
    A PASS finding is a remark: shown, never counted.
    """

    id: str
    verdict: Verdict
    reason: str
    subject: str = ""
    remedy: str = ""
    reproduce: str = ""


def join(verdicts: Iterable[Verdict]) -> Verdict:
    """The join is the maximum; of nothing it is BLOCK."""
    found = list(verdicts)
    return max(found, key=_RANK.__getitem__) if found else Verdict.BLOCK


def verdict_of(findings: Iterable[Finding]) -> Verdict:
    """A check without findings passes; with findings it is their join. Absence of evidence is itself a finding."""
    return join([Verdict.PASS, *(finding.verdict for finding in findings)])
