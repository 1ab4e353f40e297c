"""A suite is split by recorded durations, longest first onto the least loaded part; the same input gives the same split."""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Literal

from .unknown import spread

KeepTogether = Literal["", "file", "class"]

GOOD = 1000
"""A split whose longest part is within one GOOD-th of the lower bound is not improved further."""
PATIENCE = 400_000
"""Comparisons that improving may cost: a count, not a clock, so that every machine finds the same split."""


def split(
    ids: Sequence[str], known: Mapping[str, int], parts: int, keep_together: KeepTogether = ""
) -> tuple[tuple[str, ...], ...]:
    """``parts`` groups that hold every id exactly once, each sorted. ``known``: id to microseconds, for any of the ids.

    Parts are empty only where there are fewer tests (or files, or classes, when they are kept together) than parts.
    """
    ids = sorted(ids)
    if not keep_together and (uneven := spread(ids, known, parts, _groups)) is not None:
        return tuple(tuple(ids[at] for at in sorted(group)) for group in uneven)
    weights = estimated(ids, known)
    units: dict[str, list[int]] = {}
    for at, id_ in enumerate(ids):
        units.setdefault(unit_of(id_, keep_together), []).append(at)
    rows = list(units.values())
    packed = pack([sum(weights[at] for at in row) for row in rows], parts)
    return tuple(tuple(sorted(ids[at] for row in part for at in rows[row])) for part in packed)


def unit_of(id_: str, keep_together: KeepTogether) -> str:
    """What travels as one: the id itself, its file, or its innermost class (its file where it has none)."""
    if not keep_together:
        return id_
    path, *names = id_.partition("[")[0].split("::")
    return path if keep_together == "file" else "::".join([path, *names[:-1]])


def estimated(ids: Sequence[str], known: Mapping[str, int]) -> list[int]:
    """Microseconds, at least 1, for every id: as recorded, else from its parameter siblings, class or file, else the median.

    The mean of the nearest group that has a record: many tests of one group add up to their mean, not to their median.
    """
    sums: dict[str, list[int]] = {}
    found = [known.get(id_, -1) for id_ in ids]
    if -1 in found:
        asked = {group for id_, weight in zip(ids, found, strict=True) if weight < 0 for group in _groups(id_)}
        for id_, weight in zip(ids, found, strict=True):
            if weight >= 0:
                for group in asked.intersection(_groups(id_)):
                    total = sums.setdefault(group, [0, 0])
                    total[0] += weight
                    total[1] += 1
        recorded = [weight for weight in found if weight >= 0]
        middle = int(median(recorded)) if recorded else 1
        for at, weight in enumerate(found):
            if weight < 0:
                near = next((sums[group] for group in _groups(ids[at]) if group in sums), None)
                found[at] = near[0] // near[1] if near else middle
    return [max(1, weight) for weight in found]


def _groups(id_: str) -> tuple[str, str, str]:
    """The groups of an id, nearest first: function, innermost class, file (twice where there is no class)."""
    stem = id_.partition("[")[0]
    return stem, stem.rpartition("::")[0], stem.partition("::")[0]


