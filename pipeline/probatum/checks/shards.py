"""shards: the suite is collected once and split, and its parts must be an exact cover of the plan, first time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec

from ..core.check import Have, Note, Patch
from ..core.cover import law, success_line
from ..core.records import PatchBody, SuiteBody
from ..core.shard_stages import base_durations, base_quarantine, collect_stage, shard_stage, suite_tree
from ..core.shards import (
    Asked,
    ShardPlan,
    Suite,
    collection_problems,
    empty_manifest,
    live_rows,
    make_plan,
    manifest_of,
)
from ..core.split import KeepTogether
from ..core.stage import Facts, Outcome, Stage
from ..core.testimony import parse
from ..core.verdict import Finding, Verdict

MOST = 32
"""Shards that one gate runs; on many machines use ``probatum shards``."""
RECORDS: tuple[str, ...] = ("suite.collect", "shard.plan", *(f"suite.shard{index}" for index in range(MOST)))
BODIES: Mapping[str, type] = {"shard": ShardPlan}

ORDER = (
    *("not-run", "no-plan", "plan", "stale-plan", "corrupt", "missing-field", "out-of-range", "duplicate", "missing"),
    *("stale-commit", "other-run", "wrong-plan", "failed", "empty", "count", "retried", "quarantine"),
    *("node-twice", "node-extra", "misplaced", "node-dropped", "covered"),
)
"""Every finding, in the order in which a person wants to hear of them."""


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``count`` shards of the merged tree's own suite (``head``) or of the oracle over the merged production paths.

    ``keep_together``: never part the tests of one file or class. ``allow_empty``: fewer tests than shards is no error.
    """

    count: Annotated[int, msgspec.Meta(ge=1, le=MOST)] = 2
    suite: Suite = "head"
    keep_together: KeepTogether = ""
    allow_empty: bool = False


def plan(patch: Patch, have: Have) -> Iterable[Stage | Note]:
    """Collect; then the plan, as a record; then its shards together. Nothing for a patch that cannot be merged or scored."""
    record = have.get("patch")
    if not isinstance(record, PatchBody) or record.conflict or record.oracle:
        return
    options: Any = msgspec.convert(patch.policy.checks.get("shards", {}), Options)
    tree = suite_tree(patch, options.suite)
    collect = collect_stage(patch, options.suite, tree)
    yield collect
    body = have.get("suite.collect")
    if not isinstance(body, SuiteBody):
        return
    made = have.get("shard.plan")
    if made is None:
        asked = Asked(
            suite=options.suite,
            base=patch.subject.base,
            commit=patch.subject.head,
            merged_tree=patch.subject.merged_tree,
            policy_digest="",
            environment=patch.environment.ref,
            shards=options.count,
            keep_together=options.keep_together,
            allow_empty=options.allow_empty,
            run=patch.seed,
            tool="",
        )
        try:
            made = make_plan(asked, body, Facts(name="host"), base_durations(patch), base_quarantine(patch))
        except ValueError:
            return  # the verdict says why, from what was collected
        yield Note(kind="shard", part="plan", body=made, input_digest=collect.digest)
    for index, group in enumerate(made.groups):
        if group:
            yield shard_stage(patch, made, index, tree)


def read(stage: Stage, outcome: Outcome) -> Note:
    """The probe's report of the collection or of one shard."""
    part = stage.name.removeprefix("suite.")
    return Note(kind="suite", part=part, body=parse(outcome), input_digest=stage.digest, outcome=outcome)


def judge(have: Have, options: Options, now: int) -> list[Finding]:
    """The same law as ``probatum shards gate``, over the shards that this gate ran."""
    body, made = have.get("suite.collect"), have.get("shard.plan")
    if not isinstance(body, SuiteBody):
        return [_finding("not-run", "the suite was not collected", remedy="see oracle_integrity, or run the gate again")]
    if not isinstance(made, ShardPlan):
        whys = collection_problems(body) or [f"{options.count} shards and too few tests to fill them"]
        return [_finding("no-plan", why, remedy="mend the suite, or ask for fewer shards") for why in whys]
    manifests = []
    for index, group in enumerate(made.groups):
        found = have.get(f"suite.shard{index}")
        if isinstance(found, SuiteBody):
            outcome = Outcome(end=found.end, nonce="", facts=Facts(name="gate"))
            manifests.append(manifest_of(made, index, found, outcome, tool="", now=now))
        elif not group:
            manifests.append(empty_manifest(made, index, nonce="", now_us=now * 1_000_000, tool=""))
    findings = law(made, manifests, live_rows(made.quarantine, now))
    if not findings:
        return [_finding("covered", success_line(made), verdict=Verdict.PASS)]
    return in_order(findings)


def in_order(findings: Iterable[Finding]) -> list[Finding]:
    """What is wrong with the whole first, what is wrong with one test last."""
    return sorted(findings, key=lambda finding: ORDER.index(finding.id.partition("/")[2]))


def _finding(name: str, reason: str, remedy: str = "", verdict: Verdict = Verdict.BLOCK) -> Finding:
    return Finding(id=f"shards/{name}", verdict=verdict, reason=reason, remedy=remedy)
