"""A set of manifests passes if and only if it is an exact cover of the plan at this head, first time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from .shards import Manifest, ShardPlan, plan_digest
from .stage import End
from .verdict import Finding, Verdict


class Reviewed(msgspec.Struct, frozen=True, kw_only=True):
    """The commits that a reviewer looks at; "" where nobody said."""

    head: str = ""
    base: str = ""
    merged_tree: str = ""


def law(
    plan: ShardPlan, manifests: Sequence[Manifest], live: Collection[str], reviewed: Reviewed | None = None
) -> list[Finding]:
    """Every reason why the manifests prove less than the plan; none: the union of the shards is the plan.

    ``live``: node ids that a live quarantine row of base's ledger names; they alone may have needed a second attempt.
    """
    found = [_block("plan", why) for why in plan_problems(plan)]
    if found:
        return found
    found += _reviewed(plan, reviewed or Reviewed())
    mine: dict[int, Manifest] = {}
    spoken: Counter[int] = Counter()
    for manifest in sorted(manifests, key=lambda manifest: manifest.index):
        foreign = list(_identity(plan, manifest))
        found += foreign
        if 0 <= manifest.index < plan.shards:
            spoken[manifest.index] += 1
            if not foreign:
                mine.setdefault(manifest.index, manifest)
    for index, times in sorted(spoken.items()):
        if times > 1:
            found.append(_block("duplicate", f"shard {index} has {times} manifests", _shard(index)))
    for index in range(plan.shards):
        if not spoken[index]:
            lost = len(plan.groups[index])
            found.append(
                _block("missing", f"shard {index} has no manifest: {lost} planned node ids did not run", _shard(index))
            )
    for manifest in mine.values():
        found += _alone(plan, manifest, frozenset(live))
    return [*found, *_together(plan, mine)]


def success_line(plan: ShardPlan) -> str:
    """What a green answer claims."""
    empty = f", {len(plan.empty)} declared empty" if plan.empty else ""
    return f"SHARDS_OK: {len(plan.node_ids)} node ids, {plan.shards} shards{empty}, commit {plan.commit[:12]}"


def blocked_line(findings: Sequence[Finding], plan: ShardPlan | None = None) -> str:
    """The last line of a refusal: how many reasons of which kinds."""
    names = ", ".join(sorted({finding.id.partition("/")[2] for finding in findings}))
    at = f", commit {plan.commit[:12]}" if plan else ""
    return f"SHARDS_BLOCKED: {len(findings)} reason{'s' if len(findings) > 1 else ''} ({names}){at}"


def plan_problems(plan: ShardPlan) -> Iterator[str]:
    """What is wrong with the plan itself; one that does not hold can be covered by nothing."""
    if plan.plan_digest != plan_digest(plan):
        yield "plan.json: its digest is not that of its content"
        return
    if not plan.node_ids:
        yield "plan.json: no node ids"
    if list(plan.node_ids) != sorted(set(plan.node_ids)):
        yield "plan.json: node ids are not sorted, or one stands twice"
    if len(plan.groups) != plan.shards:
        yield f"plan.json: {len(plan.groups)} groups for {plan.shards} shards"
    if sorted(id_ for group in plan.groups for id_ in group) != list(plan.node_ids):
        yield "plan.json: its groups are not a partition of its node ids"
    if plan.empty != tuple(index for index, group in enumerate(plan.groups) if not group):
        yield "plan.json: the shards that it declares empty are not those without node ids"


def _reviewed(plan: ShardPlan, reviewed: Reviewed) -> Iterator[Finding]:
    remedy = "make a new plan and run it"
    if reviewed.head and plan.commit != reviewed.head:
        yield _block(
            "stale-plan", f"planned for commit {plan.commit[:12]}, the reviewed head is {reviewed.head[:12]}", "", remedy
        )
    elif reviewed.base and plan.base != reviewed.base:
        yield _block("stale-plan", f"planned on base {plan.base[:12]}, the base is {reviewed.base[:12]} now", "", remedy)
    elif reviewed.merged_tree and plan.merged_tree != reviewed.merged_tree:
        yield _block(
            "stale-plan", f"planned for tree {plan.merged_tree[:12]}, the merge makes {reviewed.merged_tree[:12]}", "", remedy
        )


def _identity(plan: ShardPlan, manifest: Manifest) -> Iterator[Finding]:
    """A manifest speaks of this plan, or of nothing."""
    name = _shard(manifest.index)
    if not 0 <= manifest.index < plan.shards:
        yield _block("out-of-range", f"{name} is none of the plan's 0 to {plan.shards - 1}", name)
        return
    if manifest.commit != plan.commit:
        yield _block("stale-commit", f"{name} tested commit {manifest.commit[:12]}, the head is {plan.commit[:12]}", name)
    elif (manifest.base, manifest.merged_tree) != (plan.base, plan.merged_tree):
        yield _block("stale-commit", f"{name} tested another base or merge than the plan's", name)
    if manifest.run != plan.run:
        yield _block("other-run", f"{name} belongs to run {manifest.run[:12]}, the plan to run {plan.run[:12]}", name)
    elif manifest.plan_digest != plan.plan_digest:
        yield _block("wrong-plan", f"{name} ran plan {manifest.plan_digest[:19]}, this is {plan.plan_digest[:19]}", name)
    elif manifest.shards != plan.shards:
        yield _block("wrong-plan", f"{name} is one of {manifest.shards} shards, the plan has {plan.shards}", name)


def _alone(plan: ShardPlan, manifest: Manifest, live: frozenset[str]) -> Iterator[Finding]:
    """What one manifest says of its own shard."""
    index, name = manifest.index, _shard(manifest.index)
    group = plan.groups[index]
    if manifest.status == "passed" and manifest.end != End("exited"):
        yield _block("failed", f"{name} says passed, its launcher saw it end otherwise ({manifest.end.how})", name)
    elif manifest.status != "passed" or manifest.failures:
        failed = [f"{failure.id}: {failure.text}" for failure in manifest.failures]
        first = f": {len(failed)} failed, the first is {failed[0]}" if failed else f": {manifest.note}" if manifest.note else ""
        said = f"ended as {manifest.status}" if manifest.status != "passed" else "says passed and lists failures"
        yield _block("failed", f"{name} {said}{first}", name)
    if manifest.collected != len(manifest.node_ids):
        yield _block("count", f"{name} says {manifest.collected} collected and lists {len(manifest.node_ids)} node ids", name)
    if manifest.attempts < 1:
        yield _block("retried", f"{name} says attempt {manifest.attempts}; the first is 1", name)
    elif manifest.attempts > 1 or manifest.retried:
        needed = manifest.retried or group
        if not needed or not live.issuperset(needed):
            bare = sorted(set(needed) - live)
            which = f", {bare[0]} has no live quarantine lease" if bare else ""
            yield _block("retried", f"{name} is green only on attempt {manifest.attempts}{which}", name, _LEASE)
    claimed = sorted(set(manifest.quarantined) - live)
    if claimed:
        yield _block("quarantine", f"{name} claims a quarantine that no live lease gives: {claimed[0]}", name, _LEASE)
    if group and not manifest.node_ids:
        yield _block(
            "empty", f"{name} ran nothing, {len(group)} node ids were planned and the plan does not declare it empty", name
        )


def _together(plan: ShardPlan, mine: dict[int, Manifest]) -> Iterator[Finding]:
    """Every planned node id ran once, in its own shard."""
    home = {id_: index for index, group in enumerate(plan.groups) for id_ in group}
    ran: dict[str, list[int]] = {}
    for index, manifest in mine.items():
        for id_ in manifest.node_ids:
            ran.setdefault(id_, []).append(index)
    twice: dict[tuple[int, ...], list[str]] = {}
    for id_, where in ran.items():
        if len(where) > 1:
            twice.setdefault(tuple(where), []).append(id_)
    for places, ids in sorted(twice.items()):
        shards = " and ".join(map(str, sorted(set(places))))
        times = f"in shards {shards}" if len(set(places)) > 1 else f"{len(places)} times in shard {shards}"
        yield _block("node-twice", f"{_some(sorted(ids))} ran {times}", min(ids))
    for index, manifest in mine.items():
        name = _shard(index)
        here = set(manifest.node_ids)
        unknown = sorted(here - home.keys())
        if unknown:
            yield _block("node-extra", f"{name} ran what the plan does not have: {_some(unknown)}", unknown[0])
        elsewhere = sorted(id_ for id_ in here if home.get(id_, index) != index and len(ran[id_]) == 1)
        if elsewhere:
            yield _block("misplaced", f"{name} ran {_some(elsewhere)}, planned for shard {home[elsewhere[0]]}", elsewhere[0])
        dropped = sorted(id_ for id_ in plan.groups[index] if id_ not in here and id_ not in ran)
        if dropped and here:
            yield _block("node-dropped", f"{name} did not run what the plan gives it: {_some(dropped)}", dropped[0])


_LEASE = "a person may quarantine it in ci/flake_leases.json, with owner and expiry; or mend it"


def _some(ids: Sequence[str]) -> str:
    return ids[0] if len(ids) == 1 else f"{len(ids)} node ids, the first is {ids[0]}"


def _shard(index: int) -> str:
    return f"shard {index}"


def _block(name: str, reason: str, subject: str = "", remedy: str = "") -> Finding:
    return Finding(id=f"shards/{name}", verdict=Verdict.BLOCK, reason=reason, subject=subject, remedy=remedy)


def reasons(findings: Iterable[Finding]) -> list[str]:
    """One line a finding: its id and why, with the remedy where there is one."""
    return [f"{finding.id}: {finding.reason}" + (f"; {finding.remedy}" if finding.remedy else "") for finding in findings]
