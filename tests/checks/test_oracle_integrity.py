"""The page's decision table is the parameters: every row builds its scenario, and every scenario is a row."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pages
from probatum.checks import oracle_integrity as check
from probatum.core.records import ChangeRow, Class, Edit, PatchBody
from probatum.core.verdict import Verdict, verdict_of

CLASSES = get_args(Class)


def patch(*classes: str, **fields: object) -> PatchBody:
    """A record with one changed path for each class."""
    changes = tuple(ChangeRow(status="M", path=f"a/{kind}", class_=kind, new_oid="1") for kind in classes)  # type: ignore[arg-type]
    plain = PatchBody(layout="strict", conflict=(), changes=changes, links={}, collisions={}, oracle=(), edits=())
    return msgspec.structs.replace(plain, **fields)


ALLOW = check.Options(allow=("environment", "cassette", "other"))
SCENARIOS: dict[str, tuple[PatchBody | None, check.Options]] = {
    **{
        " and ".join(kinds) if len(kinds) > 1 else kinds[0]: (patch(*kinds), check.Options())
        for kinds in [("product",), *(("product", kind) for kind in CLASSES if kind not in ("product", "proposed", "docs"))]
    },
    "product, proposed and docs": (patch("product", "proposed", "docs"), check.Options()),
    **{f"only {kind}": (patch(kind), check.Options()) for kind in CLASSES if kind != "product"},
    "product and environment, allowed": (patch("product", "environment"), ALLOW),
    "product and other, allowed": (patch("product", "other"), ALLOW),
    "nothing": (patch(), check.Options()),
    "a conflict": (patch("product", conflict=("a",)), check.Options()),
    "a broken manifest": (patch("product", oracle=("MANIFEST lists what is not there",)), check.Options()),
    "a link that leaves product": (patch("product", links={"src/x": "leaves"}), check.Options()),
    "a sealed name in another case": (patch("product", collisions={"T": "t"}), check.Options()),
    "product and a new test file in a sealed folder, in place": (
        patch("product", "oracle", layout="in-place", edits=(Edit(path="a/oracle", as_="proposed"),)),
        check.Options(),
    ),
    "product and a new conftest in a sealed folder, in place": (
        patch("product", "harness", layout="in-place", edits=(Edit(path="a/harness", as_="proposed"),)),
        check.Options(),
    ),
    "product and a changed sealed test, in place": (
        patch("product", "oracle", layout="in-place", edits=(Edit(path="a/oracle", as_="oracle"),)),
        check.Options(),
    ),
    "head holds the output folder": (patch("product", output=("ci_out/src_score.txt",)), check.Options()),
    "a path that no disk holds": (patch("product", unfit={"src/long": "a path of 4000 bytes"}), check.Options()),
    "no record": (None, check.Options()),
}


@pytest.mark.parametrize(("scenario", "verdict", "finding"), pages.rows("oracle_integrity"))
def test_row(scenario: str, verdict: str, finding: str) -> None:
    record, options = SCENARIOS[scenario]
    found = check.judge({"patch": record} if record else {}, options, 0)
    assert verdict_of(found) is Verdict[verdict]
    assert {each.id for each in found} == ({f"oracle_integrity/{finding}"} if finding else set())


def test_page_and_scenarios_are_the_same_set() -> None:
    assert {row[0] for row in pages.rows("oracle_integrity")} == set(SCENARIOS)


@pytest.mark.parametrize("kinds", list(itertools.combinations(CLASSES, 2)))
def test_no_unlisted_mix_passes(kinds: tuple[str, str]) -> None:
    passed = verdict_of(check.judge({"patch": patch(*kinds)}, check.Options(), 0)) is Verdict.PASS
    assert passed is (set(kinds) <= {"product", "proposed", "docs"})


@given(st.lists(st.sampled_from(CLASSES), max_size=6), st.lists(st.sampled_from(CLASSES), max_size=3))
def test_more_classes_are_never_milder(some: list[str], more: list[str]) -> None:
    def verdict(kinds: Iterable[str]) -> Verdict:
        return verdict_of(check.judge({"patch": patch(*kinds)}, check.Options(), 0))

    if some:
        assert verdict([*some, *more]) >= verdict(some)


def test_allowing_a_class_does_not_let_it_pass_alone() -> None:
    assert verdict_of(check.judge({"patch": patch("environment")}, ALLOW, 0)) is Verdict.HOLD
