"""``probatum join``: the AND over the verdicts that the plan requires."""

from __future__ import annotations

import argparse
from typing import Any

from .judge import add_evidence


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("join", help="the decision, from the plan and the verdicts alone")
    add_evidence(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Prints the decision as canonical JSON."""
    from ..core import canonical, evidence
    from ..core.join import decide
    from ..core.records import PlanBody, VerdictBody
    from ..host.store import read
    from .judge import answer

    raw = read(args.evidence, "plan.json")
    plan = evidence.unseal(raw, PlanBody, "plan.json")
    verdicts = {}
    for name in plan.body.required:
        file = evidence.file_name("verdict", name)
        if (args.evidence / file).exists():
            verdicts[name] = evidence.unseal(read(args.evidence, file), VerdictBody, file)
    decision = decide(plan, canonical.digest(raw), verdicts)
    code = {"MERGE_OK": "PASS", "MERGE_HELD": "HOLD"}.get(decision.decision, "BLOCK")
    return answer(args.report_fd, canonical.encode(decision), code)
