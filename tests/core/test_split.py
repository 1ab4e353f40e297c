"""The split: every id once, the same every time, near the bound, and no part empty that need not be."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probatum.core import split as it
from probatum.core import unknown
from probatum.core.durations import dump_durations, parse_durations
from probatum.errors import UsageError

IDS = st.lists(
    st.builds("t/test_{}.py::{}test_{}".format, st.integers(0, 5), st.sampled_from(["", "A::", "B::"]), st.integers(0, 40)),
    unique=True,
    max_size=60,
)


@given(ids=IDS, parts=st.integers(1, 9), data=st.data(), together=st.sampled_from(["", "file", "class"]))
def test_every_id_is_in_one_part_and_the_split_is_the_same_each_time(
    ids: list[str], parts: int, data: st.DataObject, together: it.KeepTogether
) -> None:
    known = data.draw(st.dictionaries(st.sampled_from(ids or ["x"]), st.integers(0, 10**7)))
    found = it.split(ids, known, parts, together)
    assert len(found) == parts
    assert sorted(id_ for part in found for id_ in part) == sorted(ids)
    shuffled = data.draw(st.permutations(ids))
    assert it.split(shuffled, dict(sorted(known.items(), reverse=True)), parts, together) == found
    units = {it.unit_of(id_, together) for id_ in ids}
    assert sum(not part for part in found) == max(0, parts - len(units))
    for unit in units:
        assert sum(any(it.unit_of(id_, together) == unit for id_ in part) for part in found) == 1


@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=40), parts=st.integers(1, 8))
def test_no_part_is_longer_than_four_thirds_of_the_bound_allows(weights: list[int], parts: int) -> None:
    groups = it.pack(weights, parts)
    assert sorted(at for group in groups for at in group) == list(range(len(weights)))
    longest = max(sum(weights[at] for at in group) for group in groups)
    bound = it.lower_bound(weights, parts)
    assert bound <= longest
    assert 3 * longest <= 4 * bound + 3 * max(weights)


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=8), parts=st.integers(1, 3))
def test_the_bound_is_one(weights: list[int], parts: int) -> None:
    def best(at: int, loads: tuple[int, ...]) -> int:
        if at == len(weights):
            return max(loads)
        return min(best(at + 1, (*loads[:p], loads[p] + weights[at], *loads[p + 1 :])) for p in range(parts))

    assert it.lower_bound(weights, parts) <= best(0, (0,) * parts)


@pytest.mark.parametrize("parts", [4, 8, 16, 32])
@pytest.mark.parametrize("seed", range(4))
def test_heavy_tails_end_within_a_fiftieth_of_the_bound(parts: int, seed: int) -> None:
    rng = random.Random(seed)
    known = {f"t/test_{n % 40}.py::test_{n}": int(rng.lognormvariate(9, 2)) + 1 for n in range(1500)}
    found = it.split(list(known), known, parts)
    longest = max(sum(known[id_] for id_ in part) for part in found)
    assert longest <= 1.02 * it.lower_bound(list(known.values()), parts)


def test_moves_and_swaps_mend_what_longest_first_leaves() -> None:
    weights = [8, 7, 6, 5, 4]  # longest first: 8+5+4 against 7+6
    assert max(sum(weights[at] for at in group) for group in it._longest_first(weights, 2)) == 17
    assert max(sum(weights[at] for at in group) for group in it.pack(weights, 2)) == 15


def test_an_unknown_test_takes_what_its_nearest_relatives_take() -> None:
    known = {"a.py::C::test[1]": 10, "a.py::C::test[2]": 30, "a.py::C::other": 80, "a.py::far": 1000, "b.py::x": 50}
    ids = [*known, "a.py::C::test[3]", "a.py::C::new", "a.py::new", "c.py::new"]
    assert it.estimated(ids, known)[len(known) :] == [20, 40, 280, 50]


def test_unknown_tests_share_parts_with_room_where_they_may_turn_out_long() -> None:
    true = {f"t/test_{n % 9}.py::test_{n}": 8_000_000 if n % 50 == 0 else 20_000 for n in range(1000)}
    ids, ours, even, uneven = sorted(true), 0, 0, 0
    for seed in range(16):
        hidden = set(random.Random(seed).sample(ids, len(ids) // 3))
        known = {id_: us for id_, us in true.items() if id_ not in hidden}
        ours += max(sum(true[id_] for id_ in part) for part in it.split(ids, known, 16))
        groups = it.pack(it.estimated(ids, known), 16)
        even += max(sum(true[ids[at]] for at in group) for group in groups)
        uneven += it.spread(ids, known, 16, it._groups) is not None
    assert uneven and ours < even


def test_a_family_that_is_always_long_surprises_nobody() -> None:
    true = {f"t/test_{n % 40}.py::test_{n}": 3_000_000 if n % 40 < 3 else 20_000 for n in range(1500)}
    known = {id_: us for at, (id_, us) in enumerate(true.items()) if at % 3}
    longest = max(sum(true[id_] for id_ in part) for part in it.split(list(true), known, 16))
    assert longest <= 1.1 * it.lower_bound(list(true.values()), 16)


def test_nothing_is_spread_where_everything_or_nothing_is_known() -> None:
    ids = [f"t.py::test_{n}" for n in range(9)]
    assert unknown.spread(ids, dict.fromkeys(ids, 5), 3, it._groups) is None
    assert unknown.spread(ids, {}, 3, it._groups) is None
    assert it.split(ids, {}, 3) == (tuple(ids[:3]), tuple(ids[3:6]), tuple(ids[6:]))


@settings(max_examples=50)
@given(st.dictionaries(st.text(min_size=1), st.integers(0, 1 << 44)))
def test_durations_come_back_as_written(durations: dict[str, int]) -> None:
    assert parse_durations(dump_durations(durations), "x") == durations


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"a": -1}', '{"a": NaN}', '{"a": Infinity}', '{"a": true}', '{"a": "1"}', '{"a": 1e30}'),
        *('{"schema": "durations/v1"}', '{"schema": "durations/v1", "us": {"a": 1.5}}'),
    ],
)  # fmt: skip
def test_a_file_that_is_no_record_of_durations_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_durations(text.encode(), "x")


def test_pytest_split_s_file_is_read() -> None:
    assert parse_durations(b'{"a.py::t": 0.25}', "x") == {"a.py::t": 250_000}
