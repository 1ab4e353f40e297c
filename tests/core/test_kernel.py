"""Laws of the kernel: canonical bytes, the join, the envelope, lanes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from probatum.core import canonical, evidence
from probatum.core.join import decide
from probatum.core.lanes import LANES, may_write
from probatum.core.records import PlanBody, VerdictBody
from probatum.core.stage import Blob, Facts, Runtime, Stage, Tree
from probatum.core.verdict import Finding, Verdict, join, verdict_of
from probatum.errors import EvidenceCorrupt

VERDICTS = st.sampled_from(list(Verdict))
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.lists(VERDICTS, min_size=1), st.lists(VERDICTS))
def test_join_is_the_maximum_and_monotonic(some: list[Verdict], more: list[Verdict]) -> None:
    assert join(some) in some
    assert all(join(some) >= each for each in some)
    assert join([*some, *more]) >= join(some)
    assert join(some) is join(reversed(some)) is join(some * 2)
    assert join([join(some), *more]) is join([*some, *more])


def test_join_of_nothing_blocks() -> None:
    assert join([]) is Verdict.BLOCK


@given(PLAIN)
def test_canonical_bytes_are_a_fixed_point(value: Any) -> None:
    data = canonical.encode(value)
    assert canonical.encode(json.loads(data)) == data
    assert data.endswith(b"\n") and data.count(b"\n") == 1


@given(st.dictionaries(st.text(), st.integers(0, 9), min_size=2))
def test_canonical_bytes_do_not_depend_on_order(value: dict[str, int]) -> None:
    assert canonical.encode(value) == canonical.encode(dict(reversed(value.items())))


@pytest.mark.parametrize("value", [1.0, {"a": [0.5]}, float("nan"), {1: 2}])
def test_what_has_no_canonical_form_is_refused(value: Any) -> None:
    with pytest.raises(TypeError):
        canonical.encode(value)


@given(st.binary(max_size=200))
def test_paths_escape_and_come_back(path: bytes) -> None:
    text = canonical.escape(path)
    assert canonical.unescape(text) == path
    assert text.isprintable() or text == ""


PLAN = PlanBody(
    required=("a", "b"),
    off={},
    records=(),
    authority="advisory",
    why_advisory="x",
    policy_source="y",
    policy={},
    now=1,
    seed="",
)


def predicate(kind: str, part: str, body: Any) -> evidence.Predicate[Any]:
    return evidence.Predicate(
        kind=kind,
        part=part,
        lane="gate",
        attempt=1,
        status="complete",
        started="s",
        finished="f",
        base="1" * 40,
        head="2" * 40,
        merged_tree="3" * 40,
        input_digest="",
        nonce="n",
        tool="t",
        policy_digest="p",
        engine=Facts(name="e"),
        body=body,
    )


def verdict(name: str, value: Verdict, *findings: Finding) -> evidence.Predicate[VerdictBody]:
    return predicate("verdict", name, VerdictBody(name=name, verdict=value, findings=findings))


def test_envelope_comes_back() -> None:
    plan = predicate("plan", "", PLAN)
    assert evidence.unseal(evidence.seal(plan), PlanBody, "plan.json") == plan


@given(st.data())
def test_any_changed_byte_of_a_record_is_seen(data: st.DataObject) -> None:
    """A changed byte makes the record corrupt or another one; it never decodes to the same."""
    plan = predicate("plan", "", PLAN)
    raw = bytearray(evidence.seal(plan))
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))
    try:
        assert evidence.unseal(bytes(raw), PlanBody, "plan.json") != plan
    except EvidenceCorrupt:
        pass


@pytest.mark.parametrize(
    "spoil",
    [
        lambda raw: raw[:-1],
        lambda raw: raw + b"\n",
        lambda raw: raw.replace(b'"now":1', b'"now":1,"now":1'),
        lambda raw: raw.replace(b'"now":1', b'"now": 1'),
        lambda raw: raw.replace(b'"now":1', b'"now":1.0'),
        lambda raw: raw.replace(b'"now":1', b'"extra":0,"now":1'),
        lambda raw: raw.replace(b'"gitCommit":"1', b'"gitCommit":"9'),
        lambda raw: raw.replace(b'"attempt":1', b'"attempt":0'),
        lambda raw: raw.replace(b'"lane":"gate"', b'"lane":"draft"'),
        lambda raw: raw.replace(b'"status":"complete"', b'"status":"cancelled"'),
        lambda raw: b"",
        lambda raw: b"\xff" + raw,
        lambda raw: b"[" * 100_000,
    ],
)
def test_a_spoilt_record_is_corrupt(spoil: Any) -> None:
    with pytest.raises(EvidenceCorrupt):
        evidence.unseal(spoil(evidence.seal(predicate("plan", "", PLAN))), PlanBody, "plan.json")


def test_a_lane_without_authority_writes_nothing() -> None:
    with pytest.raises(EvidenceCorrupt):
        evidence.seal(replace(predicate("verdict", "a", PLAN), lane="draft"))
    assert not any(may_write(lane, "verdict") for lane in LANES if lane != "gate")
    assert not may_write("nobody", "plan")


@given(st.dictionaries(st.sampled_from(["a", "b"]), VERDICTS))
def test_the_decision_needs_every_verdict(given_: dict[str, Verdict]) -> None:
    plan = predicate("plan", "", PLAN)
    decision = decide(plan, "d", {name: verdict(name, value) for name, value in given_.items()})
    expected = join([given_.get("a", Verdict.BLOCK), given_.get("b", Verdict.BLOCK)])
    assert decision.decision == {"PASS": "MERGE_OK", "HOLD": "MERGE_HELD", "BLOCK": "MERGE_BLOCKED"}[expected.value]
    assert decision.line.startswith(decision.decision)


@pytest.mark.parametrize("field", ["base", "head", "merged_tree", "attempt", "policy_digest", "tool"])
def test_a_verdict_of_another_patch_does_not_count(field: str) -> None:
    plan = predicate("plan", "", PLAN)
    foreign = replace(verdict("b", Verdict.PASS), **{field: 2 if field == "attempt" else "other"})
    decision = decide(plan, "d", {"a": verdict("a", Verdict.PASS), "b": foreign})
    assert decision.line == "MERGE_BLOCKED: b=BLOCK"


def test_a_verdict_milder_than_its_findings_does_not_count() -> None:
    plan = predicate("plan", "", replace(PLAN, required=("a",)))
    finding = Finding(id="a/x", verdict=Verdict.HOLD, reason="r")
    assert decide(plan, "d", {"a": verdict("a", Verdict.PASS, finding)}).decision == "MERGE_HELD"


def test_a_plan_that_requires_nothing_blocks() -> None:
    assert decide(predicate("plan", "", replace(PLAN, required=())), "d", {}).decision == "MERGE_BLOCKED"


def test_findings_join_and_nothing_passes_silently() -> None:
    assert verdict_of([]) is Verdict.PASS
    assert verdict_of([Finding(id="a/x", verdict=Verdict.BLOCK, reason="r")]) is Verdict.BLOCK


@given(st.dictionaries(st.binary(min_size=1, max_size=9), st.binary(max_size=9), max_size=5))
def test_a_trees_digest_is_its_content(files: dict[bytes, bytes]) -> None:
    tree = Tree({path: Blob(0o100644, data=data) for path, data in files.items()})
    again = Tree({path: Blob(0o100644, data=data) for path, data in reversed(files.items())})
    assert tree.digest == again.digest
    assert tree.with_files({b"\0new": Blob(0o100644, data=b"")}).digest != tree.digest
    if files:
        path = next(iter(files))
        assert tree.with_files({path: Blob(0o100755, data=files[path])}).digest != tree.digest


@pytest.mark.parametrize(
    "change",
    [
        {"trust": "base"},
        {"runtime": Runtime("environment", "r")},
        {"argv": ("y",)},
        {"env": (("A", "b"),)},
        {"stdin": b"x"},
        {"cwd": "/w"},
        {"scratch": ("/s",)},
        {"outputs": ("o",)},
    ],
)
def test_a_stages_digest_covers_what_it_reads(change: dict[str, Any]) -> None:
    stage = Stage(name="n", trust="candidate", runtime=Runtime("gate", "g"), mounts=(), argv=("x",))
    assert replace(stage, **change).digest != stage.digest
    assert replace(stage, name="other").digest == stage.digest
