"""src_score: only the patch's production code, laid over base's tree, against base's sealed tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Literal

import msgspec

from ..core.check import Have, Note, Patch
from ..core.lease_plan import SkipsBody, book_of
from ..core.leases import Malformed, expected_red
from ..core.records import PatchBody, SuiteBody, TestRow
from ..core.stage import Outcome, Stage
from ..core.table import proposed_paths
from ..core.twin_rule import LooksBody, judged
from ..core.verdict import Finding, Verdict

MOST = 32
"""Shards of the real run; one more holds the modules that base cannot collect."""
PARTS = (
    *("base", "run", "twins", "twincheck", "recheck", "proposed", "proposedbase"),
    *(f"run{index}" for index in range(MOST + 1)),
)

RECORDS: tuple[str, ...] = ("looks", *(f"suite.{part}" for part in PARTS))
BODIES: Mapping[str, type] = {"skips": SkipsBody, "looks": LooksBody}

COMPILED = (".c", ".cc", ".cpp", ".cxx", ".h", ".hpp", ".pyx", ".pxd", ".pxi", ".rs", ".f", ".f90", ".go")
RED = ("failed", "error")


class Twins(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``share`` of the suite's recorded time that control twins may take; never fewer than 20 ids or the whole suite."""

    share: float = 0.25


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``known_failures``: what tests get that fail on base and still fail. ``shards``: parts of the real run, at once."""

    known_failures: Literal["strict", "no-worse-than-base"] = "strict"
    twins: Twins = Twins()
    shards: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = 1


def plan(patch: Patch, have: Have) -> Iterable[Stage | Note]:
    """See core/score_plan.py; imported only where stages are planned, because a judge has no use for it."""
    from ..core import score_plan

    return score_plan.plan(patch, have)


def read(stage: Stage, outcome: Outcome) -> Note:
    """The probe's report as a SuiteBody; junk becomes a body that says junk."""
    from ..core import score_plan

    return score_plan.read(stage, outcome)


def judge(have: Have, options: Options, now: int) -> list[Finding]:
    """Every node id that base's sealed tests have, exactly once, no redder than on base, from an interpreter left alone."""
    patch, base, run = have.get("patch"), have.get("suite.base"), have.get("suite.run")
    if not isinstance(patch, PatchBody) or not isinstance(base, SuiteBody) or not isinstance(run, SuiteBody):
        return [_block("not-run", "the patch was not scored", remedy="see oracle_integrity, or run the gate again")]
    found = [*_content(patch), *_end(base, run)]
    if any(finding.verdict is Verdict.BLOCK for finding in found):
        return found
    exempt = _exempt(have, now)
    found += [*_modules(base, run, options, exempt), *_ids(base, run, have.get("suite.recheck"), options, exempt)]
    found += [*_watch(base, run), *_twins(have, options, patch, base, run)]
    return [*found, *_proposed(patch, have.get("suite.proposed"), have.get("suite.proposedbase"))]


def _exempt(have: Have, now: int) -> Callable[[str], bool]:
    """Whether a live expected_red row of base's ledger names a node id or a module; a broken ledger exempts nothing."""
    skips = have.get("skips")
    live: frozenset[str] = frozenset()
    if isinstance(skips, SkipsBody):
        try:
            book = book_of(skips, now, 90)
        except Malformed:
            return lambda name: False
        live = expected_red(book.ledger, book.modules, book.digest, now, book.max_days)
    return lambda name: any(name == row or name.startswith((f"{row}[", f"{row}::")) for row in live)


def _content(patch: PatchBody) -> Iterator[Finding]:
    """What is in the tree but cannot be scored here."""
    changed = {row.path for row in patch.changes}
    for path, why in patch.missing.items():
        verdict = Verdict.HOLD if path in changed else Verdict.PASS
        yield _finding(verdict, "missing-content", why, path, "commit the content itself, or move it out of product")
    for row in patch.changes:
        if row.class_ == "product" and row.path.endswith(COMPILED):
            yield _finding(
                Verdict.HOLD, "not-built", "a compiled source changed, and nothing here compiles it", row.path, _LOOK
            )
    for name in patch.self_import:
        yield _finding(Verdict.HOLD, "in-pytest", "pytest itself imports this package: no verdict in process", name, _LOOK)


