"""The way of a patch: observe, plan, run in waves, judge, join, decide. One direction, no way back."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Protocol

import anyio
import msgspec

from . import __version__, checks
from .core import canonical, evidence
from .core.check import Check, Note, Patch
from .core.evidence import Subject
from .core.policy import Policy
from .core.records import Decision, PlanBody, VerdictBody
from .core.stage import Blob, End, Engine, Facts, Limits, Mount, Outcome, Runtime, Stage, Tree
from .errors import EngineUnavailable, EvidenceCorrupt, PolicyError, ProbatumError
from .host.env import gate_argv
from .host.received import receive
from .host.store import Store

TOOL = f"probatum/{__version__}"


class Progress(Protocol):
    """Who watches a gate."""

    def stage_started(self, name: str) -> None: ...
    def stage_finished(self, name: str, end: str, seconds: float) -> None: ...
    def note(self, text: str) -> None: ...


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate is asked: the repository, revisions ("" takes the default), where records go, which engine, whether
    the answer may count (``why_advisory`` is "" only where it may), and the key that signs when the last stage has ended."""

    repo: Path
    out: Path
    base: str = ""
    head: str = ""
    engine: str = ""
    evidence: Path | None = None
    key: Path | None = None
    why_advisory: str = ""
    attempt: int = 1


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One patch, observed: what the checks plan from, the record of it, and where base's policy came from."""

    patch: Patch
    note: Note
    policy_source: str
    policy_digest: str


async def run(request: Request, seen: Seen, engine: Engine, gate_runtime: Runtime, progress: Progress) -> Decision:
    """The decision over one patch. Raises ProbatumError where it could not judge; then no decision was written."""
    store = Store.fresh(request.out)
    required = {name: _load(name) for name in seen.patch.policy.required}
    gate = _Gate(request, seen, engine, store, required, progress)
    async with AsyncExitStack() as stack:
        gate.facts = await engine.open()
        stack.push_async_callback(engine.close)
        gate.seal_plan()
        gate.seal(seen.note)
        gate.receive()
        await gate.waves()
        verdicts = await gate.judge(gate_runtime)
        return await gate.join(gate_runtime, verdicts)


def _load(name: str) -> Check:
    try:
        return checks.load(name)
    except KeyError:
        raise PolicyError("ci/gate.yaml", f"requires the check {name!r}, which is not installed") from None


