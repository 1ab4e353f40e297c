"""``probatum gate``: a patch in, verdicts from isolated sandboxes, one decision out."""

from __future__ import annotations

import argparse
import os
import re
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """The command's arguments; the contract that other tools rely on."""
    parser = commands.add_parser("gate", help="judge a patch: merge, block or hold, with evidence")
    parser.add_argument("--repo", type=Path, default=Path("."), metavar="DIR", help="the repository (this folder)")
    parser.add_argument("--base", default="", metavar="REV", help="the target's tip (the remote's default branch, else main)")
    parser.add_argument("--head", default="", metavar="REV", help="the candidate commit (HEAD)")
    parser.add_argument("--out", type=Path, default=Path("ci_out"), metavar="DIR", help="where the evidence goes (ci_out)")
    parser.add_argument("--engine", default="", metavar="NAME", help="bubblewrap or dagger (policy's)")
    parser.add_argument("--evidence", type=Path, metavar="DIR", help="records of other lanes, taken where the plan names them")
    parser.add_argument("--images", type=Path, metavar="DIR", help="archives of pinned images ($PROBATUM_IMAGES or the cache)")
    parser.add_argument("--key", type=Path, metavar="FILE", help="sign every record with this Ed25519 key (PEM)")
    parser.add_argument("--deciding", action="store_true", help="refuse unless the answer may count")
    parser.add_argument("--json", action="store_true", help="print decision.json before the decision line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit 0 merge, 1 block, 3 hold; the last line of stdout is the decision line."""
    from ..core import canonical
    from ..errors import Exit
    from ..gate import Request
    from ..host.drive import gate
    from ..report.terminal import Progress

    _refuse_keys()
    if args.images is not None:
        os.environ["PROBATUM_IMAGES"] = str(args.images)
    why = why_advisory(args.repo, args.base, args.out, args.deciding)
    request = Request(
        repo=args.repo,
        base=args.base,
        head=args.head,
        out=args.out,
        engine=args.engine,
        evidence=args.evidence,
        key=args.key,
        why_advisory=why,
    )
    with Progress() as progress:
        if why:
            progress.note(f"advisory: {why}")
        decision = gate(request, progress)
        progress.findings(decision)
    if args.json:
        print(canonical.encode(decision).decode(), end="")
    print(decision.line, flush=True)
    return {"MERGE_OK": Exit.PASS, "MERGE_HELD": Exit.HOLD}.get(decision.decision, Exit.BLOCK)


def why_advisory(repo: Path, base: str, out: Path, deciding: bool) -> str:
    """Why this answer may not count, "" where it may (section 0). Raises UsageError when ``deciding`` is asked for in vain."""
    from ..errors import UsageError

    home = Path(__file__).resolve().parents[2]
    reasons = []
    if not sys.flags.isolated:
        reasons.append("not started as python -I")
    if any((folder / ".git").exists() for folder in (home, *home.parents)):
        reasons.append("probatum runs from a checkout")
    if repo.resolve() in (home, *home.parents):
        reasons.append("probatum is installed inside the repository")
    if any(not entry.name.startswith(out.name) for entry in os.scandir(".")):
        reasons.append("the working folder is not empty")
    if not re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", base):
        reasons.append("--base is no full hash")
    if not deciding:
        return "--deciding was not asked for"
    if reasons:
        raise UsageError("--deciding", "; ".join(reasons), "see docs/adr on deciding and advisory gates")
    return ""


def _refuse_keys() -> None:
    from ..errors import UsageError

    for name in ("MODEL_API_KEY",):
        if os.environ.get(name):
            raise UsageError(name, "is set in the gate's environment", "the gate lane has no secrets; unset it")