def _end(base: SuiteBody, run: SuiteBody) -> Iterator[Finding]:
    """How the run ended, as the launcher saw it; what it reported of itself must agree."""
    tail = f": {run.tail}" if run.tail else ""
    if run.end.how == "over":
        yield _block(
            f"over-{run.end.limit}", f"the run went over its {run.end.limit} limit", remedy="see limits: in ci/gate.yaml"
        )
    elif run.end.how != "exited":
        yield _block("died", f"the run was ended by signal {run.end.code}{tail}")
    elif run.junk:
        yield _block("junk-report", f"the report cannot be read: {run.junk}")
    elif not (run.nonce_ok and run.finished):
        yield _block("unfinished", f"the tests' interpreter left with status {run.end.code} before the run was over{tail}")
    else:
        red = any(row.outcome in RED for row in run.tests) or any(error and not _skip(error) for error in run.modules.values())
        honest = (0,) if not red else (1,)
        allowed = {run.exitstatus} & ({*honest, base.end.code} if not red else {1, 2})
        if run.end.code not in allowed:
            said = f"exit status {run.end.code} outside, {run.exitstatus} inside, {'red' if red else 'no red'} tests reported"
            yield _block("exit-status", said)


def _modules(base: SuiteBody, run: SuiteBody, options: Options, exempt: Callable[[str], bool]) -> Iterator[Finding]:
    """Every sealed module that base collects is collected; one that base cannot collect must be, and pass whole."""
    for path, was in sorted(base.modules.items()):
        error = run.modules.get(path, "was never reached")
        rows = [row for row in run.tests if row.id.startswith(f"{path}::")]
        if _skip(was) and _skip(error):
            continue  # a skipped module is flake_lease's
        if was == "":
            if error:
                yield _block("not-collected", f"base collects this module, the patch does not: {error}", path)
        elif exempt(path):
            yield _remark("expected-red", "an expected_red row exempts this module", path)
        elif error and options.known_failures == "strict":
            yield _block("still-red", f"neither base nor the patch collects this module: {error}", path, _KNOWN)
        elif not error:
            for row in rows:
                if row.outcome != "passed":
                    yield _block("newly-red", f"new here, and {row.outcome}: {row.signature or row.reason}", row.id)
            if not rows:
                yield _block("vanished", "the module is collected now, but none of its tests ran", path)
    for path in sorted(set(run.modules) - set(base.modules)):
        yield _block("extra", "a module that base's sealed suite does not have", path)


def _skip(error: str) -> bool:
    """A module that skips itself while it is collected is reported so by the probe."""
    return error.startswith("Skipped:")


def _ids(
    base: SuiteBody, run: SuiteBody, recheck: SuiteBody | None, options: Options, exempt: Callable[[str], bool]
) -> Iterator[Finding]:
    """Exactly base's node ids, each once, none redder than there."""
    here = {row.id: row for row in run.tests}
    again = {row.id: row for row in recheck.tests} if recheck else {}
    for was in base.tests:
        row = here.get(was.id)
        if row is None:
            yield _block("vanished", f"base reports this test ({was.outcome}), the patch's run does not", was.id)
        elif row.times != was.times:
            yield _block("duplicated", f"ran {row.times} times, {was.times} on base", was.id)
        elif row.outcome in RED and was.outcome in RED:
            yield _still_red(row, options, exempt)
        elif row.outcome in RED:
            yield _newly_red(was, row, again.get(was.id))
        elif row.outcome in ("skipped", "xfailed") and was.outcome not in ("skipped", "xfailed"):
            yield _block("newly-skipped", f"{was.outcome} on base, {row.outcome} here: {row.reason}", row.id)
    known = {row.id for row in base.tests}
    late = tuple(f"{path}::" for path, error in base.modules.items() if error)
    for row in run.tests:
        if row.id not in known and not row.id.startswith(late):
            yield _block("extra", "base's sealed suite has no such test", row.id)
    for missing in sorted(set(run.collected) - set(here)):
        yield _block("vanished", "was collected and never reported", missing)
    for ran in sorted(set(here) - set(run.collected)):
        yield _block("extra", "was reported and never collected", ran)
    mended = sum(was.outcome in RED and here.get(was.id, was).outcome == "passed" for was in base.tests)
    if mended:
        yield _remark("mended", f"{mended} of base's red tests pass here")


