"""The page's decision table is the parameters; each scenario is a set of records that differs from an all-green one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import pages
from probatum.checks import src_score as check
from probatum.core.canonical import escape
from probatum.core.lease_plan import SkipsBody
from probatum.core.records import ChangeRow, PatchBody, SuiteBody, TestRow
from probatum.core.stage import End
from probatum.core.twin_rule import LooksBody
from probatum.core.verdict import Verdict, verdict_of

T = "tests/test_a.py"
IDS = (f"{T}::one", f"{T}::two")
NOW = 1_800_000_000
Records = dict[str, Any]


def row(id_: str, outcome: str = "passed", signature: str = "", **fields: Any) -> TestRow:
    if outcome in ("failed", "error") and not signature:
        signature = "AssertionError: assert 1 == 2"
    return TestRow(id=id_, outcome=outcome, phases=("passed",) * 3, signature=signature, **fields)  # type: ignore[arg-type]


def suite(*rows: TestRow, **fields: Any) -> SuiteBody:
    """A whole run of ``rows``; its exit status is what they make it."""
    red = any(each.outcome in ("failed", "error") for each in rows)
    plain = SuiteBody(
        end=End("exited", int(red)),
        nonce_ok=True,
        junk="",
        finished=True,
        exitstatus=int(red),
        modules={T: ""},
        collected=tuple(each.id for each in rows),
        tests=rows,
        watch=(),
    )
    return replace(plain, **fields)


def green() -> Records:
    patch = PatchBody(
        layout="strict",
        conflict=(),
        changes=(ChangeRow(status="M", path="src/a.py", class_="product", new_oid="1"),),
        links={},
        collisions={},
        oracle=(),
        edits=(),
    )
    whole = suite(*map(row, IDS))
    twins = suite(*(row(f"value {each}", "failed", "AssertionError: assert 1 == 9") for each in IDS))
    return {"patch": patch, "suite.base": whole, "suite.run": whole, "suite.twins": twins}


def base(have: Records, *rows: TestRow, **fields: Any) -> Records:
    return {**have, "suite.base": suite(*rows, **fields)}


def run(have: Records, *rows: TestRow, **fields: Any) -> Records:
    return {**have, "suite.run": suite(*rows, **fields)}


def patched(have: Records, **fields: Any) -> Records:
    return {**have, "patch": replace(have["patch"], **fields)}


def ended(**fields: Any) -> Callable[[Records], Records]:
    return lambda have: {**have, "suite.run": replace(have["suite.run"], **fields)}


def without(name: str) -> Callable[[Records], Records]:
    return lambda have: {key: value for key, value in have.items() if key != name}


def newly_red(have: Records, *again: TestRow) -> Records:
    have = run(have, row(IDS[0], "failed"), row(IDS[1]))
    return {**have, "suite.recheck": suite(*again)} if again else have


def both_red(have: Records) -> Records:
    rows = (row(IDS[0], "failed"), row(IDS[1]))
    return run(base(have, *rows), *rows)


def ledger(have: Records, expires: int) -> Records:
    text = {"nodeid": IDS[0], "owner": "a@example.com", "reason": "landed red", "expires_at": expires}
    skips = SkipsBody(
        ledger=json.dumps({"leases": [], "expected_red": [text]}),
        problem="",
        modules=(T,),
        static=(),
        unread={},
        digests={},
        unresolved={},
        bytecode={},
        python="3.12",
    )
    return {**both_red(have), "skips": skips}


def uncollected(have: Records, *rows: TestRow, error: str = "") -> Records:
    """A second module that base cannot collect."""
    late = "tests/test_b.py"
    have = base(have, *map(row, IDS), modules={T: "", late: "ImportError: no"}, end=End("exited", 1), exitstatus=1)
    return run(
        have,
        *map(row, IDS),
        *rows,
        modules={T: "", late: error},
        **({"end": End("exited", 1), "exitstatus": 1} if error else {}),
    )


def twin(have: Records, on_base: TestRow | None) -> Records:
    """The first twin passes; ``on_base`` is the same twin there."""
    twins = suite(row(f"value {IDS[0]}"), row(f"value {IDS[1]}", "failed"))
    return {**have, "suite.twins": twins, **({"suite.twincheck": suite(on_base)} if on_base else {})}


def red_twin(have: Records) -> Records:
    """The test is red on base; its twin passes here, and on base fails in the very way in which the test does."""
    have = base(have, row(IDS[0], "failed", "AssertionError: early"), row(IDS[1]))
    return twin(have, row(f"value {IDS[0]}", "failed", "AssertionError: early"))


W = f"w {IDS[0]}"


def disguised(have: Records, here: TestRow | None, on_base: TestRow | None = None, asked: bool = True) -> Records:
    """The first test in disguise: ``here`` with the patch, ``on_base`` on base, ``asked`` whether base ran it at all."""
    plain = have["suite.twins"]
    rows = (*plain.tests, *((here,) if here else ()), row(f"w {IDS[1]}"))
    twins = suite(*rows, collected=(*plain.collected, W, f"w {IDS[1]}"))
    check = {"suite.twincheck": suite(*((on_base,) if on_base else ()), collected=(W,))} if asked else {}
    return {**have, "suite.twins": twins, **check}


def mended(have: Records, signature: str) -> Records:
    """Red on base, mended by the patch, and in disguise red again; ``signature`` is base's own there."""
    have = base(have, row(IDS[0], "failed", "Error: <A at 0x7f01> in /w/0123456789abcdef/a"), row(IDS[1]))
    return disguised(have, row(W, "failed"), row(W, "failed", signature))


