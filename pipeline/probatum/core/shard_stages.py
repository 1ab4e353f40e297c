"""A suite is collected in one stage and each shard runs in one of its own, in a gate as on the command line."""

from __future__ import annotations

import msgspec

from ..errors import PolicyError
from .check import Patch
from .durations import parse_durations
from .leases import Quarantined
from .leases import parse as parse_ledger
from .policy import LEDGER
from .shards import DURATIONS, ShardPlan, Suite
from .stage import Stage, Tree
from .suite import Job, scored_tree, suite_stage, whole_tree


def suite_tree(patch: Patch, suite: Suite) -> Tree:
    """What the shards run on: the whole merged tree, or the sealed oracle over the merged production paths."""
    return whole_tree(patch) if suite == "head" else scored_tree(patch, patch.class_of)


def collect_stage(patch: Patch, suite: Suite, tree: Tree) -> Stage:
    """Collects once. The head's suite is discovered as its own configuration says, the sealed one is listed by the seal."""
    modules = () if suite == "head" else patch.modules
    job = Job(label="", tree=tree, modules=modules, collect=True)
    return suite_stage(patch, "collect", [job], trust="candidate", freeze=False if suite == "head" else None)


def shard_stage(patch: Patch, plan: ShardPlan, index: int, tree: Tree, env: tuple[tuple[str, str], ...] = ()) -> Stage:
    """Runs exactly one group of the plan, and nothing when what it collects is not what the plan says.

    Files without a node id of the group are passed over; those that no plan knows are still collected, and refused.
    """
    group = plan.groups[index]
    mine = {file_of(id_) for id_ in group}
    expect = tuple(id_ for id_ in plan.node_ids if file_of(id_) in mine)
    others = tuple(sorted({_bytes(file_of(id_)) for id_ in plan.node_ids} - {_bytes(file) for file in mine}))
    listed = tuple(path for path in patch.modules if _text(path) in mine)
    head = plan.suite == "head"
    job = Job(label="", tree=tree, modules=() if head else listed, ids=group, expect=expect, ignore=others if head else ())
    stage = suite_stage(patch, f"shard{index}", [job], trust="candidate", freeze=False if head else None)
    return msgspec.structs.replace(stage, env=(*stage.env, *env)) if env else stage


def base_durations(patch: Patch) -> dict[str, int]:
    """What ci/durations.json at base records, in microseconds; nothing where there is no such file."""
    blob = patch.base.files.get(DURATIONS.encode())
    return parse_durations(patch.read(blob.oid), DURATIONS) if blob is not None and blob.oid else {}


def base_quarantine(patch: Patch) -> tuple[Quarantined, ...]:
    """The quarantine rows of base's ledger. Raises PolicyError where the ledger is malformed: it permits nothing."""
    blob = patch.base.files.get(LEDGER.encode())
    if blob is None or not blob.oid:
        return ()
    try:
        return parse_ledger(patch.read(blob.oid)).quarantine
    except Exception as error:
        raise PolicyError(LEDGER, str(error), "mend the ledger in a change of its own") from None


def file_of(id_: str) -> str:
    """The file that a node id begins with."""
    return id_.partition("::")[0]


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