def _still_red(row: TestRow, options: Options, exempt: Callable[[str], bool]) -> Finding:
    if exempt(row.id):
        return _remark("expected-red", "red on base and here; an expected_red row exempts it", row.id)
    if options.known_failures == "strict":
        return _block("still-red", f"red on base and still red: {row.signature}", row.id, _KNOWN)
    return _remark("still-red", f"red on base and still red: {row.signature}", row.id)


def _newly_red(was: TestRow, row: TestRow, again: TestRow | None) -> Finding:
    """Run again on base only, never on the candidate: a test that fails there too is a flaky oracle."""
    if again is not None and again.outcome in RED:
        lease = f"probatum lease add '{row.id}' --signature '{again.signature[:80]}' --owner WHO --reason WHY"
        return _finding(
            Verdict.HOLD, "flaky-oracle", f"red here, and red when base ran again: {again.signature}", row.id, lease
        )
    return _block("newly-red", f"{was.outcome} on base, {row.outcome} here: {row.signature}", row.id, "mend the product code")


def _watch(base: SuiteBody, run: SuiteBody) -> Iterator[Finding]:
    """What was loaded before the candidate is left as base leaves it."""
    for change in run.watch:
        if change not in base.watch:
            yield _block("tampered", "was changed while the patch's code ran; base leaves it alone", change, "do not patch it")


def _twins(have: Have, options: Options, patch: PatchBody, base: SuiteBody, run: SuiteBody) -> Iterator[Finding]:
    """What the control twins and the disguised run say."""
    twins, check, words = have.get("suite.twins"), have.get("suite.twincheck"), have.get("looks")
    if isinstance(twins, SuiteBody):
        yield from judged(patch, base, run, twins, check, words)
    elif any(base.tests) and options.twins.share > 0:
        yield _block("no-twins", "control twins were never run", remedy="run the gate again")


def _proposed(patch: PatchBody, here: SuiteBody | None, before: SuiteBody | None) -> Iterator[Finding]:
    """The patch's own tests must pass on the patch; how many fail without it is told. They never score for the oracle."""
    if here is None:
        if proposed_paths(patch):
            yield _block("proposed-not-run", "the patch's own tests were not run", remedy="run the gate again")
        return
    if here.end.how != "exited" or here.junk or not here.finished:
        how = f"over {here.end.limit}" if here.end.how == "over" else f"{here.end.how} {here.end.code}"
        yield _block("proposed-failed", f"the patch's own tests did not run to their end ({how})")
        return
    for path, error in here.modules.items():
        if error:
            yield _block("proposed-failed", f"the patch's own module is not collected: {error}", path, "mend the new test")
    for row in here.tests:
        if row.outcome in RED:
            yield _block(
                "proposed-failed", f"the patch's own test is red: {row.signature}", row.id, "mend the test or the code"
            )
    green = sum(row.outcome == "passed" for row in here.tests)
    red = {row.id for row in before.tests if row.outcome in RED} if before else set()
    lost = {path for path, error in before.modules.items() if error} if before else set()
    fail = sum(row.id in red or row.id.partition("::")[0] in lost for row in here.tests)
    yield _remark("proposed", f"{len(here.tests)} new tests, {fail} fail on base, {green} pass here")


_LOOK = "a human looks at it"
_KNOWN = "mend it, or name it in the ledger's expected_red, or set known_failures: no-worse-than-base"


def _block(name: str, reason: str, subject: str = "", remedy: str = "") -> Finding:
    return _finding(Verdict.BLOCK, name, reason, subject, remedy)


def _remark(name: str, reason: str, subject: str = "") -> Finding:
    return _finding(Verdict.PASS, name, reason, subject, "")


def _finding(verdict: Verdict, name: str, reason: str, subject: str, remedy: str) -> Finding:
    reproduce = "probatum judge src_score --evidence ci_out"
    return Finding(id=f"src_score/{name}", verdict=verdict, reason=reason, subject=subject, remedy=remedy, reproduce=reproduce)
