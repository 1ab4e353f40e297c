"""Whether each skip of a patch has its permission, and whether leased tests still fail as their leases say."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from .check import Have
from .lease_plan import SKIPPED, SkipsBody, covers, skipping, stem_of
from .leases import Book, Lease, Standing, signature_matches
from .records import SuiteBody, TestRow
from .skips import Skip, same_condition
from .verdict import Finding, Verdict

LEDGER_FAULTS = frozenset(
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

DEAD = ("duplicate", "ambiguous", "expired", "too-long")
"""What is wrong with a row whether or not something needs it."""

_NEW = "mend it: no lease permits a skip that base does not have"
_FORCED = "run it without its marker and see"
_IMPERATIVE = ("XFailed", "Skipped", "_pytest.outcomes.")


class Judged:
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
            yield finding("not-run", "a leased test did not finish in the candidate's run", each, "see src_score")
        elif (
            after.outcome == "xfailed"
            # Where base really failed, an xfail() from inside is another way to fail: the candidate may be calling it.
            and (_real(after) or _real(self.before[each]))
            and not signature_matches(lease.failure_signature, after.signature)
        ):
            yield _signature(lease, after, each)
            return
        if not isinstance(self.forced, SuiteBody) or not whole(self.forced):
            yield finding("forced-missing", "the forced run did not come to its end", each, _FORCED)
            return
        row = next((row for row in self.forced.tests if row.id == each), None)
        if row is None:
            yield finding("forced-missing", "the forced run says nothing of it", each, _FORCED)
        elif row.outcome in ("passed", "xpassed"):
            yield finding("retire", "passes when it is forced to run: the lease may be retired", each, verdict=Verdict.PASS)
        elif row.outcome == "skipped":
            yield self.unforced(row, each)
        elif not signature_matches(lease.failure_signature, row.signature):
            yield _signature(lease, row, each)

    def unforced(self, row: TestRow, each: str) -> Finding:
        """A skip inside the test cannot be taken away; that is believed only where base's own code skips just so."""
        body = self.forcedbase
        before = next((one for one in body.tests if one.id == each), None) if isinstance(body, SuiteBody) else None
        if before is not None and before.outcome == "skipped" and before.reason == row.reason:
            return finding("cannot-force", f"skips from inside: {row.reason}", each, verdict=Verdict.PASS)
        return finding("forced-skipped", f"skips when forced to run, and base does not: {row.reason}", each, _FORCED)

    def modules(self) -> Iterator[Finding]:
        """A module that skips as a whole, and one that base cannot collect but whose tests are marked."""
        for path, error in sorted(self.base.modules.items()):
            if error.startswith("Skipped:"):
                lease, why = self.permission(path)
                if why is not None:
                    yield self.lacks(why[0], f"the module skips on base ({error}); {why[1]}", path)
                elif lease is not None:
                    yield finding("cannot-force", f"the module skips when imported: {error}", path, verdict=Verdict.PASS)
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
            same = was is not None and was.outcome in SKIPPED and (was.outcome == "skipped") == (row.outcome == "skipped")
            marked = row.id in needed and was is not None and was.outcome not in SKIPPED
            if row.outcome in SKIPPED and not same and not marked:
                self.used |= {lease.name for lease in self.book.ledger.leases if covers(self.book, lease, row.id)}
                said = f": {row.reason}" if row.reason else ""
                reason = f"is {row.outcome} with this patch and {was.outcome if was else 'absent'} on base{said}"
                yield finding("new-skip", reason, row.id, _NEW)
        for path, error in sorted(self.run.modules.items()):
            if error.startswith("Skipped:") and not self.base.modules.get(path, "").startswith("Skipped:"):
                yield finding("new-skip", f"the module skips with this patch and not on base: {error}", path, _NEW)

    def unused(self) -> Iterator[Finding]:
        """Rows that no skip used are remarks; those that are dead are findings already."""
        for rows in (self.book.ledger.leases, self.book.ledger.standing):
            for row in rows:
                wrong = self.book.wrong(row, rows)
                if row.name not in self.used and (wrong is None or wrong[0] not in DEAD):
                    remedy = "remove it from the ledger"
                    yield finding("unused", "no skip on base needs this row", row.name, remedy, verdict=Verdict.PASS)

    def lacks(self, name: str, reason: str, subject: str) -> Finding:
        row = self.before.get(subject)
        signature = row.signature if row is not None and _real(row) else ""
        if name in ("no-lease", "standing-unconditional"):
            words = ["probatum", "lease", "add", subject, "--owner", "YOU", "--reason", "WHY", "--signature"]
            remedy = "mend it, or: " + shlex.join([*words, signature[:120] or "TYPE: MESSAGE"])
        else:
            remedy = f"mend it, or: probatum lease renew {shlex.quote(stem_of(subject))}"
        return finding(name, reason, subject, remedy)


def whole(body: SuiteBody) -> bool:
    return body.finished and body.nonce_ok and not body.junk


def _real(row: TestRow) -> bool:
    """Whether a row's signature is a failure's, not the imperative xfail's own exception."""
    return bool(row.signature) and not row.signature.startswith(_IMPERATIVE)


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
    return finding("signature-changed", reason, each, "mend it: the lease covers another failure")


def finding(name: str, reason: str, subject: str = "", remedy: str = "", verdict: Verdict = Verdict.BLOCK) -> Finding:
    return Finding(
        id=f"flake_lease/{name}",
        verdict=verdict,
        reason=reason,
        subject=subject,
        remedy=remedy or ("run the gate again" if name == "not-run" else ""),
        reproduce="probatum lease check" if name in LEDGER_FAULTS else "probatum judge flake_lease --evidence ci_out",
    )
