"""``probatum replay``: run the suite once from a cold state, and admit or refuse the record of it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """The command's arguments; the contract that other tools rely on."""
    parser = commands.add_parser("replay", help="run the suite from a cold state, once, and admit the record of it")
    steps = parser.add_subparsers(metavar="STEP", required=True)

    run = steps.add_parser("run", help="replay from a cold state; exit 0 when it passed cold, and the record is in FILE")
    _subject(run)
    run.add_argument("--out", type=Path, required=True, metavar="FILE", help="where the admission record goes")
    run.add_argument("--ledger", type=Path, metavar="FILE", help="the ledger of replays (OUT.ledger)")
    run.add_argument("--change", default="", metavar="ID", help="whose budget: the pull request (head's hash)")
    run.add_argument("--engine", default="", metavar="NAME", help="bubblewrap, dagger, or what policy says")
    run.add_argument("--key", type=Path, metavar="FILE", help="sign the record with this Ed25519 key")
    run.set_defaults(run=_run)

    admit = steps.add_parser("admit", help="compare a record with what is so now; exit 0 or 1, with one line")
    admit.add_argument("file", type=Path, metavar="FILE", help="the admission record")
    _subject(admit)
    admit.add_argument("--ledger", type=Path, metavar="FILE", help="the ledger of replays (FILE.ledger)")
    admit.set_defaults(run=_admit)

    show = steps.add_parser("show", help="print a record and its replays")
    show.add_argument("file", type=Path, metavar="FILE", help="the admission record")
    show.set_defaults(run=_show)


def _subject(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repo", type=Path, default=Path("."), metavar="DIR", help="the repository (this folder)")
    parser.add_argument("--base", default="", metavar="REV", help="the target's tip (the remote's default branch, else main)")
    parser.add_argument("--head", default="", metavar="REV", help="the candidate commit (HEAD)")
    parser.add_argument(
        "--images", type=Path, metavar="DIR", help="archives of pinned images ($PROBATUM_IMAGES, else the cache)"
    )


def _run(args: argparse.Namespace) -> int:
    from ..errors import Exit
    from ..host import replay
    from ..report.terminal import plain

    _images(args)
    order = replay.Order(
        repo=args.repo,
        base=args.base,
        head=args.head,
        out=args.out,
        ledger=args.ledger,
        change=args.change,
        engine=args.engine,
        key=args.key,
    )
    body, digest = replay.run(order, lambda line: print(plain(line), file=sys.stderr, flush=True))
    passed = body.result == "pass" and body.cache == "cold"
    word = "REPLAY_PASSED" if passed else "REPLAY_FAILED"
    why = "" if passed else f", {body.reason}"
    print(plain(f"{word}: {body.cache}, {body.tests} tests, seed {body.seed}, tree {body.tree_sha[:12]}, {digest[:19]}{why}"))
    return Exit.PASS if passed else Exit.BLOCK


def _admit(args: argparse.Namespace) -> int:
    from ..core.verdict import Verdict
    from ..errors import Exit
    from ..host import replay
    from ..report.terminal import plain

    _images(args)
    findings = replay.admit(args.file, args.repo, args.base, args.head, args.ledger)
    first = next((one for one in findings if one.verdict is not Verdict.PASS), None)
    shown = first or findings[0]
    remedy = f"; {shown.remedy}" if shown.remedy else ""
    print(plain(f"{shown.id}: {shown.reason}{remedy}"))
    return Exit.PASS if first is None else Exit.BLOCK


def _images(args: argparse.Namespace) -> None:
    if args.images is not None:
        os.environ["PROBATUM_IMAGES"] = str(args.images)


def _show(args: argparse.Namespace) -> int:
    import msgspec

    from ..core.replay_ledger import parse
    from ..errors import EvidenceCorrupt, Exit
    from ..host import replay
    from ..report.terminal import plain

    record, found = replay.shown(args.file)
    rows: dict[str, Any] = {
        "digest": found.digest,
        "attempt": record.attempt,
        "nonce": record.nonce,
        "engine": record.engine.name,
    }
    rows |= msgspec.to_builtins(record.body)
    measured = rows.pop("measured")
    for name, value in [*rows.items(), *((f"measured.{name}", value) for name, value in measured.items())]:
        print(plain(f"{name:<26} {_flat(value)}"))
    try:
        lines = parse((found.ledger or "").encode(), f"{found.name}.ledger")
    except EvidenceCorrupt as error:
        print(plain(error.line()))
        return Exit.CORRUPT
    for line in lines:
        record_ = f" {digest_[:19]}" if (digest_ := line.record) else ""
        why = f" ({line.why})" if line.why else ""
        print(plain(f"ledger {line.seq:<3} {line.at} {line.change[:20]} attempt {line.attempt} {line.what}{record_}{why}"))
    return Exit.PASS


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items())
    return ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
