"""A suite is planned once, its shards each leave one manifest, and the manifests prove that the union is the plan."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from ..errors import EvidenceCorrupt, one_line
from .canonical import digest_of
from .evidence import rfc3339
from .leases import Quarantined
from .records import Body, SuiteBody
from .redact import redact
from .split import KeepTogether, estimated, split
from .stage import End, Facts, Outcome

Suite = Literal["head", "sealed"]
Natural = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
Positive = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]

RED = ("failed", "error")
SHOWN = 500
"""Characters of a failure's text that a manifest keeps."""
FAILURES = 1000
"""Failures that a manifest keeps."""
DURATIONS = "ci/durations.json"


class ShardPlan(Body, frozen=True, kw_only=True, rename={"plan_digest": "digest"}):
    """``plan.json``: what was collected, once, and which shard runs what.

    ``digest`` is over every other field. ``run`` is a fresh nonce: a manifest of another run never fits. ``commit`` is the
    head under review. ``durations_us`` holds the recorded ones only, ``loads_us`` what each shard is expected to take.
    ``empty`` declares shards that have nothing to do. ``skipped_modules``: module to why it skipped itself as a whole.
    ``quarantine``: the rows of base's ledger that name a node id of the plan and were live when it was made.
    """

    schema: Literal["shards-plan/v1"]
    plan_digest: str
    run: str
    tool: str
    suite: Suite
    base: str
    commit: str
    merged_tree: str
    policy_digest: str
    environment: str
    keep_together: KeepTogether
    shards: Positive
    empty: tuple[Natural, ...]
    node_ids: tuple[str, ...]
    durations_us: dict[str, Natural]
    groups: tuple[tuple[str, ...], ...]
    loads_us: tuple[Natural, ...]
    skipped_modules: dict[str, str]
    quarantine: tuple[Quarantined, ...]
    engine: Facts


class Failure(Body, frozen=True, kw_only=True):
    """A node id (or a module that could not be collected) that did not pass, and why: one line, redacted."""

    id: str
    outcome: str
    text: str


