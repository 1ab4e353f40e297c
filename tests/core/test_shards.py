"""The law: a set of manifests passes if and only if it is an exact cover of the plan at this head, first time."""

from __future__ import annotations

import contextlib
import io
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import shard_kit as kit
from probatum import cli
from probatum.core import canonical
from probatum.core.cover import Reviewed, law
from probatum.core.durations import updated
from probatum.core.redact import redact
from probatum.core.shards import Manifest, ShardPlan, live_rows, make_plan, manifest_of, parse, plan_digest
from probatum.core.stage import End, Facts
from probatum.errors import EvidenceCorrupt
from probatum.report.schemas import schema
from probatum.report.shards import junit

INJECTED = 1000


def gate(folder: Path, *args: str) -> tuple[int, str]:
    """Exit code and output of ``probatum shards gate``."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        code = cli.main(["shards", "gate", str(folder), *args])
    return code, out.getvalue()


def test_a_thousand_injected_divergences_are_refused_each_with_its_reason(tmp_path: Path) -> None:
    dice, told = random.Random(5), Counter[str]()
    for number in range(INJECTED):
        shards = dice.randint(2, 6)
        plan = kit.made(shards * dice.randint(2, 6), shards, run=f"{dice.getrandbits(128):032x}")
        folder = tmp_path / str(number)
        kit.lay(folder, plan, kit.all_of(plan))
        bend = kit.DIVERGENCES[number % len(kit.DIVERGENCES)]
        if number < 50:
            assert gate(folder)[0] == 0
        reason = bend(folder, dice)
        code, said = gate(folder)
        lines = said.splitlines()
        assert code == 1, (bend.__name__, said)
        assert any(line.startswith(f"shards/{reason}: ") for line in lines[:-1]), (bend.__name__, said)
        assert all(line.startswith("shards/") for line in lines[:-1]) and lines[-1].startswith("SHARDS_BLOCKED: ")
        told[bend.__name__] += 1
    assert sum(told.values()) == INJECTED and set(told) == {bend.__name__ for bend in kit.DIVERGENCES}


FIELDS: dict[str, list[Any]] = {
    "commit": [kit.HEAD, "d" * 40],
    "plan_digest": [None, "sha256:0"],
    "run": ["r" * 32, "s" * 32],
    "status": ["passed", "failed", "cancelled"],
    "attempts": [1, 2],
    "shards": [None, 7],
    "base": [kit.BASE, "d" * 40],
}


@settings(max_examples=400, deadline=None)
@given(data=st.data(), count=st.integers(1, 8), shards=st.integers(1, 4))
def test_the_law(data: st.DataObject, count: int, shards: int) -> None:
    """Any set of manifests, of any shards, with any ids, of any commit, plan, run, status and attempt."""
    plan = kit.made(count, shards, allow_empty=True)
    manifests = []
    for index in data.draw(st.one_of(st.just(list(range(shards))), st.lists(st.integers(-1, shards), max_size=shards + 1))):
        group = list(plan.groups[index]) if 0 <= index < shards else []
        ids = data.draw(st.one_of(st.permutations(group), st.lists(st.sampled_from([*plan.node_ids, "new.py::t"]), max_size=4)))
        found = kit.manifest(plan, index if 0 <= index < shards else 0)
        count_ = len(ids) + data.draw(st.sampled_from([0, 0, 0, 1]))
        found = msgspec.structs.replace(found, index=index, node_ids=tuple(ids), collected=count_)
        for name in data.draw(st.lists(st.sampled_from(sorted(FIELDS)), max_size=1)):
            value = data.draw(st.sampled_from(FIELDS[name]))
            found = msgspec.structs.replace(found, **({} if value is None else {name: value}))
        manifests.append(found)
    assert (law(plan, manifests, ()) == []) == exact_cover(plan, manifests)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("commit", "d" * 40), ("base", "d" * 40), ("merged_tree", "d" * 40), ("plan_digest", "sha256:0"), ("run", "s")),
        *(
            ("shards", 7),
            ("index", 7),
            ("index", 0),
            ("status", "cancelled"),
            ("attempts", 2),
            ("attempts", 0),
            ("collected", 0),
        ),
        *(("retried", ("x",)), ("quarantined", ("x",)), ("node_ids", ()), ("end", End("exited", 1))),
    ],
)
def test_one_wrong_field_in_a_good_set_is_enough(field: str, value: Any) -> None:
    plan = kit.made()
    good = kit.all_of(plan)
    assert law(plan, good, ()) == []
    assert law(plan, [good[0], msgspec.structs.replace(good[1], **{field: value}), good[2]], ()) != []


def exact_cover(plan: ShardPlan, manifests: list[Manifest]) -> bool:
    """The law again, in the fewest words."""
    mine = {found.index: found for found in manifests}
    return Counter(found.index for found in manifests) == Counter(range(plan.shards)) and all(
        (found.commit, found.base, found.merged_tree) == (plan.commit, plan.base, plan.merged_tree)
        and (found.run, found.plan_digest, found.shards) == (plan.run, plan.plan_digest, plan.shards)
        and (found.status, found.attempts) == ("passed", 1)
        and found.collected == len(found.node_ids)
        and sorted(found.node_ids) == list(plan.groups[index])
        for index, found in mine.items()
    )


@pytest.mark.parametrize("field", Manifest.__struct_fields__)
def test_a_missing_field_blocks(field: str) -> None:
    plain = json.loads(canonical.encode(kit.manifest(kit.made(), 0)))
    del plain[field]
    with pytest.raises(EvidenceCorrupt, match=f"missing required field `{field}`"):
        parse(json.dumps(plain).encode(), Manifest, "shard-0.json")


def test_white_space_and_order_are_free_but_nothing_else_is() -> None:
    found = kit.manifest(kit.made(), 0)
    plain = json.loads(canonical.encode(found))
    assert parse(json.dumps(dict(reversed(plain.items())), indent=3).encode(), Manifest, "x") == found
    for text in (json.dumps({**plain, "more": 1}), json.dumps(plain) + "x", "[" * 100_000, "\ufeff" + json.dumps(plain)):
        with pytest.raises(EvidenceCorrupt):
            parse(text.encode(), Manifest, "x")


def test_a_plan_that_was_edited_covers_nothing() -> None:
    plan = kit.made()
    small = msgspec.structs.replace(plan, node_ids=plan.groups[0], groups=(plan.groups[0], (), ()))
    assert [finding.id for finding in law(small, [kit.manifest(plan, 0)], ())] == ["shards/plan"]
    resealed = msgspec.structs.replace(small, plan_digest=plan_digest(small))
    assert [finding.id for finding in law(resealed, [kit.manifest(resealed, 0)], ())] == ["shards/plan"]


def test_the_reviewed_head_base_and_tree_are_compared() -> None:
    plan = kit.made()
    good = kit.all_of(plan)
    assert law(plan, good, (), Reviewed(head=kit.HEAD, base=kit.BASE, merged_tree=kit.TREE)) == []
    for wrong in (Reviewed(head="d" * 40), Reviewed(base="d" * 40), Reviewed(merged_tree="d" * 40)):
        assert [finding.id for finding in law(plan, good, (), wrong)] == ["shards/stale-plan"]


def test_only_what_is_under_a_live_lease_may_be_tried_again() -> None:
    rows = (kit.row(kit.node_ids(12)[0]), kit.row(kit.node_ids(12)[1], expires=kit.NOW), kit.row("tests/test_9.py::gone"))
    plan = kit.made(rows=rows)
    live = live_rows(plan.quarantine, kit.NOW)
    leased, dead = plan.groups[0][:2]
    assert live == {leased} and len(plan.quarantine) == 2
    rest = [kit.manifest(plan, 1), kit.manifest(plan, 2)]

    def says(**fields: Any) -> list[str]:
        return [finding.id for finding in law(plan, [kit.manifest(plan, 0, **fields), *rest], live)]

    assert says(attempts=2, retried=(leased,)) == []
    assert says(attempts=2, retried=(leased, dead)) == ["shards/retried"]
    assert says(attempts=2) == ["shards/retried"]  # nobody knows which test needed it
    assert says(attempts=0) == ["shards/retried"]
    assert says(quarantined=(leased, dead)) == ["shards/quarantine"]


def test_a_shard_says_how_it_ended_and_redacts_why() -> None:
    plan = kit.made()
    group = plan.groups[1]

    def status(body: Any) -> tuple[str, Manifest]:
        found = manifest_of(plan, 1, body, kit.outcome(1), tool="t", now=kit.NOW)
        return found.status, found

    red = kit.suite(group, {group[0]: "AssertionError: https://me:hunter2@example.com token=abcdef"})
    word, found = status(red)
    assert word == "failed" and "hunter2" not in found.failures[0].text and "abcdef" not in found.failures[0].text
    assert found.failures[0].text.startswith("AssertionError: https://")
    assert status(kit.suite(group, end=End("over", limit="disk")))[0] == "over-disk"
    assert status(kit.suite(group, end=End("signalled", 9)))[0] == "killed-by-signal-9"
    assert status(kit.suite(group, finished=False))[0] == "unfinished"
    assert status(kit.suite(group, junk="line 3"))[0] == "unfinished"
    assert status(kit.suite((), end=End("exited", 5), exitstatus=5))[0] == "exit-5"
    assert status(kit.suite(group[1:]))[0] == "incomplete"
    assert status(kit.suite(group, modules={"tests/x.py": "ImportError: y"}))[0] == "not-collected"
    assert status(kit.suite(group))[0] == "passed"
    twice = kit.suite(group)
    twice = msgspec.structs.replace(twice, tests=(msgspec.structs.replace(twice.tests[0], times=2), *twice.tests[1:]))
    word, found = status(twice)
    assert (word, found.attempts, found.retried) == ("incomplete", 2, (group[0],))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (kit.suite((), end=End("exited", 5), exitstatus=5), "no test was collected"),
        (kit.suite(("a.py::t", "a.py::t")), "more than once"),
        (kit.suite(("a.py::t",), modules={"b.py": "ImportError: no c"}), "b.py cannot be collected: ImportError"),
        (kit.suite(("a.py::t",), finished=False, end=End("exited", 3)), "did not end well"),
        (kit.suite(("a.py::t",)), "3 shards and only 1 node ids"),
    ],
)
def test_what_cannot_be_split_honestly_is_no_plan(body: Any, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make_plan(kit.asked(3), body, Facts(name="x"), {}, ())


def test_files_stay_together_and_are_counted() -> None:
    plan = kit.made(12, 3, keep_together="file")
    assert all(len({id_.partition("::")[0] for id_ in group}) == 1 for group in plan.groups)
    with pytest.raises(ValueError, match="4 shards and only 3 files"):
        kit.made(12, 4, keep_together="file")


def test_published_schemas_accept_what_is_written_and_refuse_what_lacks_a_field() -> None:
    plan = kit.made(rows=(kit.row(kit.node_ids(12)[0]),))
    for value, type_ in ((plan, ShardPlan), (kit.manifest(plan, 1), Manifest)):
        form = json.loads(schema("x", {"x": type_}))
        plain = json.loads(canonical.encode(value))
        jsonschema.validate(plain, form)
        for field in plain:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({name: item for name, item in plain.items() if name != field}, form)


def test_durations_are_taken_from_manifests_and_small_changes_are_left_alone() -> None:
    plan = kit.made(3, 1)
    ids = plan.node_ids
    found = kit.manifest(plan, 0, durations_us={ids[0]: 100_000, ids[1]: 104_000, "gone": 5})
    assert updated({ids[0]: 10_000, ids[1]: 100_000, ids[2]: 7, "gone": 9}, plan, [found]) == {
        ids[0]: 100_000,
        ids[1]: 100_000,
        ids[2]: 7,
    }


def test_junit_has_every_case_and_survives_what_a_test_may_be_called(tmp_path: Path) -> None:
    from xml.etree import ElementTree

    ids = ("tests/test_a.py::C::test_x[\x1b[0m<&>\ufffe]", "tests/test_a.py::test_y")
    plan = make_plan(kit.asked(1), kit.suite(ids), Facts(name="x"), {}, ())
    found = manifest_of(plan, 0, kit.suite(ids, {ids[1]: "E: \x00 ]]>"}), kit.outcome(0), tool="t", now=kit.NOW)
    root = ElementTree.fromstring(junit(plan, [found], law(plan, [found], ())))
    assert (root.get("tests"), root.get("failures")) == ("3", "2")
    assert [case.get("classname") for case in root.iter("testcase")] == ["tests.test_a.C", "tests.test_a", "shards"]


@pytest.mark.parametrize(
    "secret",
    [
        "Authorization: Bearer abcdefghijkl",
        "ghp_0123456789abcdefghijABCDEFGHIJ012345",
        "AKIAABCDEFGHIJKLMNOP",
        "https://bucket/x?X-Amz-Signature=0123456789",
        "postgres://user:pa55word@host/db",
        "{'api_key': 'hush hush'}",
        "someone.else@example.org",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.abc_def",
    ],
)
def test_secrets_go(secret: str) -> None:
    told = redact(f"AssertionError: before {secret} after")
    assert told.startswith("AssertionError: before") and "[redacted]" in told
    for part in ("abcdefghijkl", "0123456789", "ABCDEFGHIJKLMNOP", "pa55word", "hush", "someone", "eyJzdWI"):
        assert part not in told