def late(have: Records) -> Records:
    """Planned by its function's name, folded into the rows that came; base knows nothing of it in disguise either."""
    have = uncollected(have, row("tests/test_b.py::x[1]"))
    twins = suite(*have["suite.twins"].tests, row("w tests/test_b.py::x[1]", "failed"))
    return {**have, "suite.twins": twins, "suite.twincheck": suite(collected=("w tests/test_b.py::x",))}


def looks(have: Records, words: tuple[str, ...] = (), path: str = "src/a.py", heard: bool = False) -> Records:
    """``path`` looks at its callers' frames; ``words``: what base's version of src/a.py does; ``heard``: in base's run, too."""
    watch = (f"looks: sys._getframe from {path}",)
    have = {**have, "suite.twins": replace(have["suite.twins"], watch=watch)}
    have["looks"] = LooksBody(words={"src/a.py": words} if words else {})
    return {**have, "suite.twincheck": suite(watch=watch)} if heard else have


def odd(have: Records) -> Records:
    """A path that no line can carry as it is, and that is longer than a line."""
    path = b"src/\xff from " + b"b" * 400 + b".py"
    told = path.decode("utf-8", "surrogateescape").encode("utf-8", "backslashreplace").decode()
    have = patched(have, changes=(ChangeRow(status="A", path=escape(path), class_="product", new_oid="1"),))
    watch = (f"looks: sys._getframe from {told}"[:300],)
    return {**have, "suite.twins": replace(have["suite.twins"], watch=watch)}


def proposed(have: Records, outcome: str) -> Records:
    new = "tests/proposed/test_new.py"
    changes = (*have["patch"].changes, ChangeRow(status="A", path=new, class_="proposed", new_oid="1"))
    have = patched(have, changes=changes)
    if not outcome:
        return have
    here = suite(row(f"{new}::x", outcome), modules={new: ""})
    return {**have, "suite.proposed": here, "suite.proposedbase": suite(row(f"{new}::x", "failed"), modules={new: ""})}


