"""When an admission admits: the record against itself, against what is so now, and against the ledger of replays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import EvidenceCorrupt
from . import replay_ledger
from .evidence import Predicate
from .received import Received
from .replay import SCHEMA, Admission, Reality, inconsistent, warmth
from .replay_ledger import BUDGET, Line
from .verdict import Finding, Verdict

AGAIN = "replay: probatum replay run"


def law(record: Any, received: Received, now: Reality) -> list[Finding]:
    """Every reason against the record, the gravest first; a PASS remark alone where it admits.

    ``record``: the Predicate around an Admission, or None where there is none that can be read.
    """
    found = list(_diff(now))
    if not isinstance(record, Predicate) or not isinstance(record.body, Admission):
        found.append(_unreadable(received))
    else:
        found += [*_itself(record, received, now), *_reality(record.body, now), *_ledger(record, received)]
    if found:
        return found
    body = record.body
    words = f"replay with seed {body.seed} ran {body.tests} tests from a cold state at {body.started_at}"
    return [finding("admitted", words, verdict=Verdict.PASS)]


def finding(name: str, reason: str, remedy: str = "", verdict: Verdict = Verdict.BLOCK) -> Finding:
    """A finding of cold_replay."""
    return Finding(id=f"cold_replay/{name}", verdict=verdict, reason=reason, remedy=remedy)


def _diff(now: Reality) -> Iterator[Finding]:
    if now.hook_changed:
        verdict = Verdict.HOLD if now.alone else Verdict.BLOCK
        yield finding("hook-changed", now.hook_changed, "land the harness change as a patch of its own", verdict)


def _unreadable(received: Received) -> Finding:
    if not received.digest:
        return finding("missing", received.problem or "there is no admission record: that counts as a failure", AGAIN)
    return finding("corrupt", received.problem or "the record cannot be read", AGAIN)


def _itself(record: Predicate[Admission], received: Received, now: Reality) -> Iterator[Finding]:
    body = record.body
    if received.signature:
        yield finding("signature", received.signature, "sign it where it is made: probatum replay run --key")
    if body.schema != SCHEMA:
        yield finding("schema", f"the record's schema is {body.schema!r}, not {SCHEMA}", AGAIN)
    wrong = inconsistent(record)
    if wrong:
        yield finding("mixed", wrong, AGAIN)
    if body.cache != "cold":
        yield finding("warm", f"the record says itself that its cache was {body.cache}: {body.reason}", AGAIN)
    if record.engine.cache != "none":
        yield finding("cached-answer", "the engine answered from its cache, nothing was run", AGAIN)
    told = (body.measured.launcher_nonce,) if body.measured.junk else (body.measured.launcher_nonce, body.measured.nonce)
    if any(nonce != record.nonce for nonce in told):
        yield finding("nonce", "the nonce that came back from inside is not the replay's own", AGAIN)
    elif body.cache == "cold":
        for why in warmth(body.measured, record.nonce, now.runtime):
            yield finding("not-cold", f"the record says cold, but {why}", AGAIN)
            break
    if body.result != "pass" and body.cache == "cold":
        yield finding("failed", f"the replay failed: {body.reason or body.result}", "mend the code; a person looks")
    elif body.result == "pass" and (body.failed or not body.tests or body.reason):
        yield finding("mixed", "the record says pass, and its own figures do not", AGAIN)


def _reality(body: Admission, now: Reality) -> Iterator[Finding]:
    if body.base_sha != now.base:
        yield finding("base-moved", f"base was {body.base_sha[:12]} and is {now.base[:12]}", f"rebase, then {AGAIN}")
    elif body.tree_sha != now.merged_tree:
        yield finding("tree-changed", f"the merged tree was {body.tree_sha[:12]} and is {now.merged_tree[:12]}", AGAIN)
    elif body.head_sha != now.head:
        yield finding("tree-changed", f"head was {body.head_sha[:12]} and is {now.head[:12]}", AGAIN)
    if now.runner_image and body.runner_image != now.runner_image:
        yield finding("image-rotated", f"the image was {body.runner_image[:19]} and is {now.runner_image[:19]}", AGAIN)
    elif body.environment != now.environment:
        words = f"the environment was {body.environment[:19]} and is {now.environment[:19]}"
        yield finding("image-rotated", words, AGAIN)
    if body.hook_version != now.hook_version:
        yield finding("hook-version", f"hook_version was {body.hook_version} and is {now.hook_version}", AGAIN)
    if body.suite != now.suite:
        yield finding("suite-changed", f"the replay was of {body.suite!r}, policy asks for {now.suite!r}", AGAIN)


def _ledger(record: Predicate[Admission], received: Received) -> Iterator[Finding]:
    """The record's place among the replays of its change."""
    if received.ledger is None:
        yield finding("no-ledger", f"{received.name}.ledger is not beside the record: nobody knows what came after it", AGAIN)
        return
    try:
        lines = replay_ledger.parse(received.ledger.encode("utf-8", "surrogateescape"), f"{received.name}.ledger")
    except EvidenceCorrupt as error:
        yield finding("ledger", error.line())
        return
    body = record.body
    twice = replay_ledger.used_twice(lines)
    own = next((line for line in lines if replay_ledger.digest_of(line) == body.ledger), None)
    if twice or (own is not None and own.run != record.nonce):
        line = own.seq if own is not None else 0
        yield finding("reused-nonce", twice or f"the nonce is not the one that line {line} of the ledger began with", AGAIN)
        return
    mine = [line for line in lines if line.run == record.nonce]
    if not mine:
        yield finding("edited", "the ledger knows no replay with this record's nonce", AGAIN)
        return
    began, ended = mine[0], mine[-1]
    if len(mine) < 2 or ended.record != received.digest:
        words = f"its digest is {received.digest[:19]}, the ledger has {(ended.record or 'none')[:19]}"
        yield finding("edited", f"the record is not what its replay wrote: {words}", AGAIN)
        return
    wrong = _other(began, ended, record)
    if wrong:
        yield finding("edited", f"record and ledger name another {wrong}", AGAIN)
    later = [line for line in lines[ended.seq :] if line.change == body.change or line.subject == began.subject]
    if later:
        last = later[-1]
        what = {"began": "began and left no record", "infrastructure": f"failed in the infrastructure ({last.why})"}
        words = what.get(last.what, f"{last.what}, with a record of its own")
        yield finding("superseded", f"a later replay (line {last.seq}) {words}: each replay voids the record before it", AGAIN)
    spent = replay_ledger.replays(lines, body.change, began.subject)
    if spent > BUDGET:
        yield finding("spent", f"{spent} replays of this change, {BUDGET} is the most", "a person decides")
    if any(line.what == "failed" and line.subject == began.subject for line in lines[: ended.seq - 1]):
        yield finding("spent", "a replay of this tree failed in its tests and was run again", "mend the code; a person looks")


def ending(body: Admission) -> str:
    """How the ledger calls the end of a replay with this record. One that was not cold says nothing of the product."""
    return "passed" if body.result == "pass" else "failed" if body.cache == "cold" else "infrastructure"


def _other(began: Line, ended: Line, record: Predicate[Admission]) -> str:
    body = record.body
    pairs = (
        ("beginning", began.what, "began"),
        ("result", ended.what, ending(body)),
        ("first line", replay_ledger.digest_of(began), body.ledger),
        ("change", began.change, body.change),
        ("seed", began.seed, body.seed),
        ("base", began.base, body.base_sha),
        ("head", began.head, body.head_sha),
        ("merged tree", began.tree, body.tree_sha),
        ("attempt", began.attempt, record.attempt),
    )
    return next((name for name, one, two in pairs if one != two), "")
