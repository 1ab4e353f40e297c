"""The page's decision table is the parameters: every row bends a good run, and every way to bend it is a row."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pages
import shard_kit as kit
from probatum import cli
from probatum.checks import shards as check
from probatum.core.cover import Reviewed, law
from probatum.core.records import SuiteBody
from probatum.core.shards import ShardPlan, live_rows
from probatum.core.stage import End
from probatum.core.verdict import Finding, Verdict, verdict_of

Scenario = Callable[[Path], tuple[Verdict, set[str]]]


def names(findings: list[Finding]) -> set[str]:
    return {finding.id.partition("/")[2] for finding in findings}


def in_gate(plan: ShardPlan | None, collected: SuiteBody | None, **bodies: SuiteBody) -> Scenario:
    """What the check says of records."""

    def judged(_: Path) -> tuple[Verdict, set[str]]:
        have: dict[str, Any] = {f"suite.{name}": body for name, body in bodies.items()}
        have |= {"shard.plan": plan} if plan else {}
        have |= {"suite.collect": collected} if collected else {}
        found = check.judge(have, check.Options(count=3), kit.NOW)
        return verdict_of(found), names(found)

    return judged


def whole(plan: ShardPlan) -> Scenario:
    bodies = {f"shard{index}": kit.suite(group) for index, group in enumerate(plan.groups) if group}
    return in_gate(plan, kit.suite(plan.node_ids), **bodies)


def bent(bend: kit.Divergence) -> Scenario:
    """What the command says of files."""

    def gated(folder: Path) -> tuple[Verdict, set[str]]:
        plan = kit.made()
        kit.lay(folder, plan, kit.all_of(plan))
        bend(folder, random.Random(1))
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = cli.main(["shards", "gate", str(folder)])
        said = {line.partition(":")[0].partition("/")[2] for line in out.getvalue().splitlines() if line.startswith("shards/")}
        return (Verdict.PASS, {"covered"}) if code == 0 else (Verdict.BLOCK, said)

    return gated


def reviewed(commits: Reviewed) -> Scenario:
    def judged(_: Path) -> tuple[Verdict, set[str]]:
        plan = kit.made()
        found = law(plan, kit.all_of(plan), (), commits)
        return verdict_of(found), names(found)

    return judged


def again(expires: int) -> Scenario:
    """Shard 0 needed a second attempt for a test with a quarantine row."""

    def judged(_: Path) -> tuple[Verdict, set[str]]:
        leased = kit.made().groups[0][0]
        plan = kit.made(rows=(kit.row(leased, expires),))
        one = kit.manifest(plan, 0, attempts=2, retried=(leased,))
        found = law(plan, [one, *kit.all_of(plan)[1:]], live_rows(plan.quarantine, kit.NOW))
        return verdict_of(found), names(found) or {"covered"}

    return judged


def second_attempt(folder: Path, dice: random.Random) -> str:
    kit.edit(folder / "shard-1.json", attempts=2)
    return "retried"


def failing(plan: ShardPlan) -> Scenario:
    red = {plan.groups[1][0]: "AssertionError: assert 1 == 2"}
    bodies = {f"shard{index}": kit.suite(group, red if index == 1 else {}) for index, group in enumerate(plan.groups)}
    return in_gate(plan, kit.suite(plan.node_ids), **bodies)


NONE = kit.suite((), end=End("exited", 5), exitstatus=5)
SCENARIOS: dict[str, Scenario] = {
    "three manifests that cover the plan": whole(kit.made()),
    "a shard that the plan declares empty": whole(kit.made(2, allow_empty=True)),
    "attempt 2 of a test with a live quarantine lease": again(kit.NOW + 10),
    "nothing was collected in this gate": in_gate(None, None),
    "a module cannot be collected": in_gate(None, kit.suite(("a.py::t",), modules={"b.py": "ImportError: c"})),
    "no test was collected": in_gate(None, NONE),
    "fewer tests than shards": in_gate(None, kit.suite(("a.py::t",))),
    "the plan was edited": bent(kit.edited_plan),
    "the plan is of another head": reviewed(Reviewed(head="d" * 40)),
    "the plan is on another base": reviewed(Reviewed(base="d" * 40)),
    "a shard is lost": bent(kit.lost),
    "a manifest twice": bent(kit.duplicated),
    "an index that the plan does not have": bent(kit.extra_shard),
    "a shard tested another commit": bent(kit.stale_commit),
    "a shard ran another plan": bent(kit.wrong_plan),
    "a manifest of another run": bent(kit.other_run),
    "a shard failed": failing(kit.made()),
    "a shard was cancelled": bent(kit.cancelled),
    "a shard ran nothing": bent(kit.empty_shard),
    "the count is not the list's": bent(kit.miscounted),
    "attempt 2": bent(second_attempt),
    "attempt 2 of a test whose lease has expired": again(kit.NOW),
    "a quarantine that no lease gives": bent(kit.claimed),
    "a test was dropped": bent(kit.node_dropped),
    "a test ran in two shards": bent(kit.node_twice),
    "a test that the plan does not have": bent(kit.unknown_node),
    "two shards swapped a test": bent(kit.swapped),
    "a manifest is cut short": bent(kit.truncated),
    "a manifest lacks a field": bent(kit.missing_field),
}


@pytest.mark.parametrize(("scenario", "verdict", "finding"), pages.rows("shards"))
def test_row(scenario: str, verdict: str, finding: str, tmp_path: Path) -> None:
    judged, found = SCENARIOS[scenario](tmp_path / "shards")
    assert judged is Verdict[verdict]
    assert found == {finding}


def test_every_scenario_is_a_row_and_every_finding_has_its_place() -> None:
    assert [scenario for scenario, _, _ in pages.rows("shards")] == list(SCENARIOS)
    assert set(check.ORDER) == set(pages.findings("shards"))
    assert {finding for _, _, finding in pages.rows("shards")} == set(check.ORDER)


def test_less_evidence_never_means_more_merge() -> None:
    plan = kit.made()
    bodies: dict[str, Any] = {f"suite.shard{index}": kit.suite(group) for index, group in enumerate(plan.groups)}
    have = {"suite.collect": kit.suite(plan.node_ids), "shard.plan": plan, **bodies}
    assert verdict_of(check.judge(have, check.Options(count=3), kit.NOW)) is Verdict.PASS
    for gone in have:
        less = {name: body for name, body in have.items() if name != gone}
        assert verdict_of(check.judge(less, check.Options(count=3), kit.NOW)) is Verdict.BLOCK
