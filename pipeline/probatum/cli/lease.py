"""``probatum lease``: digests, and the ledger of expiring permissions (digest, add, renew, list, check)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """The command's arguments."""
    parser = subparsers.add_parser("lease", help="digest, add, renew, list and check leases for skipped tests")
    commands = parser.add_subparsers(metavar="ACTION", required=True)
    digest = commands.add_parser("digest", help="print a sealed test's digests as JSON; executes nothing")
    _where(digest)
    digest.add_argument(
        "test", metavar="PATH::[CLASS::]NAME", help="a node id; [parameters] are left out; PATH alone: the module"
    )
    digest.add_argument("--field", choices=("source_digest", "bytecode_hash"), help="print this one bare value")
    digest.set_defaults(run=run_digest)


def _where(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repo", type=Path, default=Path(), metavar="DIR", help="the repository or a plain folder (.)")
    parser.add_argument("--rev", default="", metavar="REV", help="read this revision's blobs; without it, plain files")


def run_digest(args: argparse.Namespace) -> int:
    """Prints ``{"bytecode_hash": …, "python": …, "source_digest": …, "test": …}``."""
    import json
    import os

    from ..core.bytecode import PYTHON, bytecode_hash
    from ..core.closure import split_id
    from .lease_files import closures_of

    path, name = split_id(args.test)
    raw = os.fsencode(path)
    closures, files = closures_of(args.repo)
    found = {"source_digest": closures.digest(raw, name)}
    if args.field != "source_digest":
        found["bytecode_hash"] = bytecode_hash(files[raw], raw, name)
    if args.field:
        print(found[args.field])
    else:
        print(json.dumps({"test": args.test, "python": PYTHON, **found}, indent=2, sort_keys=True))
    return 0