LOOSE = check.Options(known_failures="no-worse-than-base")
PATCHED = "random.Random.randint"
POINTER = {"src/a.py": "a git LFS pointer"}
SCENARIOS: dict[str, Callable[[Records], Records]] = {
    "all green": lambda have: have,
    "a red test mended": lambda have: base(have, row(IDS[0], "failed"), row(IDS[1])),
    "newly red, green when base runs again": lambda have: newly_red(have, row(IDS[0])),
    "newly red, red when base runs again": lambda have: newly_red(have, row(IDS[0], "failed")),
    "newly red, base not run again": newly_red,
    "still red, strict": both_red,
    "still red, no worse than base": both_red,
    "still red, a live expected_red row": lambda have: ledger(have, NOW + 86400),
    "still red, an expired expected_red row": lambda have: ledger(have, NOW),
    "a test vanished": lambda have: run(have, row(IDS[0])),
    "a test collected and never reported": lambda have: run(have, row(IDS[0]), collected=IDS),
    "a test that base does not have": lambda have: run(have, *map(row, (*IDS, f"{T}::three"))),
    "a test reported and never collected": lambda have: run(have, *map(row, IDS), collected=IDS[:1]),
    "a test twice": lambda have: run(have, row(IDS[0], times=2), row(IDS[1])),
    "newly skipped": lambda have: run(have, row(IDS[0], "skipped"), row(IDS[1])),
    "newly expected to fail": lambda have: run(have, row(IDS[0], "xfailed"), row(IDS[1])),
    "a skip that base has too": lambda have: run(
        base(have, row(IDS[0], "skipped"), row(IDS[1])), row(IDS[0], "skipped"), row(IDS[1])
    ),
    "a module no longer collected": lambda have: run(
        have, *map(row, IDS), modules={T: "ImportError"}, end=End("exited", 1), exitstatus=1
    ),
    "a module that skips itself, on base too": lambda have: run(
        base(have, modules={T: "Skipped: no"}), modules={T: "Skipped: no"}
    ),
    "a module that skips itself, only here": lambda have: run(have, *map(row, IDS), modules={T: "Skipped: no"}),
    "a module that base cannot collect, collected and green": lambda have: uncollected(have, row("tests/test_b.py::x")),
    "a module that base cannot collect, collected and red": lambda have: uncollected(have, row("tests/test_b.py::x", "failed")),
    "a module that base cannot collect, still not collected": lambda have: uncollected(have, error="ImportError: no"),
    "over the wall limit": ended(end=End("over", limit="wall")),
    "over the memory limit": ended(end=End("over", limit="memory")),
    "over the output limit": ended(end=End("over", limit="output")),
    "ended by a signal": ended(end=End("signalled", 9)),
    "left before the end": ended(finished=False),
    "a report that cannot be read": ended(junk="line 1: no JSON"),
    "another run's nonce": ended(nonce_ok=False),
    "status 0 with red tests": lambda have: run(
        newly_red(have), row(IDS[0], "failed"), row(IDS[1]), end=End("exited", 0), exitstatus=0
    ),
    "status 1 without red tests": ended(end=End("exited", 1), exitstatus=1),
    "the standard library changed": ended(watch=(PATCHED,)),
    "the standard library changed, on base too": lambda have: run(
        base(have, *map(row, IDS), watch=(PATCHED,)), *map(row, IDS), watch=(PATCHED,)
    ),
    "a twin passed": lambda have: twin(have, row(f"value {IDS[0]}", "failed")),
    "a twin passed, on base too": lambda have: twin(have, row(f"value {IDS[0]}")),
    "a twin passed, and on base it fails as the test does": red_twin,
    "a twin passed, and base was not asked": lambda have: twin(have, None),
    "a twin never reported": lambda have: {**have, "suite.twins": replace(have["suite.twins"], tests=())},
    "no twins": without("suite.twins"),
    "no twins, none wanted": without("suite.twins"),
    "a test fails in disguise, and on base fares there as it does without": lambda have: disguised(
        have, row(W, "failed"), row(W)
    ),
    "a test is not reported in disguise, and on base fares there as it does without": lambda have: disguised(
        have, None, row(W)
    ),
    "a red test mended, in disguise red as on base": lambda have: mended(have, "Error: <A at 0x7f02> in /w/fedcba9876543210/a"),
    "a test fails in disguise, on base too": lambda have: disguised(have, row(W, "failed"), row(W, "failed")),
    "a red test mended, in disguise red in another way on base": lambda have: mended(have, "FileNotFoundError: x"),
    "a test fails in disguise, and base was not asked": lambda have: disguised(have, row(W, "failed"), asked=False),
    "a test fails in disguise, and base did not say": lambda have: disguised(have, row(W, "failed")),
    "a test fails in disguise and in the run": lambda have: disguised(newly_red(have, row(IDS[0])), row(W, "failed"), row(W)),
    "a test of a module that base cannot collect fails in disguise": late,
    "a changed product file looks around": looks,
    "a new product file looks around, and its name is odd": odd,
    "a changed product file looks around, base's code shows the same": lambda have: looks(have, ("sys._getframe",)),
    "a changed product file looks around, base's code shows another look": lambda have: looks(have, ("gc.get_objects",)),
    "a changed product file looks around, it was heard on base too": lambda have: looks(have, heard=True),
    "an unchanged product file looks around": lambda have: looks(have, path="src/b.py"),
    "proposed tests pass": lambda have: proposed(have, "passed"),
    "a proposed test fails": lambda have: proposed(have, "failed"),
    "proposed tests not run": lambda have: proposed(have, ""),
    "a compiled source changed": lambda have: patched(
        have, changes=(ChangeRow(status="M", path="src/fast.c", class_="product", new_oid="1"),)
    ),
    "a changed file is a git LFS pointer": lambda have: patched(have, missing=POINTER),
    "an old file is a git LFS pointer": lambda have: patched(have, missing={"src/old.bin": "a git LFS pointer"}),
    "pytest imports the product": lambda have: patched(have, self_import=("pluggy",)),
    "no run": without("suite.run"),
    "no base run": without("suite.base"),
    "no record of the patch": without("patch"),
}
OPTIONS = {
    "still red, no worse than base": LOOSE,
    "a module that skips itself, on base too": check.Options(twins=check.Twins(share=0.0)),
    "no twins, none wanted": check.Options(twins=check.Twins(share=0.0)),
}