class _Gate:
    """One gate's hands: every effect goes through ``engine`` and ``store``."""

    def __init__(
        self, request: Request, seen: Seen, engine: Engine, store: Store, required: Mapping[str, Check], progress: Progress
    ) -> None:
        self.request, self.patch, self.engine, self.store = request, seen.patch, engine, store
        self.seen, self.required, self.progress = seen, required, progress
        self.policy_digest = seen.policy_digest
        self.nonce = secrets.token_hex(16)
        self.have: dict[str, Any] = {}
        self.facts = Facts(name="")

    def seal_plan(self) -> None:
        """The plan names what must be there, before anything ran."""
        policy = self.patch.policy
        allowed = ["patch", *(record for check in self.required.values() for record in check.RECORDS)]
        names = [f"{name}.json" for name in (*allowed, *(f"verdict.{name}" for name in policy.required))]
        body = PlanBody(
            required=policy.required,
            off={**policy.off, **{name: "not named" for name in checks.names() if name not in policy.checks}},
            records=tuple(sorted(set(names))),
            authority="advisory" if self.request.why_advisory else "deciding",
            why_advisory=self.request.why_advisory,
            policy_source=self.seen.policy_source,
            policy=plain(policy),
            now=self.patch.now,
            seed=self.patch.seed,
        )
        now = _now()
        self.store.plan(self._statement("plan", "", body, self.policy_digest, now, now, Facts(name="host")), body.records)
        self.have["plan"] = body

    def seal(self, note: Note) -> None:
        """One record, written once."""
        name = ".".join([note.kind, *([note.part] if note.part else [])])
        now = _now()
        outcome = note.outcome or Outcome(end=End("exited"), nonce="", started=now, finished=now, facts=Facts(name="host"))
        data = self._statement(
            note.kind, note.part, note.body, note.input_digest, outcome.started, outcome.finished, outcome.facts, outcome.nonce
        )
        self.store.write(f"{name}.json", data)
        self.have[name] = note.body

    def receive(self) -> None:
        """Records of other jobs come in unedited: only under planned names, only of kinds that a required check imports."""
        for check in self.required.values():
            for record in check.RECORDS:
                kind = record.split(".")[0]
                if kind in getattr(check, "IMPORTS", ()):
                    key = self.patch.policy.keys.get("gate", "")
                    data, note = receive(self.request.evidence, record, check.BODIES[kind], key)
                    self.seal(note)
                    if data is not None:
                        self.store.write(f"{record}.json", data)

    async def waves(self) -> None:
        """Asks every check for stages until none has a new one; the stages of a wave run together."""
        done: set[str] = set()
        while True:
            wave: dict[str, tuple[Check, Stage]] = {}
            for check in self.required.values():
                for step in check.plan(self.patch, self.have):
                    if isinstance(step, Note):
                        if ".".join(filter(None, (step.kind, step.part))) not in self.have:
                            self.seal(step)
                    elif step.name not in done:
                        wave.setdefault(step.name, (check, step))
            if not wave:
                return
            await self._together([self._reader(check, stage) for check, stage in wave.values()])
            done.update(wave)

    def _reader(self, check: Check, stage: Stage) -> Callable[[], Any]:
        async def one() -> None:
            self.seal(check.read(stage, await self._run(stage)))

        return one

    async def _run(self, stage: Stage) -> Outcome:
        nonce = secrets.token_hex(16)
        self.progress.stage_started(stage.name)
        outcome = await self.engine.run(stage, nonce)
        seconds = (outcome.finished - outcome.started) / 1e6
        if outcome.nonce != nonce and not (stage.reusable and outcome.facts.cache == "reused"):
            raise EngineUnavailable(stage.name, "the engine answered with another run's result", "run the gate again")
        self.progress.stage_finished(stage.name, _end_text(outcome), seconds)
        return outcome

    async def judge(self, runtime: Runtime) -> dict[str, VerdictBody]:
        """Each verdict comes from a sandbox of its own that sees evidence and base's policy."""
        verdicts: dict[str, VerdictBody] = {}
        records, digests = dict(self.store.records), dict(self.store.digests)

        def one(name: str) -> Callable[[], Any]:
            async def inner() -> None:
                stage = _trusted(f"judge.{name}", runtime, ("judge", name), records)
                body = _trusted_report(stage, await self._run(stage), VerdictBody)
                if body.evidence != digests:
                    raise EvidenceCorrupt(stage.name, "judged other records than the store holds", "run the gate again")
                verdicts[name] = body
                self.seal(Note(kind="verdict", part=name, body=body, input_digest=stage.digest))

            return inner

        await self._together([one(name) for name in self.required])
        return verdicts

    async def join(self, runtime: Runtime, verdicts: Mapping[str, VerdictBody]) -> Decision:
        """The join's sandbox sees the plan and the verdicts, nothing else."""
        seen = {name: data for name, data in self.store.records.items() if name == "plan.json" or name.startswith("verdict.")}
        stage = _trusted("join", runtime, ("join",), seen)
        decision: Decision = _trusted_report(stage, await self._run(stage), Decision)
        await self.engine.close()
        self.store.finish(decision, canonical.encode(decision), self._signer())
        return decision

    def _signer(self) -> Callable[[str, bytes], bytes] | None:
        """Reads the key only now: no stage that could reach it runs any more."""
        if self.request.key is None:
            return None
        from .host import sign

        key = sign.load_key(self.request.key)
        return lambda name, data: sign.sign(key, name, data)

    async def _together(self, jobs: Iterable[Callable[[], Any]]) -> None:
        try:
            async with anyio.create_task_group() as group:
                for job in jobs:
                    group.start_soon(job)
        except BaseExceptionGroup as failed:
            raise _first(failed) from None

    def _statement(
        self, kind: str, part: str, body: Any, input_digest: str, started: int, finished: int, facts: Facts, nonce: str = ""
    ) -> bytes:
        subject: Subject = self.patch.subject
        return evidence.seal(
            evidence.Predicate(
                kind=kind,
                part=part,
                lane="gate",
                attempt=self.request.attempt,
                status="complete",
                started=evidence.rfc3339(started),
                finished=evidence.rfc3339(finished),
                base=subject.base,
                head=subject.head,
                merged_tree=subject.merged_tree,
                input_digest=input_digest,
                nonce=nonce or self.nonce,
                tool=TOOL,
                policy_digest=self.policy_digest,
                engine=facts,
                body=body,
            )
        )


def _trusted(name: str, runtime: Runtime, argv: tuple[str, ...], records: Mapping[str, bytes]) -> Stage:
    files = {record.encode(): Blob(0o100644, data=data) for record, data in records.items()}
    command = gate_argv(*argv, "--evidence", "/evidence", "--report-fd", "3")
    mounts = (Mount("/evidence", Tree(files)),)
    return Stage(name=name, trust="trusted", runtime=runtime, mounts=mounts, argv=command, limits=Limits(wall=120))


def _trusted_report(stage: Stage, outcome: Outcome, body: Any) -> Any:
    if outcome.end != End("exited"):
        said = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
        raise ProbatumError(stage.name, f"ended {_end_text(outcome)}", said[-1] if said else "")
    return canonical.decode(outcome.report, body, stage.name)


def _end_text(outcome: Outcome) -> str:
    end = outcome.end
    text = {"exited": f"exit {end.code}", "signalled": f"signal {end.code}", "setup": "not started"}.get(end.how)
    return (text or f"over {end.limit}") + (", cached" if outcome.facts.cache == "reused" else "")


def _first(failed: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure to report: ours before others', the first of its kind."""
    flat: list[BaseException] = []
    stack: list[BaseException] = [failed]
    while stack:
        error = stack.pop()
        if isinstance(error, BaseExceptionGroup):
            stack.extend(reversed(error.exceptions))
        else:
            flat.append(error)
    return next((error for error in flat if isinstance(error, ProbatumError)), flat[0])


def plain(policy: Policy) -> dict[str, Any]:
    """The policy as plain data for a record; a float becomes its text, because a float has no canonical form."""

    def without_floats(value: Any) -> Any:
        if isinstance(value, float):
            return repr(value)
        if isinstance(value, dict):
            return {key: without_floats(item) for key, item in value.items()}
        return [without_floats(item) for item in value] if isinstance(value, (list, tuple)) else value

    found: dict[str, Any] = without_floats(msgspec.to_builtins(policy))
    return found


def _now() -> int:
    return time.time_ns() // 1000
