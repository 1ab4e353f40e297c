"""src_score's real run, split by the same plan and joined by the same law: several stages that judge like one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from .records import SuiteBody, TestRow
from .shard_stages import file_of
from .shards import RED
from .split import split
from .stage import End, Tree
from .suite import Job


def score_jobs(tree: Tree, modules: Sequence[bytes], base: SuiteBody, shards: int) -> list[Job]:
    """One job a shard: exactly base's node ids, each in one job, by the durations that base's own run recorded.

    A job collects only the modules that hold its ids, and runs nothing when they hold other ids than base's. Modules that
    base cannot collect have no ids yet: they run whole, in a job of their own, the last. ``shards`` 1 is the unsplit run.
    """
    if shards <= 1 or not base.collected:
        return [Job(label="", tree=tree, modules=tuple(modules))]
    known = {row.id: row.duration_us for row in base.tests}
    jobs = []
    for group in split(base.collected, known, min(shards, len(base.collected))):
        if group:
            mine = {file_of(id_) for id_ in group}
            listed = tuple(path for path in modules if _text(path) in mine)
            expect = tuple(id_ for id_ in base.collected if file_of(id_) in mine)
            jobs.append(Job(label="", tree=tree, modules=listed, ids=group, expect=expect))
    idle = {_text(path) for path in modules} - {file_of(id_) for id_ in base.collected}
    if idle:
        jobs.append(Job(label="", tree=tree, modules=tuple(path for path in modules if _text(path) in idle)))
    return jobs


def joined(base: SuiteBody, bodies: Sequence[SuiteBody]) -> SuiteBody:
    """The shards as one run. What is wrong with one is wrong with all; an id that two report ran twice.

    Each shard's exit status must agree with what it reports itself: another shard's failure would hide that it does not.
    """
    order = {id_: at for at, id_ in enumerate(base.collected)}
    rows: dict[str, TestRow] = {}
    modules: dict[str, str] = {}
    for body in bodies:
        for path, error in body.modules.items():
            modules[path] = modules.get(path, "") or error
        for row in body.tests:
            was = rows.get(row.id)
            rows[row.id] = row if was is None else _worse(was, row)
    junk = [f"shard {index}: {why}" for index, body in enumerate(bodies) if (why := body.junk or _disagrees(body))]
    collected = [id_ for body in bodies for id_ in body.collected]
    bad = next((body for body in bodies if body.end != End("exited")), bodies[0])
    return SuiteBody(
        end=next(
            (body.end for body in bodies if body.end.how != "exited"), End("exited", max(body.end.code for body in bodies))
        ),
        nonce_ok=all(body.nonce_ok for body in bodies),
        junk="; ".join(junk),
        finished=all(body.finished for body in bodies),
        exitstatus=max(body.exitstatus for body in bodies),
        modules=modules,
        collected=tuple(sorted(collected, key=lambda id_: order.get(id_, len(order)))),
        tests=tuple(sorted(rows.values(), key=lambda row: order.get(row.id, len(order)))),
        watch=tuple(sorted({change for body in bodies for change in body.watch})),
        python=bodies[0].python,
        pytest=bodies[0].pytest,
        wall_us=max(body.wall_us for body in bodies),
        tail=bad.tail,
    )


def all_there(jobs: Sequence[Job], have: Mapping[str, object], part: str) -> list[SuiteBody] | None:
    """The bodies of ``suite.PART0``, ``suite.PART1`` and so on, or None while one is missing."""
    found = [have.get(f"suite.{part}{index}") for index in range(len(jobs))]
    bodies = [body for body in found if isinstance(body, SuiteBody)]
    return bodies if len(bodies) == len(jobs) else None


def _disagrees(body: SuiteBody) -> str:
    """Why a shard that ended by itself contradicts its own report; "" where it does not."""
    if body.end.how != "exited" or not body.finished:
        return ""
    red = any(row.outcome in RED for row in body.tests) or any(body.modules.values())
    if body.end.code == body.exitstatus and (body.end.code in (1, 2) if red else body.end.code == 0):
        return ""
    return f"exit status {body.end.code} outside, {body.exitstatus} inside, {'red' if red else 'no red'} tests reported"


def _worse(one: TestRow, two: TestRow) -> TestRow:
    kept = two if two.outcome in RED else one
    return msgspec.structs.replace(kept, times=one.times + two.times, duration_us=one.duration_us + two.duration_us)


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