def lower_bound(weights: Sequence[int], parts: int) -> int:
    """No split has a shorter longest part: the mean rounded up, the longest item, and two of the ``parts + 1`` longest."""
    if not weights:
        return 0
    longest = heapq.nlargest(parts + 1, weights)
    pair = longest[parts - 1] + longest[parts] if len(longest) > parts else 0
    return max(-(-sum(weights) // parts), longest[0], pair)


def pack(weights: Sequence[int], parts: int) -> list[list[int]]:
    """Indices of ``weights`` in ``parts`` groups with a short longest one. Equal weights stay in neighbouring runs."""
    if len(set(weights)) <= 1:  # nothing is known: neighbours share fixtures and imports
        size = len(weights)
        return [list(range(size * at // parts, size * (at + 1) // parts)) for at in range(parts)]
    bound = lower_bound(weights, parts)
    first = _improved(_longest_first(weights, parts), weights, bound)
    if _makespan(first, weights) * GOOD <= bound * (GOOD + 1):
        return first
    second = _improved(_differencing(weights, parts), weights, bound) if len(weights) <= 4096 else first
    return min(first, second, key=lambda groups: _makespan(groups, weights))


def _makespan(groups: Sequence[Sequence[int]], weights: Sequence[int]) -> int:
    return max(sum(weights[at] for at in group) for group in groups)


def _longest_first(weights: Sequence[int], parts: int) -> list[list[int]]:
    """Graham's rule: never more than 4/3 of the best."""
    groups: list[list[int]] = [[] for _ in range(parts)]
    heap = [(0, part) for part in range(parts)]
    for at in sorted(range(len(weights)), key=lambda at: -weights[at]):
        load, part = heap[0]
        groups[part].append(at)
        heapq.heapreplace(heap, (load + weights[at], part))
    return groups


def _differencing(weights: Sequence[int], parts: int) -> list[list[int]]:
    """Karmarkar and Karp's rule: the two most uneven partial splits are joined, the longest part on the shortest."""
    heap: list[tuple[int, int, list[tuple[int, list[int]]]]] = []
    for at, weight in enumerate(weights):
        rows: list[tuple[int, list[int]]] = [(0, []) for _ in range(parts - 1)]
        heap.append((-weight, at, [*rows, (weight, [at])]))
    heapq.heapify(heap)
    order = len(heap)
    while len(heap) > 1:
        (_, _, one), (_, _, two) = heapq.heappop(heap), heapq.heappop(heap)
        rows = sorted(
            ((a + b, x + y) for (a, x), (b, y) in zip(one, reversed(two), strict=True)), key=lambda row: (row[0], row[1][:1])
        )
        heapq.heappush(heap, (rows[0][0] - rows[-1][0], order, rows))
        order += 1
    return [group for _, group in heap[0][2]]


def _improved(groups: list[list[int]], weights: Sequence[int], bound: int) -> list[list[int]]:
    """Moves one item, or swaps two, between the longest part and another while the longer of the two gets shorter."""
    rows = [sorted((weights[at], at) for at in group) for group in groups]
    loads = [sum(weight for weight, _ in row) for row in rows]
    patience = PATIENCE
    while patience > 0:
        worst = max(range(len(rows)), key=lambda part: (loads[part], -part))
        if loads[worst] * GOOD <= bound * (GOOD + 1):
            break
        for other in sorted(range(len(rows)), key=lambda part: (loads[part], part)):
            patience -= len(rows[worst])
            step = _best_step(rows[worst], rows[other], loads[worst] - loads[other]) if other != worst else None
            if step is not None:
                give, take = step
                rows[worst].remove(give)
                rows[other].insert(bisect_left(rows[other], give), give)
                if take is not None:
                    rows[other].remove(take)
                    rows[worst].insert(bisect_left(rows[worst], take), take)
                moved = give[0] - (take[0] if take else 0)
                loads[worst] -= moved
                loads[other] += moved
                break
        else:
            break
    return [[at for _, at in row] for row in rows]


Item = tuple[int, int]


def _best_step(heavy: Sequence[Item], light: Sequence[Item], gap: int) -> tuple[Item, Item | None] | None:
    """What the heavier part gives and what it takes back, so that the gap shrinks most; None when nothing shrinks it.

    Giving ``d`` more than is taken leaves the longer of the two at ``max(gap - d, d)`` above the lighter one.
    """
    best = gap
    found: tuple[Item, Item | None] | None = None
    for give in heavy:
        if len(heavy) > 1 and max(gap - give[0], give[0]) < best:
            best, found = max(gap - give[0], give[0]), (give, None)
        at = bisect_left(light, (give[0] - gap // 2, -1))
        for take in light[max(0, at - 1) : at + 1]:
            moved = give[0] - take[0]
            if moved > 0 and max(gap - moved, moved) < best:
                best, found = max(gap - moved, moved), (give, take)
        if 2 * best <= gap + 1:
            break
    return found
