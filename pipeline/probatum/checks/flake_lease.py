"""flake_lease: a skipped or expected-to-fail sealed test needs a live lease, and must still fail as the lease says."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from ..core import lease_plan
from ..core.check import Have, Note, Patch
from ..core.lease_plan import SkipsBody
from ..core.lease_rule import DEAD, LEDGER_FAULTS, Judged, finding, whole
from ..core.leases import Book, Malformed, ago, sections
from ..core.records import PatchBody, SuiteBody
from ..core.stage import Outcome, Stage
from ..core.table import classes_of, self_referential
from ..core.verdict import Finding, Verdict

RECORDS: tuple[str, ...] = ("skips", "suite.base", "suite.run", "suite.forced", "suite.forcedbase")
BODIES: Mapping[str, type] = {"skips": SkipsBody}


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``max_days``: how far away a lease may expire."""

    max_days: Annotated[int, msgspec.Meta(ge=1, le=3660)] = 90


def plan(patch: Patch, have: Have) -> Iterable[Stage | Note]:
    """The skips from git objects, then leased tests forced to run."""
    options = msgspec.convert(patch.policy.checks.get("flake_lease", {}), Options)
    return lease_plan.plan(patch, have, options.max_days)


def read(stage: Stage, outcome: Outcome) -> Note:
    """A forced run's report; junk becomes a body that says junk."""
    return lease_plan.read(stage, outcome)


def judge(have: Have, options: Options, now: int) -> list[Finding]:
    """No lease, no skip. Absence of a record is a BLOCK finding."""
    patch, skips = have.get("patch"), have.get("skips")
    base, run = have.get("suite.base"), have.get("suite.run")
    if not isinstance(patch, PatchBody):
        return [finding("not-run", "there is no record of the patch")]
    if self_referential(patch):
        return [finding("not-run", "oracle and product change together: nothing was run", remedy=_SPLIT)]
    if not isinstance(skips, SkipsBody):
        return [finding("not-run", "there is no record of base's skips")]
    try:
        book = lease_plan.book_of(skips, now, options.max_days)
    except Malformed as error:
        return _softened(
            patch, [finding("malformed", error.what, "ci/flake_leases.json", "mend the ledger in a change of its own")]
        )
    found = [*_added(skips, book), *_unread(skips)]
    used: set[str] = set()
    for name, body in (("base", base), ("run", run)):
        if not isinstance(body, SuiteBody):
            found.append(finding("not-run", f"there is no record suite.{name}"))
        elif not whole(body):
            found.append(finding("not-run", f"suite.{name} did not run to its end", remedy="see src_score"))
    if isinstance(base, SuiteBody) and isinstance(run, SuiteBody):
        judged = Judged(skips, book, base, run, have)
        found += [*judged.tests(), *judged.modules(), *judged.new()]
        used = judged.used
        found += judged.unused()
    found += _dead_rows(book, used)
    return _softened(patch, found)


def _dead_rows(book: Book, used: set[str]) -> Iterator[Finding]:
    """One place for all expiring permissions: a row past its day fails, whether or not something needs it."""
    for section, rows in sections(book.ledger):
        if section == "quarantine":
            names = [row.name for row in rows]
            for row in rows:
                if book.now >= row.expires:
                    yield finding("expired", f"quarantine expired {ago(book.now - row.expires)} ago", row.name, _RENEW)
                elif names.count(row.name) > 1:
                    yield finding("duplicate", f"{names.count(row.name)} quarantine rows", row.name, _RENEW)
            continue
        for row in rows:
            wrong = book.wrong(row, rows) if row.name not in used or section == "expected_red" else None
            if wrong is not None and wrong[0] in DEAD:
                yield finding(wrong[0], f"{section}: {wrong[1]}", row.name, _RENEW)


def _added(skips: SkipsBody, book: Book) -> Iterator[Finding]:
    """A skip that the patch puts into a sealed file needs a lease that base's ledger holds already."""
    live = {
        (book.stem(row), row.source_digest)
        for row in book.ledger.leases
        if (book.wrong(row, book.ledger.leases) or ("drifted",))[0] == "drifted"
    }
    for skip in skips.added:
        if (skip.stem, skips.moved.get(skip.stem, "")) not in live:
            reason = f"line {skip.line} adds {skip.text} to a sealed file, and base holds no lease for it"
            yield finding("added-skip", reason, skip.stem, f"land the lease first: probatum lease add {shlex.quote(skip.stem)}")


def _unread(skips: SkipsBody) -> Iterator[Finding]:
    for path, why in sorted(skips.unread.items()):
        yield finding("unread", f"cannot be searched for skips: {why}", path, verdict=Verdict.PASS)


def _softened(patch: PatchBody, found: list[Finding]) -> list[Finding]:
    """A change set of the oracle alone is a human's, and the only way to mend a dead ledger: there its faults HOLD."""
    if "oracle" not in classes_of(patch) or classes_of(patch) - {"oracle", "docs", "proposed"}:
        return found
    return [
        msgspec.structs.replace(one, verdict=Verdict.HOLD)
        if one.verdict is Verdict.BLOCK and one.id.removeprefix("flake_lease/") in LEDGER_FAULTS
        else one
        for one in found
    ]


_SPLIT = "land the oracle change first, as a patch of its own"
_RENEW = "probatum lease renew, or remove the row, in a change of its own"
