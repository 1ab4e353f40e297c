"""The table of failures, the ledger's chain, and the stage of a replay."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probatum.core import replay, replay_ledger
from probatum.core.check import Patch
from probatum.core.evidence import Subject
from probatum.core.policy import Policy
from probatum.core.replay_facts import FACTS, kind_of
from probatum.core.replay_ledger import Asked, Refused, parse
from probatum.core.stage import Blob, End, Facts, Outcome, Runtime, Tree
from probatum.errors import EvidenceCorrupt
from replay_kit import BASE, HEAD, TREE, Case

DOCS = Path(__file__).resolve().parents[2] / "docs/cold-replay.md"


def test_the_page_has_the_table_of_failures() -> None:
    section = re.search(r"<!-- facts -->\n(.*?)<!-- /facts -->", DOCS.read_text("utf-8"), re.S)
    assert section is not None
    rows = re.findall(r"^\| (\w+) \| (\w+) \| (\w+) \|$", section[1], re.M)[1:]
    assert rows == [(fact.where, fact.fact, fact.kind) for fact in FACTS]


@pytest.mark.parametrize("how", ["exited", "signalled", "over"])
def test_what_candidate_code_can_make_is_the_product_s(how: str) -> None:
    """137, 143, 75, SIGKILL and a stage's own memory limit buy nothing: the table does not even see them."""
    assert kind_of("command", how) == "product"


@given(st.text(), st.text())
def test_a_failure_that_nobody_knows_is_the_product_s(where: str, fact: str) -> None:
    known = {(row.where, row.fact) for row in FACTS}
    assert kind_of(where, fact) == "product" or (where, fact) in known


def ledger(*whats: str, run: int = 0) -> list[bytes]:
    """A chain of replays that each begin, and end as told ("" for one that never did)."""
    case = Case()
    case.lines = []
    for number, what in enumerate(whats, 1):
        case.add("began", run=f"{run + number:032x}", attempt=number)
        if what:
            case.add(what, run=f"{run + number:032x}", attempt=number, why="why")
    return case.lines


@given(st.data())
def test_removed_edited_and_moved_lines_show(data: st.DataObject) -> None:
    lines = ledger("infrastructure", "passed", "failed")
    at = data.draw(st.integers(0, len(lines) - 1))
    how = data.draw(st.sampled_from(["remove", "edit", "move", "twice", "cut"]))
    bent = list(lines)
    if how == "remove" and at < len(lines) - 1:  # the last line is the record's to miss, and the live ledger's
        del bent[at]
    elif how == "edit":
        byte = data.draw(st.integers(0, len(lines[at]) - 2))
        bent[at] = lines[at][:byte] + bytes([lines[at][byte] ^ 1]) + lines[at][byte + 1 :]
        if at == len(lines) - 1:
            return  # nothing follows it: the record's digest holds it
    elif how == "move":
        bent[at], bent[(at + 1) % len(bent)] = bent[(at + 1) % len(bent)], bent[at]
    elif how == "twice":
        bent.insert(at, lines[at])
    else:
        bent[-1] = bent[-1][:-1]
    if bent != lines:
        with pytest.raises(EvidenceCorrupt):
            parse(b"".join(bent))


def asked(**changed: str) -> Asked:
    case = parse(b"".join(ledger("")))[0]
    return Asked(**{"change": "7", "subject": case.subject, "base": BASE, "head": HEAD, "tree": TREE, **changed})


@pytest.mark.parametrize(
    ("whats", "attempt"),
    [((), 1), (("",), 2), (("infrastructure",), 2), (("passed",), 2), (("", "infrastructure"), 3)],
)
def test_the_first_run_is_free_and_two_more_may_follow(whats: tuple[str, ...], attempt: int) -> None:
    assert replay_ledger.attempt(parse(b"".join(ledger(*whats))), asked()) == attempt


@pytest.mark.parametrize(
    ("whats", "name"),
    [(("failed",), "product"), (("infrastructure", "failed"), "product"), (("", "", ""), "spent"), (("passed",) * 3, "spent")],
)
@pytest.mark.parametrize("change", ["7", "another name for it"])
def test_no_name_of_a_change_buys_more(whats: tuple[str, ...], name: str, change: str) -> None:
    with pytest.raises(Refused) as refused:
        replay_ledger.attempt(parse(b"".join(ledger(*whats))), asked(change=change))
    assert refused.value.name == name


def test_the_budget_is_the_change_s_over_all_its_trees() -> None:
    lines = parse(b"".join(ledger("infrastructure", "infrastructure", "passed")))
    assert replay_ledger.attempt(lines, asked(subject="another tree")) == 1  # a first run
    case = Case()
    case.lines = ledger("infrastructure", "infrastructure", "passed")
    case.add("began", run="f" * 32, subject="another tree")
    with pytest.raises(Refused, match="2 replays of this change are spent"):
        replay_ledger.attempt(parse(b"".join(case.lines)), asked(subject="another tree"))


