"""Runs one cold replay: a new environment in empty caches, a fresh order, nothing reused, and a record of what was measured."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import anyio
import msgspec

from .. import __version__
from ..core import canonical, evidence, replay, replay_ledger
from ..core.received import Received
from ..core.replay import Admission, Reality
from ..core.replay_facts import kind_of
from ..core.replay_ledger import Line, Refused
from ..core.replay_rule import ending, law
from ..core.stage import Blob, Engine, Outcome, Stage
from ..core.suite import probe_tree
from ..core.verdict import Finding
from ..errors import EngineUnavailable, Exit, PolicyError, ProbatumError
from . import env, received, replay_files, sign
from .drive import choose_engine, hosted, load, observed, policy_digest, probe_files
from .git import cache_folder
from .observe import Base, look
from .replay_files import RECORD, Ledger, LockedLedger
from .tree import Trees
from .workspace import Workspace

TOOL = f"probatum/{__version__}"
CACHES = ("", "uv", "pip", "envs", "stages", "rootfs")


class NotReplayed(ProbatumError):
    """No replay was spent: exit 1."""

    exit = Exit.BLOCK


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """What to replay, and where its record goes. ``ledger``: None keeps it beside the record. ``change``: "" is head's hash."""

    repo: Path
    out: Path
    base: str = ""
    head: str = ""
    ledger: Path | None = None
    change: str = ""
    engine: str = ""
    key: Path | None = None


