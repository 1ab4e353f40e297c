"""``probatum judge NAME``: one verdict from evidence and base's policy, nothing else."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.records import PlanBody, VerdictBody


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("judge", help="one check's verdict, from evidence alone")
    parser.add_argument("name", help="the check, as in ci/gate.yaml")
    add_evidence(parser)
    parser.set_defaults(run=run)


def add_evidence(parser: argparse.ArgumentParser) -> None:
    """``--evidence`` and ``--report-fd``, which judge and join share."""
    parser.add_argument("--evidence", type=Path, default=Path("ci_out"), metavar="DIR", help="folder of records (ci_out)")
    parser.add_argument("--report-fd", type=int, default=1, metavar="N", help="descriptor for the canonical answer (1)")


def run(args: argparse.Namespace) -> int:
    """Prints the verdict as canonical JSON; the exit code is the verdict's, except on a report descriptor of its own."""
    from ..core import canonical

    body = judged(args.evidence, args.name)
    return answer(args.report_fd, canonical.encode(body), body.verdict.value)


def judged(folder: Path, name: str) -> VerdictBody:
    """The verdict of the check ``name`` over the records in ``folder``. Raises UsageError for an unknown check."""
    import msgspec

    from .. import checks
    from ..core.records import VerdictBody
    from ..core.verdict import verdict_of
    from ..errors import UsageError

    try:
        check = checks.load(name)
    except KeyError:
        raise UsageError(f"judge {name}", "is no check", f"one of: {', '.join(checks.names())}") from None
    plan, have, digests = load(folder, check)
    options: Any = msgspec.convert(options_of(plan, name), check.Options, strict=False)
    findings = check.judge(have, options, plan.now)
    return VerdictBody(name=name, verdict=verdict_of(findings), findings=tuple(findings), evidence=digests)


def load(folder: Path, check: Any) -> tuple[PlanBody, dict[str, Any], dict[str, str]]:
    """The plan, every record that ``check`` may read (all of one patch, attempt and policy), and all records' digests."""
    from ..core import canonical, evidence
    from ..core.records import BODIES, PlanBody
    from ..errors import EvidenceCorrupt
    from ..host.store import read, record_names

    plan = evidence.unseal(read(folder, "plan.json"), PlanBody, "plan.json")
    have: dict[str, Any] = {"plan": plan.body}
    bodies = {**BODIES, **check.BODIES}
    digests: dict[str, str] = {}
    for name in record_names(folder):
        kind = name.split(".")[0]
        raw = read(folder, name)
        if kind != "verdict":
            digests[name] = canonical.digest(raw)
        if kind in ("plan", "verdict") or kind not in bodies:
            continue
        record = evidence.unseal(raw, bodies[kind], name)
        if kind in getattr(check, "IMPORTS", ()) and name in plan.body.records:
            have[name.removesuffix(".json")] = record  # another job's: the check itself compares it with this patch
            continue
        same = ("base", "head", "merged_tree", "attempt", "policy_digest")
        if evidence.file_name(record.kind, record.part, record.attempt) != name or name not in plan.body.records:
            raise EvidenceCorrupt(name, "is not what its name says, or nobody planned it")
        if any(getattr(record, field) != getattr(plan, field) for field in same):
            raise EvidenceCorrupt(name, "is of another patch, attempt or policy than the plan", "run the gate again")
        have[".".join(filter(None, (record.kind, record.part)))] = record.body
    return plan.body, have, digests


def options_of(plan: PlanBody, name: str) -> dict[str, Any]:
    """The check's part of the policy that the plan sealed."""
    found = plan.policy.get("checks")
    options = found.get(name) if isinstance(found, dict) else None
    return options if isinstance(options, dict) else {}


def answer(fd: int, data: bytes, verdict: str) -> int:
    """Writes ``data`` whole. Exit 0 on a descriptor of its own (the answer is the record), else the verdict's code."""
    from ..errors import Exit

    if fd == 1:
        sys.stdout.buffer.write(data)
        sys.stdout.flush()
        return {"PASS": Exit.PASS, "HOLD": Exit.HOLD}.get(verdict, Exit.BLOCK)
    with open(fd, "wb", closefd=False) as out:
        out.write(data)
    os.close(fd)
    return Exit.PASS