def patch(**checks: Any) -> Patch:
    """A patch of one product file over three sealed modules."""
    modules = (b"tests/sealed/test_a.py", b"tests/sealed/unit/test_b.py", b"tests/sealed/unit/test_c.py")
    sealed = Tree({path: Blob(0o100644, data=b"def test(): pass\n") for path in modules})
    return Patch(
        subject=Subject(base=BASE, head=HEAD, merged_tree=TREE),
        policy=Policy(version=1, checks={"cold_replay": checks}),
        changes=(),
        classes={},
        class_of=lambda path: "oracle" if path.startswith(b"tests/sealed/") else "product",
        base=sealed.with_files({b"src/a.py": Blob(0o100644, data=b"1")}),
        merged=sealed.with_files({b"src/a.py": Blob(0o100644, data=b"2")}),
        sealed=sealed,
        modules=modules,
        read=lambda oid: b"",
        environment=Runtime("environment", "sha256:" + "e" * 64),
        probe=Tree({b"run.py": Blob(0o100644, data=b"")}),
        generated=Tree({}),
        seed="s",
        now=1,
    )


def test_a_replay_is_never_answered_from_a_cache_and_each_seed_is_another_stage() -> None:
    probe = Tree({b"cold.py": Blob(0o100644, data=b"")})
    one, two = (replay.stage(patch(), seed, probe) for seed in (1, 2))
    assert not one.reusable and one.trust == "candidate" and one.digest != two.digest
    assert [json.loads(stage.stdin)["jobs"][0]["order"] for stage in (one, two)] == [1, 2]
    assert one.argv[-1] == "/probe/cold.py" and one.mounts[0].tree is probe
    tree = one.mounts[1].tree.files
    assert tree[b"src/a.py"].data == b"2"


def test_policy_may_name_a_hermetic_subset() -> None:
    stage = replay.stage(patch(only=["tests/sealed/unit/**"]), 1, Tree({}))
    assert json.loads(stage.stdin)["jobs"][0]["modules"] == ["tests/sealed/unit/test_b.py", "tests/sealed/unit/test_c.py"]
    whole, some = (replay.suite_text(replay.options_of(patch(**given).policy)) for given in ({}, {"only": ["tests/**"]}))
    assert whole != some


EXITED = End("exited")


def read(report: bytes, end: End = EXITED, **facts: Any) -> replay.Admission:
    outcome = Outcome(end=end, nonce="n" * 32, report=report, first_process=2_000_000, facts=Facts(name="bubblewrap", **facts))
    return replay.read(
        replay.reality(patch()),
        outcome,
        head_tree=TREE,
        nonce="n" * 32,
        seed=1,
        change="7",
        ledger="",
        started_us=1_000_000,
        caches={},
        toolchain={},
        may_fail=(),
        runtime=Runtime("environment", "sha256:" + "e" * 64),
    )


@given(st.binary(max_size=300))
def test_junk_is_a_record_that_fails(report: bytes) -> None:
    body = read(report)
    assert (body.result, body.cache) == ("fail", "warm") and body.reason


def test_a_report_that_stops_fails() -> None:
    first = {
        "r": "cold", "nonce": "n" * 32, "first_us": 2_000_000, "now_us": 2_100_000, "spaces": {}, "bytecode": 0, "files": 5,
        "mtime_us": 1_500_000, "ctime_us": 1_500_000, "python": "3.12.1", "packages": {"pytest": "9"},
    }  # fmt: skip
    line = json.dumps(first).encode() + b"\n"
    body = read(line)
    assert (body.result, body.cache) == ("fail", "cold") and body.toolchain == {"package:pytest": "9"}
    assert read(line, cache="reused").cache == "warm"
    assert read(line, End("over", limit="wall")).reason == "ended: over wall"
    for key, value in {
        "mtime_us": 1,
        "nonce": "m" * 32,
        "bytecode": 1,
        "spaces": {"/tmp": 2},
        "files": 0,
        "first_us": 1,
    }.items():
        assert read(json.dumps({**first, key: value}).encode() + b"\n").cache == "warm", key


def hook(after: bytes | None) -> str:
    made = patch()
    policy = b"version: 1\nchecks: {cold_replay: {hook_version: 1}}\n"
    texts = {"before": policy, "after": after}
    base = made.base.with_files({b"ci/gate.yaml": Blob(0o100644, oid="before")})
    merged = base if after == policy else made.merged if after is None else made.merged.with_files(
        {b"ci/gate.yaml": Blob(0o100644, oid="after")}
    )  # fmt: skip
    import msgspec

    found = msgspec.structs.replace(made, base=base, merged=merged, read=lambda oid: texts[oid])
    return replay.reality(found).hook_changed


@pytest.mark.parametrize(
    ("after", "says"),
    [
        (b"version: 1\nchecks: {cold_replay: {hook_version: 1}}\n", ""),
        (b"version: 1\nchecks: {cold_replay: {}}\n", ""),
        (b"version: 1\nchecks: {cold_replay: {hook_version: 2}}\n", "hook_version 1 becomes 2"),
        (b"version: 1\nchecks: {cold_replay: {hook_version: true}}\n", "hook_version 1 becomes"),
        (b"version: 1\nchecks: {src_score: {}}\n", "names no cold_replay"),
        (b"checks: [", "names no cold_replay"),
        (None, "is gone in this diff"),
    ],
)
def test_a_diff_that_moves_the_hook_version_is_seen(after: bytes | None, says: str) -> None:
    assert says in hook(after) and bool(says) == bool(hook(after))