class _Run:
    """One replay from its first line in the ledger to its last."""

    def __init__(self, order: Order, workspace: Workspace, base: Base, work: Path, say: Callable[[str], None]) -> None:
        self.order, self.workspace, self.base, self.work, self.say = order, workspace, base, work, say
        self.ledger = Ledger(order.ledger or replay_files.beside(order.out))
        self.nonce, self.change = secrets.token_hex(16), order.change or base.subject.head
        self.began: Line | None = None
        self.where = "environment"

    def begin(self) -> Line:
        """The attempt is counted before anything is installed or run. Raises NotReplayed where none is left."""
        asked = replay.asked(self.base.subject, self.base.policy, self.change)
        with self.ledger.locked() as ledger:
            try:
                attempt = replay_ledger.attempt(ledger.lines, asked)
            except Refused as error:
                raise NotReplayed(f"cold_replay/{error.name}", error.reason) from None
            used = {line.seed for line in ledger.lines}
            seed = next(number for _ in range(100) if (number := secrets.randbelow(1 << 31)) not in used)
            self.began = self._add(ledger, what="began", seed=seed, attempt=attempt, subject=asked.subject)
        return self.began

    def failed(self, error: ProbatumError, fact: str) -> None:
        """A failure without a record is counted too, under what the table says that it is."""
        kind = kind_of(self.where, fact)
        self.end("infrastructure" if kind == "infrastructure" else "failed", why=error.line()[:300])

    def end(self, what: str, record: str = "", why: str = "") -> bytes:
        """The last line; the whole ledger, as it is then."""
        assert self.began is not None
        with self.ledger.locked() as ledger:
            began = self.began
            self._add(ledger, what=what, seed=began.seed, attempt=began.attempt, subject=began.subject, record=record, why=why)
            return ledger.data

    def _add(self, ledger: LockedLedger, **fields: Any) -> Line:
        subject = self.base.subject
        return ledger.add(
            at=evidence.rfc3339(time.time_ns() // 1000), run=self.nonce, change=self.change, base=subject.base,
            head=subject.head, tree=subject.merged_tree, **fields,
        )  # fmt: skip

    def go(self) -> tuple[Admission, str]:
        """Build, run, read, write. On an interrupt nothing is written."""
        if self.base.conflict:
            raise NotReplayed("cold_replay", "base and head do not merge", "rebase the patch on its base")
        replay_files.replaceable(self.order.out)
        began = self.begin()
        replay_files.void(self.order.out)
        try:
            return self._go(began)
        except EngineUnavailable as error:
            self.failed(error, "silent" if self.where == "launcher" else "unavailable")
            raise
        except PolicyError as error:
            self.failed(error, "unavailable")
            raise

    def _go(self, began: Line) -> tuple[Admission, str]:
        cold = cold_folder(self.work)
        started = time.time_ns() // 1000
        caches = {f"cache/{name}".rstrip("/"): _entries(cold / name) for name in CACHES}
        built = env.environment(self.base.policy, self.base.base, self.workspace.objects.read, cold, cache_folder() / "images")
        for line in built.notes:
            self.say(line)
        patch, facts = observed(self.workspace, self.base, built)
        now = replay.reality(patch)
        options = replay.options_of(self.base.policy)
        files = probe_files()
        probe = probe_tree(files).with_files({b"cold.py": Blob(0o100644, data=files["cold.py"])})
        stage = replay.stage(patch, began.seed, probe)
        if options.suite == "sealed" and (facts.oracle or not patch.modules):
            why = facts.oracle[0] if facts.oracle else "holds no test module"
            raise PolicyError("the sealed suite", why, "seal again, in a change of its own")
        read, many = self.workspace.objects.read, self.workspace.objects.many
        trees = Trees(read, self.work / "trees", many)
        runtime, place = env.gate_place()
        places = env.places((runtime, place), (built.runtime, built.place))
        self.where = "engine"
        engine = choose_engine(self.order.engine, self.base.policy, trees, places, cold)
        outcome = anyio.run(self._run, engine, stage)
        if outcome.end.how == "setup":
            raise EngineUnavailable(stage.name, f"the launcher could not start the command (errno {outcome.end.code})")
        body = replay.read(
            now, outcome, nonce=self.nonce, seed=began.seed, change=self.change, ledger=replay_ledger.digest_of(began),
            started_us=started, caches=caches, may_fail=options.may_fail, runtime=built.runtime,
            head_tree=self.workspace.objects.commit(self.base.subject.head).tree,
            toolchain={
                "python": built.python, "pytest": built.pytest, "engine": f"{outcome.facts.name} {outcome.facts.version}",
            },
        )  # fmt: skip
        return body, self._seal(body, stage, outcome, began)

    async def _run(self, engine: Engine, stage: Stage) -> Outcome:
        await engine.open()
        self.where = "launcher"
        try:
            return await engine.run(stage, self.nonce)
        finally:
            with anyio.CancelScope(shield=True):
                await engine.close()

    def _seal(self, body: Admission, stage: Stage, outcome: Outcome, began: Line) -> str:
        """The record first, then the line that knows its digest: a record without its line admits nothing."""
        subject, out = self.base.subject, self.order.out
        data = evidence.seal(
            evidence.Predicate(
                kind=RECORD,
                part="",
                lane="gate",
                attempt=began.attempt,
                status="complete",
                started=evidence.rfc3339(outcome.started),
                finished=evidence.rfc3339(outcome.finished),
                base=subject.base,
                head=subject.head,
                merged_tree=subject.merged_tree,
                input_digest=stage.digest,
                nonce=self.nonce,
                tool=TOOL,
                policy_digest=policy_digest(self.base),
                engine=outcome.facts,
                body=body,
            )
        )
        if self.order.key is not None:
            key = sign.load_key(self.order.key)
            replay_files.write(out.with_name(out.name + sign.SUFFIX), sign.sign(key, out.name, data))
        replay_files.write(out, data)
        digest = canonical.digest(data)
        whole = self.end(ending(body), record=digest, why=body.reason[:300])
        if self.order.ledger is not None:
            replay_files.write(replay_files.beside(out), whole)
        return digest


def run(order: Order, say: Callable[[str], None]) -> tuple[Admission, str]:
    """(the admission, its digest); the record, and where a key is given its signature, are in ``order.out`` and beside it.

    Raises NotReplayed where no replay is left, EngineUnavailable where there is no record to write, KeyboardInterrupt on ^C
    or SIGTERM: then nothing is written, and what was begun stays counted.
    """
    if order.key is not None:
        sign.load_key(order.key)
    with hosted(order.repo) as (workspace, work):
        base = look(workspace, order.base or None, order.head or None, load)
        return _Run(order, workspace, base, work, say).go()


def admit(path: Path, repo: Path, base: str, head: str, ledger: Path | None) -> list[Finding]:
    """What speaks against the record in ``path`` now; one PASS remark where nothing does."""
    cache = cache_folder()
    with Workspace(repo, cache) as workspace:
        seen = look(workspace, base or None, head or None, load)
        data, found = received.look(path, RECORD, Admission, seen.policy.keys.get("gate", ""), ledger)
        if data is None or found.problem:
            return law(None, found, _nothing(seen))
        record = evidence.unseal(data, Admission, path.name)
        built = env.environment(seen.policy, seen.base, workspace.objects.read, cache)
        patch, _ = observed(workspace, seen, built)
        return law(record, found, replay.reality(patch))


def shown(path: Path) -> tuple[evidence.Predicate[Admission], Received]:
    """A record for the eye. Raises EvidenceCorrupt."""
    data, found = received.look(path, RECORD, Admission, "")
    if data is None or found.problem:
        _corrupt(found)
    return evidence.unseal(data, Admission, path.name), found


def cold_folder(work: Path) -> Path:
    """A cache folder that holds nothing."""
    folder = work / "cache"
    folder.mkdir(mode=0o700)
    return folder


def _corrupt(found: Received) -> NoReturn:
    from ..errors import EvidenceCorrupt

    raise EvidenceCorrupt(found.name, found.problem.removeprefix(f"{found.name}: "))


def _entries(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except FileNotFoundError:
        return 0


def _nothing(seen: Base) -> Reality:
    """Stands in where there is no record to compare."""
    subject = seen.subject
    return Reality(
        base=subject.base, head=subject.head, merged_tree=subject.merged_tree, runtime="environment", runner_image="",
        environment="", hook_version=1, hook_changed="", suite="", alone=False,
    )  # fmt: skip
