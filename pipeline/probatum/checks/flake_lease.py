"""flake_lease: a skipped or expected-to-fail sealed test needs a live lease, and must still fail as the lease says."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated

import msgspec

from ..core import lease_plan
from ..core.check import Have, Note, Patch
from ..core.lease_plan import SKIPPED, SkipsBody, covers, skipping, stem_of
from ..core.leases import Book, Lease, Malformed, Standing, ago, sections, signature_matches
from ..core.records import PatchBody, SuiteBody, TestRow
from ..core.skips import Skip, same_condition
from ..core.stage import Outcome, Stage
from ..core.table import classes_of, self_referential
from ..core.verdict import Finding, Verdict

RECORDS: tuple[str, ...] = ("skips", "suite.base", "suite.run", "suite.forced", "suite.forcedbase")
BODIES: Mapping[str, type] = {"skips": SkipsBody}

_LEDGER = frozenset(
    {
        "malformed",
        "ambiguous",
        "duplicate",
        "expired",
        "too-long",
        "no-digest",
        "drifted",
        "no-lease",
        "standing-unconditional",
        "standing-condition",
        "marker-changed",
        "bytecode-drifted",
    }
)
"""Findings about base's ledger: a human change set of the oracle may be the one that mends it, so there they HOLD."""


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
        return [_finding("not-run", "there is no record of the patch")]
    if self_referential(patch):
        return [_finding("not-run", "oracle and product change together: nothing was run", remedy=_SPLIT)]
    if not isinstance(skips, SkipsBody):
        return [_finding("not-run", "there is no record of base's skips")]
    try:
        book = lease_plan.book_of(skips, now, options.max_days)
    except Malformed as error:
        return _softened(
            patch, [_finding("malformed", error.what, "ci/flake_leases.json", "mend the ledger in a change of its own")]
        )
    found = [*_added(skips, book), *_unread(skips)]
    used: set[str] = set()
    for name, body in (("base", base), ("run", run)):
        if not isinstance(body, SuiteBody):
            found.append(_finding("not-run", f"there is no record suite.{name}"))
        elif not _whole(body):
            found.append(_finding("not-run", f"suite.{name} did not run to its end", remedy="see src_score"))
    if isinstance(base, SuiteBody) and isinstance(run, SuiteBody):
        judged = _Judged(skips, book, base, run, have)
        found += [*judged.tests(), *judged.modules(), *judged.new()]
        used = judged.used
        found += judged.unused()
    found += _dead_rows(book, used)
    return _softened(patch, found)