class Manifest(Body, frozen=True, kw_only=True):
    """``shard-I.json``: what one shard ran, as its launcher saw it end and as the tests' interpreter reported it.

    ``collected`` counts ``node_ids``, the ids that ran, one entry a run. ``status`` is ``passed`` or how it ended.
    ``attempts``: 1 is the first time. ``retried``: ids that needed more than one, where that is known. ``quarantined``:
    ids of this shard that a live row of base's ledger names. ``nonce`` came back from inside the sandbox.
    """

    schema: Literal["shard/v1"]
    index: int
    shards: int
    commit: str
    base: str
    merged_tree: str
    plan_digest: str
    run: str
    collected: int
    node_ids: tuple[str, ...]
    status: str
    attempts: int
    retried: tuple[str, ...]
    quarantined: tuple[str, ...]
    failures: tuple[Failure, ...]
    skipped: dict[str, str]
    durations_us: dict[str, Natural]
    nonce: str
    started: str
    finished: str
    wall_us: Natural
    end: End
    note: str
    python: str
    pytest: str
    tool: str
    engine: Facts


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan is for, before anything was collected."""

    suite: Suite
    base: str
    commit: str
    merged_tree: str
    policy_digest: str
    environment: str
    shards: int
    keep_together: KeepTogether = ""
    allow_empty: bool = False
    run: str
    tool: str


def make_plan(
    asked: Asked, body: SuiteBody, engine: Facts, known: Mapping[str, int], quarantine: Iterable[Quarantined]
) -> ShardPlan:
    """The plan over what ``body`` collected. Raises ValueError, one line each, where that cannot be split honestly."""
    wrong = collection_problems(body)
    if wrong:
        raise ValueError("\n".join(wrong))
    ids = tuple(sorted(body.collected))
    groups = split(ids, known, asked.shards, asked.keep_together)
    empty = tuple(index for index, group in enumerate(groups) if not group)
    if empty and not asked.allow_empty:
        units = "node ids" if not asked.keep_together else "files" if asked.keep_together == "file" else "classes"
        raise ValueError(f"{asked.shards} shards and only {asked.shards - len(empty)} {units} to fill them")
    weights = dict(zip(ids, estimated(ids, known), strict=True))
    plan = ShardPlan(
        schema="shards-plan/v1",
        plan_digest="",
        run=asked.run,
        tool=asked.tool,
        suite=asked.suite,
        base=asked.base,
        commit=asked.commit,
        merged_tree=asked.merged_tree,
        policy_digest=asked.policy_digest,
        environment=asked.environment,
        keep_together=asked.keep_together,
        shards=asked.shards,
        empty=empty,
        node_ids=ids,
        durations_us={id_: known[id_] for id_ in ids if id_ in known},
        groups=groups,
        loads_us=tuple(sum(weights[id_] for id_ in group) for group in groups),
        skipped_modules={path: why for path, why in body.modules.items() if why.startswith("Skipped: ")},
        quarantine=tuple(row for row in quarantine if row.id in weights),
        engine=engine,
    )
    return msgspec.structs.replace(plan, plan_digest=plan_digest(plan))


def collection_problems(body: SuiteBody) -> list[str]:
    """Why a collection is no list to split: it did not end, a module has an error, nothing or something twice was found."""
    errors = [(path, why) for path, why in body.modules.items() if why and not why.startswith("Skipped: ")]
    if errors:
        return [f"{path or 'the suite'} cannot be collected: {redact(why)}" for path, why in errors]
    if body.end != End("exited") or body.junk or not body.finished:
        how = body.junk or f"{body.end.how} {body.end.limit or body.end.code}"
        if body.end == End("exited", 5):
            return ["no test was collected"]
        return [f"collecting did not end well ({how}): {redact(_last(body.tail))}"]
    if not body.collected:
        return ["no test was collected"]
    twice = sorted(id_ for id_, times in Counter(body.collected).items() if times > 1)
    return [f"{id_} is collected more than once: a plan cannot tell them apart" for id_ in twice]


def plan_digest(plan: ShardPlan) -> str:
    """Over every field but the digest itself."""
    return digest_of(msgspec.structs.replace(plan, plan_digest=""))


def live_rows(rows: Iterable[Quarantined], now: int) -> frozenset[str]:
    """Node ids that a row names which has begun and not expired."""
    return frozenset(row.id for row in rows if row.first_seen <= now < row.expires)


def manifest_of(
    plan: ShardPlan,
    index: int,
    body: SuiteBody,
    outcome: Outcome,
    *,
    tool: str,
    now: int,
    attempts: int = 1,
    retried: Iterable[str] = (),
) -> Manifest:
    """The manifest of one shard that ran. ``attempts`` and ``retried`` are what is known of earlier ones."""
    again = [row for row in body.tests if row.times > 1]
    ran = sorted(row.id for row in body.tests for _ in range(row.times))
    live = live_rows(plan.quarantine, now)
    failures = [Failure(id=row.id, outcome=row.outcome, text=_shown(row.signature)) for row in body.tests if row.outcome in RED]
    failures += [
        Failure(id=path, outcome="not collected", text=_shown(why))
        for path, why in body.modules.items()
        if why and not why.startswith("Skipped: ")
    ]
    return Manifest(
        schema="shard/v1",
        index=index,
        shards=plan.shards,
        commit=plan.commit,
        base=plan.base,
        merged_tree=plan.merged_tree,
        plan_digest=plan.plan_digest,
        run=plan.run,
        collected=len(ran),
        node_ids=tuple(ran),
        status=status_of(plan.groups[index], body, ran),
        attempts=max([attempts, *(row.times for row in again)]),
        retried=tuple(sorted({*retried, *(row.id for row in again)})),
        quarantined=tuple(sorted(live.intersection(plan.groups[index]))),
        failures=tuple(failures[:FAILURES]),
        skipped={row.id: _shown(row.reason or row.outcome) for row in body.tests if row.outcome in ("skipped", "xfailed")},
        durations_us={row.id: row.duration_us for row in body.tests if row.times},
        nonce=outcome.nonce,
        started=rfc3339(outcome.started),
        finished=rfc3339(outcome.finished),
        wall_us=body.wall_us,
        end=body.end,
        note="" if not failures and body.end == End("exited") else _shown(body.tail),
        python=body.python,
        pytest=body.pytest,
        tool=tool,
        engine=outcome.facts,
    )


def status_of(group: Sequence[str], body: SuiteBody, ran: Sequence[str]) -> str:
    """``passed``, or what a person needs to hear first. An empty group has no tests, and pytest says 5 there."""
    if body.end.how == "over":
        return f"over-{body.end.limit}"
    if body.end.how == "signalled":
        return f"killed-by-signal-{body.end.code}"
    if body.end.how == "setup":
        return "not-started"
    if body.junk or not (body.nonce_ok and body.finished):
        return "unfinished"
    if body.exitstatus == 4 and "what the plan says" in body.tail:
        return "refused"
    if any(why and not why.startswith("Skipped: ") for why in body.modules.values()):
        return "not-collected"
    if any(row.outcome in RED for row in body.tests):
        return "failed"
    if body.end.code or body.exitstatus:
        return f"exit-{body.end.code or body.exitstatus}"
    return "passed" if tuple(ran) == tuple(group) else "incomplete"


def empty_manifest(plan: ShardPlan, index: int, *, nonce: str, now_us: int, tool: str, attempts: int = 1) -> Manifest:
    """The manifest of a shard that the plan declares empty: nothing ran, and that is said."""
    body = SuiteBody(
        end=End("exited"), nonce_ok=True, junk="", finished=True, exitstatus=0, modules={}, collected=(), tests=(), watch=()
    )
    outcome = Outcome(end=End("exited"), nonce=nonce, started=now_us, finished=now_us, facts=Facts(name="none"))
    return manifest_of(plan, index, body, outcome, tool=tool, now=now_us // 1_000_000, attempts=attempts)


class FieldMissing(EvidenceCorrupt):
    """A record lacks a field: absence is not consent."""


def parse(data: bytes, type_: Any, where: str) -> Any:
    """A plan or manifest from strict JSON: a key twice, a missing or unknown field, NaN, a fraction are all refused.

    White space and the order of keys are free: manifests come from anywhere. Raises EvidenceCorrupt or FieldMissing.
    """
    try:
        plain = json.loads(data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_refuse, parse_float=_refuse)
        return msgspec.convert(plain, type_, strict=True)
    except msgspec.ValidationError as error:
        kind = FieldMissing if "missing required field" in str(error) else EvidenceCorrupt
        raise kind(where, one_line(str(error))) from None
    except (ValueError, RecursionError) as error:
        raise EvidenceCorrupt(where, f"is not strict JSON: {one_line(str(error)) or type(error).__name__}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _refuse(text: str) -> Any:
    raise ValueError(f"{text[:40]} is no whole number")


def _shown(text: str) -> str:
    return one_line(redact(text.strip()))[:SHOWN]


def _last(text: str) -> str:
    return text.strip().splitlines()[-1] if text.strip() else "no word from it"
