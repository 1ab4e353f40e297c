"""A cold replay as values: its record, ledger and reality agree, and a test breaks one thing."""

from __future__ import annotations

from typing import Any

import msgspec

from probatum.core import canonical, evidence, replay_ledger
from probatum.core.received import Received
from probatum.core.replay import SCHEMA, Admission, Measured, Reality
from probatum.core.replay_ledger import Line
from probatum.core.stage import Facts

BASE, HEAD, TREE = "a" * 40, "b" * 40, "c" * 40
ENVIRONMENT = "sha256:" + "e" * 64
START = 1_800_000_000_000_000
SUBJECT = replay_ledger.subject_of(BASE, TREE, [1, "", "sealed"])
REALITY = Reality(
    base=BASE,
    head=HEAD,
    merged_tree=TREE,
    runtime="environment",
    runner_image="",
    environment=ENVIRONMENT,
    hook_version=1,
    hook_changed="",
    suite="sealed",
    alone=False,
)


class Case:
    """The parts of one replay. ``body``, ``envelope`` and ``reality`` take changes; ``lines`` are raw ledger lines."""

    def __init__(self, nonce: str = "1" * 32, seed: int = 42) -> None:
        self.nonce, self.seed = nonce, seed
        self.reality = REALITY
        self.lines: list[bytes] = []
        self.signature = ""
        self.envelope: dict[str, Any] = {}
        self.body: dict[str, Any] = {}
        self.measured: dict[str, Any] = {}
        self.began = self.add("began")
        self.settle()

    def add(self, what: str, **fields: Any) -> Line:
        """One more line of the ledger, chained."""
        lines = [canonical.decode(raw, Line, "kit") for raw in self.lines]
        given = {
            "at": evidence.rfc3339(START),
            "run": self.nonce,
            "change": "7",
            "subject": SUBJECT,
            "base": BASE,
            "head": HEAD,
            "tree": TREE,
            "seed": self.seed,
            "attempt": 1,
        }
        line, raw = replay_ledger.line_after(lines, what=what, **{**given, **fields})
        self.lines.append(raw)
        return line

    def settle(self) -> None:
        """The replay ends: its last line names the record's digest."""
        self.add("passed", record=canonical.digest(self.data()))

    def record(self) -> evidence.Predicate[Admission]:
        """The record with every change made."""
        measured = Measured(
            started_us=START,
            caches={"cache": 0, "cache/uv": 0},
            launcher_nonce=self.nonce,
            nonce=self.nonce,
            first_process_us=START + 9_000_000,
            inside_us=START + 9_000_000,
            spaces={"/tmp": 0},
            files=900,
            mtime_us=START + 1_000_000,
            ctime_us=START + 2_000_000,
        )
        body = Admission(
            schema=SCHEMA,
            tree_sha=TREE,
            head_tree=TREE,
            base_sha=BASE,
            head_sha=HEAD,
            runner_image=ENVIRONMENT,
            environment=ENVIRONMENT,
            hook_version=1,
            suite="sealed",
            cache="cold",
            seed=self.seed,
            toolchain={"python": "3.12.1"},
            result="pass",
            started_at=evidence.rfc3339(START),
            change="7",
            ledger=replay_ledger.digest_of(self.began),
            tests=20,
            failed=(),
            reason="",
            measured=msgspec.structs.replace(measured, **self.measured),
        )
        predicate = evidence.Predicate(
            kind="admission",
            part="",
            lane="gate",
            attempt=1,
            status="complete",
            started=evidence.rfc3339(START),
            finished=evidence.rfc3339(START + 1),
            base=BASE,
            head=HEAD,
            merged_tree=TREE,
            input_digest="sha256:" + "0" * 64,
            nonce=self.nonce,
            tool="probatum/0",
            policy_digest="sha256:" + "1" * 64,
            engine=Facts(name="bubblewrap"),
            body=msgspec.structs.replace(body, **self.body),
        )
        return msgspec.structs.replace(predicate, **self.envelope)

    def data(self) -> bytes:
        """The record's bytes."""
        return evidence.seal(self.record())

    def resettle(self) -> None:
        """Whoever made the record wrote the ledger's last line for it too."""
        self.lines.pop()
        body = self.record().body
        what = "passed" if body.result == "pass" else "failed" if body.cache == "cold" else "infrastructure"
        self.add(what, record=canonical.digest(self.data()), why=body.reason)

    def have(self) -> dict[str, Any]:
        """What the judge gets."""
        data = self.data()
        received = Received(
            name="admission.json",
            digest=canonical.digest(data),
            problem="",
            signature=self.signature,
            ledger=b"".join(self.lines).decode(),
        )
        return {"replay": self.reality, "received.admission": received, "admission": self.record()}
