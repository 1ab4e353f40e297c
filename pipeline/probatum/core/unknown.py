"""Tests without a record may turn out long: where that threatens, they share some parts and those keep room for it.

A long one that nobody knew of makes its part late by its whole length, and the rest of that part by nothing. So a few parts
that hold all the unknown tests and less of the known ones beat an even mix. How few, and how much room, is tried on a fixed
number of invented runs: an unknown test takes what one of its known siblings takes.
"""

from __future__ import annotations

import heapq
import math
import operator
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

RUNS = 64
"""Invented runs that every candidate is tried on."""
WORTH = 0.95
"""A candidate is taken when its mean longest part is this much shorter than the even mix's."""
Groups = Callable[[str], Sequence[str]]
"""The groups that an id belongs to, nearest first."""
Dice = Callable[[], float]
FEWEST = 6
"""Below so many parts an even mix is as good: there is little to choose from."""
SHARES = (8, 6, 5, 4, 3, 2)
ROOMS = (0.0, 0.5, 1.0)
FAMILY = 4
"""Records that a group needs to say what its unknown members may take."""


class Unknown(msgspec.Struct, frozen=True):
    """The tests without a record: positions, longest expected first, and what each usually takes and its mean."""

    order: tuple[int, ...]
    usual: dict[int, float]
    mean: dict[int, float]
    runs: tuple[tuple[tuple[int, float], ...], ...]
    """Of every invented run: (position, microseconds more than usual) of the tests that surprise."""


class Deal(msgspec.Struct, frozen=True):
    """Unknown tests dealt onto some parts: position to part, and what each part usually takes."""

    where: dict[int, int]
    loads: tuple[float, ...]
    late: tuple[tuple[float, ...], ...]
    """Of every invented run: how much later each part becomes."""


def spread(ids: Sequence[str], known: Mapping[str, int], parts: int, groups_of: Groups) -> list[list[int]] | None:
    """Positions of ``ids`` in ``parts`` groups, or None where an even mix is as good. Deterministic."""
    recorded = [(known[id_], at) for at, id_ in enumerate(ids) if id_ in known]
    total = sum(weight for weight, _ in recorded)
    if parts < FEWEST or not total or len(recorded) == len(ids):
        return None
    unknown = _unknown(ids, known, total * len(ids) / len(recorded) / parts / 20, groups_of)
    if not unknown.runs:
        return None
    longest = max(recorded)[0]
    best = even = math.inf
    chosen, room = None, 0.0
    for count in sorted({max(1, parts * share // 8) for share in SHARES}, reverse=True):
        deal = _deal(unknown, count)
        usual = sum(map(max, deal.late)) / RUNS
        for share in ROOMS:
            score = _score(deal, parts, total, usual * share, longest)
            even = min(even, score) if count == parts and not share else even
            if score < best:
                best, chosen, room = score, deal, usual * share
    if chosen is None or best > even * WORTH:
        return None
    groups: list[list[int]] = [[] for _ in range(parts)]
    for at, part in chosen.where.items():
        groups[part].append(at)
    heap = [(load + room, part) for part, load in enumerate(chosen.loads)]
    heap += [(0.0, part) for part in range(len(heap), parts)]
    heapq.heapify(heap)
    for weight, at in sorted(recorded, key=lambda row: (-row[0], row[1])):
        load, part = heap[0]
        groups[part].append(at)
        heapq.heapreplace(heap, (load + max(1, weight), part))
    return groups if all(groups) else None


def _unknown(ids: Sequence[str], known: Mapping[str, int], long: float, groups_of: Groups) -> Unknown:
    families: dict[str, list[int]] = {"": [known[id_] for id_ in ids if id_ in known]}
    wanted: dict[str, list[int]] = {}
    missing = [(at, groups_of(id_)) for at, id_ in enumerate(ids) if id_ not in known]
    asked = {group for _, groups in missing for group in groups}
    for id_ in ids:
        if id_ in known:
            for group in asked.intersection(groups_of(id_)):
                families.setdefault(group, []).append(known[id_])
    for at, groups in missing:
        near = next((group for group in groups if len(families.get(group, ())) >= FAMILY), "")
        wanted.setdefault(near, []).append(at)
    usual: dict[int, float] = {}
    mean: dict[int, float] = {}
    chances: list[tuple[list[int], float, list[float]]] = []
    for group, members in wanted.items():
        values = families[group]
        rare = [value for value in values if value > long]
        if 2 * len(rare) > len(values):
            rare = [value for value in values if value <= long]
        base = (sum(values) - sum(rare)) / (len(values) - len(rare))
        usual |= dict.fromkeys(members, base)
        mean |= dict.fromkeys(members, sum(values) / len(values))
        if rare:
            chances.append((members, len(rare) / len(values), [value - base for value in rare]))
    order = tuple(sorted((at for at, _ in missing), key=lambda at: (-mean[at], at)))
    if not chances:
        return Unknown(order, usual, mean, ())
    dice = random.Random(len(ids)).random
    return Unknown(order, usual, mean, tuple(tuple(_surprises(chances, dice)) for _ in range(RUNS)))


def _surprises(chances: Sequence[tuple[list[int], float, list[float]]], dice: Dice) -> Iterator[tuple[int, float]]:
    """Which unknown tests turn out otherwise than their family usually does, and by how much."""
    for members, share, surprises in chances:
        if share >= 1:
            for at in members:
                yield at, surprises[int(dice() * len(surprises))]
            continue
        scale, index = math.log1p(-share), -1
        while True:  # how many are passed over, in one throw
            index += 1 + int(math.log(1 - dice()) / scale)
            if index >= len(members):
                break
            yield members[index], surprises[int(dice() * len(surprises))]


def _deal(unknown: Unknown, count: int) -> Deal:
    """The unknown tests onto ``count`` parts, longest expected first onto the least loaded."""
    heap = [(0.0, part) for part in range(count)]
    where: dict[int, int] = {}
    loads = [0.0] * count
    for at in unknown.order:
        load, part = heap[0]
        where[at] = part
        loads[part] += unknown.usual[at]
        heapq.heapreplace(heap, (load + max(1.0, unknown.mean[at]), part))
    late = []
    for run in unknown.runs:
        row = [0.0] * count
        for at, weight in run:
            row[where[at]] += weight
        late.append(tuple(row))
    return Deal(where, tuple(loads), tuple(late))


def _score(deal: Deal, parts: int, total: int, room: float, longest: int) -> float:
    """The mean longest part over the invented runs, when the known tests fill up what the unknown leave free."""
    others = parts - len(deal.loads)
    level = _level([*(load + room for load in deal.loads), *[0.0] * others], total)
    base = [max(load, level - room) for load in deal.loads]
    floor = max(level if others else 0.0, longest)
    return float(sum(max(floor, *map(operator.add, base, row)) for row in deal.late)) / RUNS


def _level(loads: Sequence[float], total: float) -> float:
    """How high ``total`` fills vessels that hold ``loads`` already."""
    rows = sorted(loads)
    below = 0.0
    for count, load in enumerate(rows, 1):
        below += load
        level = (total + below) / count
        if count == len(rows) or level <= rows[count]:
            return level
    return 0.0
