"""Plans a suite, runs its shards in sandboxes of their own, and reads what shards anywhere have left."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import anyio
import msgspec

from .. import __version__
from ..core import canonical
from ..core.check import Patch
from ..core.durations import parse_durations
from ..core.policy import Policy
from ..core.shard_stages import base_durations, base_quarantine, collect_stage, shard_stage, suite_tree
from ..core.shards import Asked, Manifest, ShardPlan, Suite, empty_manifest, make_plan, manifest_of
from ..core.split import KeepTogether
from ..core.stage import Engine, Outcome, Stage
from ..core.testimony import parse as read_report
from ..errors import EngineUnavailable, EvidenceCorrupt, Exit, PolicyError, ProbatumError
from . import env
from .drive import DISK, choose_engine, hosted, load, observed, policy_digest
from .git import cache_folder
from .observe import look
from .shard_files import PLAN, write
from .tree import Trees

TOOL = f"probatum/{__version__}"


class NoPlan(ProbatumError):
    """The suite cannot be split honestly: a module is broken, or nothing was collected. Exit 1. One reason a line."""

    exit = Exit.BLOCK

    def __init__(self, where: str, what: str, remedy: str = "") -> None:
        super().__init__(where, what, remedy)
        self.reasons = what.splitlines()


class Watcher(Protocol):
    """Who watches shards run."""

    def note(self, text: str) -> None: ...
    def started(self, index: int) -> None: ...
    def finished(self, manifest: Manifest) -> None: ...
    def lost(self, index: int, why: str) -> None: ...
    def tick(self) -> None: ...


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """Whose suite: the repository, revisions ("" takes the default), which suite, which engine and how many stages at once."""

    repo: Path
    base: str = ""
    head: str = ""
    suite: Suite = "head"
    engine: str = ""
    capacity: int = 0


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """A patch whose suite can be run."""

    patch: Patch
    engine: Engine
    policy_digest: str
    suite: Suite
    capacity: int


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What kind of split is asked for. ``durations``: a file instead of ci/durations.json at base."""

    shards: int
    keep_together: KeepTogether = ""
    allow_empty: bool = False
    durations: Path | None = None


@contextlib.contextmanager
def opened(order: Order, watcher: Watcher) -> Iterator[Opened]:
    """The patch, observed, its environment and an engine; on leaving nothing of it is left. Raises ProbatumError."""
    with hosted(order.repo) as (workspace, work):
        default = default_policy() if order.suite == "head" else None
        base = look(workspace, order.base or None, order.head or None, load, default)
        if base.conflict:
            raise NoPlan(str(order.repo), "base and head do not merge", "rebase the patch on its base")
        if not base.source:
            watcher.note("no ci/gate.yaml at base: the suite runs with the defaults of probatum explain policy")
        cache = cache_folder()
        built = env.environment(base.policy, base.base, workspace.objects.read, cache)
        for line in built.notes:
            watcher.note(line)
        patch, body = observed(workspace, base, built)
        if order.suite == "sealed" and body.oracle:
            raise PolicyError("the sealed suite", body.oracle[0], "seal again, or give --suite head")
        trees = Trees(workspace.objects.read, work / "trees", workspace.objects.many)
        capacity = order.capacity or os.cpu_count() or 1
        places = env.places((built.runtime, built.place))
        engine = choose_engine(order.engine, base.policy, trees, places, cache, capacity)
        digest = policy_digest(base)
        yield Opened(patch=patch, engine=engine, policy_digest=digest, suite=order.suite, capacity=capacity)


def default_policy() -> Policy:
    """What applies to a repository without ci/gate.yaml: an ordinary checkout, its root and src on sys.path."""
    return Policy(version=1, layout="in-place", pythonpath=(".", "src"))


def plan(opened_: Opened, wanted: Wanted) -> ShardPlan:
    """Collects once and splits. Raises NoPlan with one line a reason."""
    patch = opened_.patch
    tree = suite_tree(patch, opened_.suite)
    stage = collect_stage(patch, opened_.suite, tree)
    outcome = anyio.run(_one, opened_.engine, stage)
    known = base_durations(patch) if wanted.durations is None else read_durations(wanted.durations)
    asked = Asked(
        suite=opened_.suite,
        base=patch.subject.base,
        commit=patch.subject.head,
        merged_tree=patch.subject.merged_tree,
        policy_digest=opened_.policy_digest,
        environment=patch.environment.ref,
        shards=wanted.shards,
        keep_together=wanted.keep_together,
        allow_empty=wanted.allow_empty,
        run=secrets.token_hex(16),
        tool=TOOL,
    )
    try:
        return make_plan(asked, read_report(outcome), outcome.facts, known, base_quarantine(patch))
    except ValueError as error:
        raise NoPlan("", str(error)) from None


