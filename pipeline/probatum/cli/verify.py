"""``probatum verify``: an evidence folder still says what its decision says, and what landed is what was judged."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("verify", help="check a decision against its evidence, or a landed commit against a decision")
    parser.add_argument("--evidence", type=Path, default=Path("ci_out"), metavar="DIR", help="folder of records (ci_out)")
    parser.add_argument(
        "--repo", type=Path, default=Path("."), metavar="DIR", help="the repository, for --landed (this folder)"
    )
    parser.add_argument("--landed", default="", metavar="COMMIT", help="prove that COMMIT is the judged merge")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit 0 when every record holds, each verdict follows from the evidence again, and the decision from the verdicts."""
    from ..core import canonical, evidence
    from ..core.join import decide
    from ..core.records import Decision, PlanBody, VerdictBody
    from ..errors import EvidenceCorrupt, UsageError
    from ..host import sign
    from ..host.store import read, record_names
    from .judge import judged

    folder = args.evidence
    if not folder.is_dir():
        raise UsageError(f"--evidence {folder}", "is no folder", "name the gate's --out folder")
    raw = read(folder, "plan.json")
    plan = evidence.unseal(raw, PlanBody, "plan.json")
    decision: Decision = canonical.decode(read(folder, "decision.json"), Decision, "decision.json")
    verdicts = {}
    for name in plan.body.required:
        file = evidence.file_name("verdict", name)
        verdicts[name] = evidence.unseal(read(folder, file), VerdictBody, file)
        if verdicts[name].body != judged(folder, name):
            raise EvidenceCorrupt(file, "does not follow from the evidence", "run the gate again")
    if decide(plan, canonical.digest(raw), verdicts) != decision:
        raise EvidenceCorrupt("decision.json", "does not follow from the verdicts", "run the gate again")
    keys = plan.body.policy.get("keys")
    public = keys.get("gate") if isinstance(keys, dict) else None
    names = [*record_names(folder), "decision.json"]
    if public:
        for name in names:
            beside = folder / (name + sign.SUFFIX)
            sign.check(public, name, read(folder, name), read(folder, beside.name) if beside.exists() else None)
    if args.landed:
        _landed(args.repo, args.landed, decision)
    print(f"{len(names)} records hold{', signed' if public else ''}: {decision.line}")
    return 0


def _landed(repo: Path, commit: str, decision: Any) -> None:
    from ..errors import EvidenceCorrupt
    from ..host.workspace import verify_landed

    if decision.decision != "MERGE_OK":
        raise EvidenceCorrupt("--landed", f"the decision is {decision.decision}")
    verify_landed(repo, commit, decision.base, decision.merged_tree)