class _Judged:
    """One pass over the runs. ``rows`` are the leases and standing rows that some skip used."""

    def __init__(self, skips: SkipsBody, book: Book, base: SuiteBody, run: SuiteBody, have: Have) -> None:
        self.skips, self.book, self.base, self.run = skips, book, base, run
        self.before = {row.id: row for row in base.tests}
        self.after = {row.id: row for row in run.tests}
        self.forced = have.get("suite.forced")
        self.forcedbase = have.get("suite.forcedbase")
        self.needed = skipping(skips, base)
        self.used: set[str] = set()

    def tests(self) -> Iterator[Finding]:
        """Every id that needs a permission; ids of one test that lack one are one finding."""
        lacking: dict[tuple[str, str, str], list[str]] = {}
        for each in self.needed:
            lease, why = self.permission(each)
            if why is not None:
                lacking.setdefault((stem_of(each), *why), []).append(each)
            elif lease is not None:
                yield from self.held_to(lease, each)
        for (stem, name, reason), ids in lacking.items():
            many = f" ({len(ids)} ids)" if len(ids) > 1 else ""
            yield self.lacks(name, reason + many, stem if many else ids[0])

    def permission(self, each: str) -> tuple[Lease | None, tuple[str, str] | None]:
        """The live lease for an id, or (finding, reason) why there is none; a standing row gives neither."""
        leases = [row for row in self.book.ledger.leases if covers(self.book, row, each)]
        wrong: tuple[str, str] | None = None
        for lease in leases:
            self.used.add(lease.name)
            wrong = self.book.wrong(lease, self.book.ledger.leases) or self.changed(lease, stem_of(each))
            if wrong is None:
                return lease, None
        for row in self.book.ledger.standing:
            if covers(self.book, row, each):
                self.used.add(row.name)
                why = self.book.wrong(row, self.book.ledger.standing) or self.standing(row, stem_of(each))
                if why is None:
                    return None, None
                wrong = wrong or why
        if wrong is None:
            maybe = [row.name for row in self.book.ledger.leases if row.qualname and stem_of(each) in self.book.candidates(row)]
            if maybe:
                wrong = "ambiguous", f"{maybe[0]} may name a test of another module too"
        outcome = self.before[each].outcome if each in self.before else "skipped"
        return None, wrong or ("no-lease", f"is {outcome} on base and nothing permits it")

    def changed(self, lease: Lease, stem: str) -> tuple[str, str] | None:
        """Whether marker or bytecode are no longer what the lease says."""
        markers = [skip for skip in self.skips.static if skip.speaks_of(stem)]
        if lease.marker is not None and not any(_same_marker(lease.marker, skip) for skip in markers):
            return "marker-changed", f"the lease is for {lease.marker!r}, which is not there"
        if lease.bytecode_hash is not None:
            if lease.python is None:
                return "bytecode-drifted", "the row has a bytecode_hash but no python"
            runs = ".".join(self.base.python.split(".")[:2])
            seen = self.skips.bytecode.get(stem, "")
            if lease.python == runs == self.skips.python and not (seen and seen.startswith(lease.bytecode_hash)):
                return "bytecode-drifted", f"the bytecode on Python {runs} is {seen[:12] or 'not there'}…"
        return None

    def standing(self, row: Standing, stem: str) -> tuple[str, str] | None:
        """A standing row permits exactly the conditional skip whose text it carries."""
        path = stem.partition("::")[0]
        over = [skip for skip in self.skips.static if skip.speaks_of(stem)]
        if any(skip.marker and not skip.conditional for skip in over):
            return "standing-unconditional", "a standing row is for a condition, and this skip has none: it needs a lease"
        near = [skip for skip in self.skips.static if skip.conditional and skip.condition and _near(skip, stem, path)]
        if not any(same_condition(row.condition, skip.condition) for skip in near):
            return "standing-condition", f"no skip of the test has the condition {row.condition!r}"
        return None

    def held_to(self, lease: Lease, each: str) -> Iterator[Finding]:
        """A leased test must fail as the lease says, in the run and when it is forced to run."""
        after = self.after.get(each)
        if after is None:
            yield _finding("not-run", "a leased test did not finish in the candidate's run", each, "see src_score")
        elif after.outcome == "xfailed" and _real(after) and not signature_matches(lease.failure_signature, after.signature):
            yield _signature(lease, after, each)
            return
        if not isinstance(self.forced, SuiteBody) or not _whole(self.forced):
            yield _finding("forced-missing", "the forced run did not come to its end", each, _FORCED)
            return
        row = next((row for row in self.forced.tests if row.id == each), None)
        if row is None:
            yield _finding("forced-missing", "the forced run says nothing of it", each, _FORCED)
        elif row.outcome in ("passed", "xpassed"):
            yield _finding("retire", "passes when it is forced to run: the lease may be retired", each, verdict=Verdict.PASS)
        elif row.outcome == "skipped":
            yield self.unforced(row, each)
        elif not signature_matches(lease.failure_signature, row.signature):
            yield _signature(lease, row, each)

    def unforced(self, row: TestRow, each: str) -> Finding:
        """A skip inside the test cannot be taken away; that is believed only where base's own code skips just so."""
        body = self.forcedbase
        before = next((one for one in body.tests if one.id == each), None) if isinstance(body, SuiteBody) else None
        if before is not None and before.outcome == "skipped" and before.reason == row.reason:
            return _finding("cannot-force", f"skips from inside: {row.reason}", each, verdict=Verdict.PASS)
        return _finding("forced-skipped", f"skips when forced to run, and base does not: {row.reason}", each, _FORCED)

    def modules(self) -> Iterator[Finding]:
        """A module that skips as a whole, and one that base cannot collect but whose tests are marked."""
        for path, error in sorted(self.base.modules.items()):
            if error.startswith("Skipped:"):
                lease, why = self.permission(path)
                if why is not None:
                    yield self.lacks(why[0], f"the module skips on base ({error}); {why[1]}", path)
                elif lease is not None:
                    yield _finding("cannot-force", f"the module skips when imported: {error}", path, verdict=Verdict.PASS)
            elif error:
                for skip in self.skips.static:
                    if skip.path == path and skip.marker and not skip.conditional and skip.scope in ("test", "class", "module"):
                        _, why = self.permission(skip.stem)
                        if why is not None:
                            yield self.lacks(why[0], f"{skip.text} in a module that base cannot collect", skip.stem)

    def new(self) -> Iterator[Finding]:
        """No lease permits a skip that base does not have."""
        needed = set(self.needed)
        for row in self.run.tests:
            was = self.before.get(row.id)
            if row.outcome in SKIPPED and row.id not in needed and (was is None or was.outcome not in SKIPPED):
                said = f": {row.reason}" if row.reason else ""
                yield _finding(
                    "new-skip", f"is {row.outcome} with this patch and {was.outcome if was else 'absent'} on base{said}", row.id
                )
        for path, error in sorted(self.run.modules.items()):
            if error.startswith("Skipped:") and not self.base.modules.get(path, "").startswith("Skipped:"):
                yield _finding("new-skip", f"the module skips with this patch and not on base: {error}", path)

    def unused(self) -> Iterator[Finding]:
        """Rows that no skip used are remarks; dead ones among them were said before."""
        for row in (*self.book.ledger.leases, *self.book.ledger.standing):
            if row.name not in self.used:
                yield _finding(
                    "unused", "no skip on base needs this row", row.name, "remove it from the ledger", verdict=Verdict.PASS
                )

    def lacks(self, name: str, reason: str, subject: str) -> Finding:
        row = self.before.get(subject)
        signature = row.signature if row is not None and _real(row) else ""
        if name in ("no-lease", "standing-unconditional"):
            words = ["probatum", "lease", "add", subject, "--owner", "YOU", "--reason", "WHY", "--signature"]
            remedy = "mend it, or: " + shlex.join([*words, signature[:120] or "TYPE: MESSAGE"])
        else:
            remedy = f"mend it, or: probatum lease renew {shlex.quote(stem_of(subject))}"
        return _finding(name, reason, subject, remedy)