async def _one(engine: Engine, stage: Stage) -> Outcome:
    await engine.open()
    try:
        return await _run(engine, stage)
    finally:
        await engine.close()


async def _run(engine: Engine, stage: Stage) -> Outcome:
    nonce = secrets.token_hex(16)
    outcome = await engine.run(stage, nonce)
    if outcome.nonce != nonce and outcome.end.how != "over":
        raise EngineUnavailable(stage.name, "the engine answered with another run's result", "run it again")
    return outcome


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """Which shards of a plan to run, and what is known of earlier attempts (shard to number and ids that were red)."""

    plan: ShardPlan
    indexes: tuple[int, ...]
    out: Path
    attempt: int = 1
    earlier: Mapping[int, tuple[int, frozenset[str]]] = {}
    key: Path | None = None
    env: Mapping[int, tuple[tuple[str, str], ...]] = {}


def run(opened_: Opened, order: Run, watcher: Watcher) -> tuple[dict[int, Manifest], dict[int, str]]:
    """(manifests, shard to why it has none). Each manifest is written as soon as its shard has ended.

    Raises EvidenceCorrupt when the plan is of another patch, policy or environment than what lies here.
    """
    patch, shard_plan = opened_.patch, order.plan
    subject = patch.subject
    here = (subject.base, subject.head, subject.merged_tree, opened_.policy_digest, opened_.suite)
    there = (shard_plan.base, shard_plan.commit, shard_plan.merged_tree, shard_plan.policy_digest, shard_plan.suite)
    if here != there:
        raise EvidenceCorrupt(PLAN, "is of another patch or policy than this repository holds", "make a new plan")
    if shard_plan.environment != patch.environment.ref:
        watcher.note("this runner's environment is not the one the plan was made on")
    return anyio.run(_all, opened_, order, watcher)


async def _all(opened_: Opened, order: Run, watcher: Watcher) -> tuple[dict[int, Manifest], dict[int, str]]:
    done: dict[int, Manifest] = {}
    lost: dict[int, str] = {}
    patch, engine = opened_.patch, opened_.engine
    tree = suite_tree(patch, opened_.suite)
    slots = anyio.CapacityLimiter(opened_.capacity)

    async def shard(index: int) -> None:
        number, red = order.earlier.get(index, (0, frozenset()))
        attempts = max(order.attempt, number + 1)
        try:
            if order.plan.groups[index]:
                stage = shard_stage(patch, order.plan, index, tree, order.env.get(index, ()))
                async with slots:
                    watcher.started(index)
                    outcome = await _run(engine, stage)
                body = read_report(outcome)
                manifest = manifest_of(
                    order.plan, index, body, outcome, tool=TOOL, now=patch.now, attempts=attempts, retried=red
                )
            else:
                manifest = empty_manifest(
                    order.plan, index, nonce=secrets.token_hex(16), now_us=time.time_ns() // 1000, tool=TOOL, attempts=attempts
                )
            write(order.out, f"shard-{index}.json", canonical.encode(manifest), order.key)
        except EngineUnavailable as error:
            lost[index] = error.line()
        except OSError as error:
            if error.errno not in DISK:
                raise
            lost[index] = f"{order.out}: {error.strerror}; make room and run it again"
        else:
            done[index] = manifest
            watcher.finished(manifest)
            return
        watcher.lost(index, lost[index])

    async def ticking() -> None:
        while True:
            await anyio.sleep(0.25)
            watcher.tick()

    await engine.open()
    try:
        async with anyio.create_task_group() as outer:
            outer.start_soon(ticking)
            async with anyio.create_task_group() as group:
                for index in order.indexes:
                    group.start_soon(shard, index)
            outer.cancel_scope.cancel()
    finally:
        with anyio.CancelScope(shield=True):
            await engine.close()
    return done, lost


def read_durations(path: Path) -> dict[str, int]:
    """The figures in ``path``; none where there is no such file yet."""
    return parse_durations(path.read_bytes(), str(path)) if path.exists() else {}