@pytest.mark.parametrize(("scenario", "verdict", "finding"), pages.rows("src_score"))
def test_row(scenario: str, verdict: str, finding: str) -> None:
    found = check.judge(SCENARIOS[scenario](green()), OPTIONS.get(scenario, check.Options()), NOW)
    assert verdict_of(found) is Verdict[verdict], found
    counted = {each.id for each in found if each.verdict is not Verdict.PASS}
    assert counted == ({f"src_score/{finding}"} if finding else set())


def test_page_and_scenarios_are_the_same_set() -> None:
    assert {each[0] for each in pages.rows("src_score")} == set(SCENARIOS)


@given(
    st.sampled_from(sorted(SCENARIOS)),
    st.sets(
        st.sampled_from(
            [
                "patch",
                "suite.base",
                "suite.run",
                "suite.twins",
                "suite.recheck",
                "suite.twincheck",
                "suite.proposed",
                "skips",
                "looks",
            ]
        )
    ),
)
def test_less_evidence_never_means_more_merge(scenario: str, lost: set[str]) -> None:
    """Over the planned records: taking any away never makes the verdict milder. No twins are planned where none are wanted."""
    options = OPTIONS.get(scenario, check.Options())
    have = SCENARIOS[scenario](green())
    whole = verdict_of(check.judge(have, options, NOW))
    part = verdict_of(check.judge({key: value for key, value in have.items() if key not in lost}, options, NOW))
    assert part >= whole


@given(st.data())
def test_a_redder_or_missing_test_is_never_milder(data: st.DataObject) -> None:
    """Whatever base said, a run in which one id is gone, skipped or red is no milder than the run in which it passed."""
    words = st.sampled_from(["passed", "failed", "error", "skipped", "xfailed"])
    before = [row(each, data.draw(words)) for each in IDS]
    after = [row(each, data.draw(words)) for each in IDS]
    best = [row(IDS[0]), after[1]]
    worse = after if data.draw(st.booleans()) else after[1:]

    def verdict(rows: list[TestRow]) -> Verdict:
        have = green()
        return verdict_of(check.judge({**have, "suite.base": suite(*before), "suite.run": suite(*rows)}, check.Options(), NOW))

    assert verdict(worse) >= verdict(best)
