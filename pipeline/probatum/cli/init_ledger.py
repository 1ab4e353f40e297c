"""The first ledger: what a trial gate found skipped without permission becomes rows, each with an owner and a day."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ..core.closure import Closures
    from ..core.lease_plan import SkipsBody
    from ..core.leases import Ledger

DAY = 86_400
REASON = "was there before the gate: {why}"


class Who(msgspec.Struct, frozen=True):
    """Who answers for the rows, and when they end (unix seconds)."""

    owner: str
    now: int
    until: int


def rows(out: Path, closures: Closures, who: Who) -> Ledger | None:
    """The ledger that permits what the gate in ``out`` found skipped on base; None where it found nothing or broke off.

    A skip with a condition that can be read gets a standing row, every other one a lease. A lease's signature is what the
    test failed with when it was forced to run, as far as the records say so.
    """
    import os

    from ..core import lease_plan
    from ..core.leases import Lease, Ledger, Standing
    from ..core.modules import Unresolved
    from ..core.records import SuiteBody

    skips, base = _record(out, "skips", lease_plan.SkipsBody), _record(out, "suite.base", SuiteBody)
    forced = _record(out, "suite.forced", SuiteBody)
    if skips is None or base is None:
        return None
    told = {row.id: row for row in base.tests}
    failed = {row.id: row.signature for row in forced.tests if row.signature} if forced is not None else {}
    seen: dict[str, str] = {}
    for each in lease_plan.skipping(skips, base):
        row = told.get(each)
        signature = (
            failed.get(each)
            or (row.signature if row is not None else "")
            or f"Skipped: {(row.reason if row else each).removeprefix('Skipped: ')}"
        )
        seen.setdefault(lease_plan.stem_of(each), signature)
    for path, error in base.modules.items():
        if error.startswith("Skipped:"):
            seen[path] = error
    leases, standing = [], []
    for stem, signature in sorted(seen.items()):
        path, _, name = stem.partition("::")
        try:
            digest = closures.digest(os.fsencode(path), name)
        except Unresolved:
            continue
        common: dict[str, Any] = {"nodeid": stem, "owner": who.owner, "reason": REASON.format(why=signature[:200])}
        condition = _condition(skips, stem)
        if condition:
            standing.append(Standing(condition=condition, source_digest=digest, review_at=who.until, **common))
        else:
            leases.append(Lease(failure_signature=_signature(signature), expires_at=who.until, source_digest=digest, **common))
    return Ledger(leases=tuple(leases), standing=tuple(standing)) if leases or standing else None


def _condition(skips: SkipsBody, stem: str) -> str:
    """The text of the one condition that decides the test, "" where something skips it without one."""
    over = [skip for skip in skips.static if skip.speaks_of(stem)]
    if any(skip.marker and not skip.conditional for skip in over):
        return ""
    texts = {skip.condition for skip in over if skip.conditional and skip.condition}
    return texts.pop() if len(texts) == 1 else ""


def _signature(text: str) -> str:
    """``Type: message`` on one line, never empty after the colon."""
    flat = " ".join(text.split())[:300]
    kind, colon, message = flat.partition(": ")
    return (
        flat if colon and message.strip() and kind.replace(".", "").isidentifier() else f"Skipped: {flat or 'no reason given'}"
    )


def _record(out: Path, name: str, type_: Any) -> Any:
    from ..core.evidence import unseal
    from ..errors import EvidenceCorrupt

    path = out / f"{name}.json"
    try:
        return unseal(path.read_bytes(), type_, path.name).body
    except (OSError, EvidenceCorrupt):
        return None