def _dead_rows(book: Book, used: set[str]) -> Iterator[Finding]:
    """One place for all expiring permissions: a row past its day fails, whether or not something needs it."""
    for section, rows in sections(book.ledger):
        if section == "quarantine":
            names = [row.name for row in rows]
            for row in rows:
                if book.now >= row.expires:
                    yield _finding("expired", f"quarantine expired {ago(book.now - row.expires)} ago", row.name, _RENEW)
                elif names.count(row.name) > 1:
                    yield _finding("duplicate", f"{names.count(row.name)} quarantine rows", row.name, _RENEW)
            continue
        for row in rows:
            wrong = book.wrong(row, rows) if row.name not in used or section == "expected_red" else None
            if wrong is not None and wrong[0] in ("duplicate", "ambiguous", "expired", "too-long"):
                yield _finding(wrong[0], f"{section}: {wrong[1]}", row.name, _RENEW)


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
            yield _finding(
                "added-skip", reason, skip.stem, f"land the lease first: probatum lease add {shlex.quote(skip.stem)}"
            )


def _unread(skips: SkipsBody) -> Iterator[Finding]:
    for path, why in sorted(skips.unread.items()):
        yield _finding("unread", f"cannot be searched for skips: {why}", path, verdict=Verdict.PASS)


def _softened(patch: PatchBody, found: list[Finding]) -> list[Finding]:
    """A change set of the oracle alone is a human's, and the only way to mend a dead ledger: there its faults HOLD."""
    if "oracle" not in classes_of(patch) or classes_of(patch) - {"oracle", "docs", "proposed"}:
        return found
    return [
        msgspec.structs.replace(one, verdict=Verdict.HOLD)
        if one.verdict is Verdict.BLOCK and one.id.removeprefix("flake_lease/") in _LEDGER
        else one
        for one in found
    ]


def _whole(body: SuiteBody) -> bool:
    return body.finished and body.nonce_ok and not body.junk


def _real(row: TestRow) -> bool:
    """Whether a row's signature is a failure's, not the imperative xfail's own exception."""
    return bool(row.signature) and not row.signature.startswith(("XFailed:", "Skipped:"))


def _near(skip: Skip, stem: str, path: str) -> bool:
    """A condition may decide a test from its own body, its class, its module, a fixture there or a conftest."""
    if skip.scope in ("fixture", "hook", "helper", "param"):
        return skip.path == path or skip.path.endswith("conftest.py")
    return skip.speaks_of(stem)


def _same_marker(marker: str, skip: Skip) -> bool:
    marker = marker.strip().removeprefix("@")
    return marker in (skip.kind, f"pytest.mark.{skip.kind}") or same_condition(marker, skip.text)


def _signature(lease: Lease, row: TestRow, each: str) -> Finding:
    reason = f"fails with {row.signature or 'no message'!r}; the lease is for {lease.failure_signature!r}"
    return _finding("signature-changed", reason, each, "mend it: the lease covers another failure")


_SPLIT = "land the oracle change first, as a patch of its own"
_FORCED = "run it without its marker and see"
_RENEW = "probatum lease renew, or remove the row, in a change of its own"


def _finding(name: str, reason: str, subject: str = "", remedy: str = "", verdict: Verdict = Verdict.BLOCK) -> Finding:
    return Finding(
        id=f"flake_lease/{name}",
        verdict=verdict,
        reason=reason,
        subject=subject,
        remedy=remedy or ("run the gate again" if name == "not-run" else ""),
        reproduce="probatum lease check" if name in _LEDGER else "probatum judge flake_lease --evidence ci_out",
    )
