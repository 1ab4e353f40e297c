"""``probatum lease``: digests, and the ledger of expiring permissions (digest, add, renew, list, check)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.leases import Book, Ledger, Row
    from .lease_files import Sealed

WEEK = 7


def add_parser(subparsers: Any) -> None:
    """The command's arguments."""
    parser = subparsers.add_parser("lease", help="digest, add, renew, list and check leases for skipped tests")
    commands = parser.add_subparsers(metavar="ACTION", required=True)

    digest = commands.add_parser("digest", help="print a sealed test's digests as JSON; executes nothing")
    _where(digest, rev=True)
    _test(digest)
    digest.add_argument("--field", choices=("source_digest", "bytecode_hash"), help="print this one bare value")
    digest.set_defaults(run=run_digest)

    add = commands.add_parser("add", help="write a lease into ci/flake_leases.json of the work tree")
    _where(add)
    _test(add)
    add.add_argument("--owner", required=True, help="who answers for it")
    add.add_argument("--reason", required=True, help="why it is skipped")
    add.add_argument(
        "--signature", default="", metavar="'TYPE: MESSAGE'", help="how it fails: the type and a prefix of the message"
    )
    add.add_argument("--condition", default="", metavar="TEXT", help="a standing row instead, for this condition as written")
    add.add_argument("--marker", default="", metavar="KIND", help="bind the lease to this marker")
    _days(add)
    add.set_defaults(run=run_add)

    renew = commands.add_parser("renew", help="bind a row to the test as it is now, and give it a new day")
    _where(renew)
    _test(renew)
    renew.add_argument("--signature", default="", metavar="'TYPE: MESSAGE'", help="how it fails now")
    _days(renew)
    renew.set_defaults(run=run_renew)

    rows = commands.add_parser("list", help="show every row; warns a week before one expires")
    _where(rows, rev=True)
    rows.set_defaults(run=run_list)

    check = commands.add_parser(
        "check", help="check every row and every visible skip; runs nothing; exit 1 when one is not right"
    )
    _where(check, rev=True)
    check.set_defaults(run=run_check)


def _where(parser: argparse.ArgumentParser, *, rev: bool = False) -> None:
    parser.add_argument("--repo", type=Path, default=Path(), metavar="DIR", help="the repository or a plain folder (.)")
    if rev:
        parser.add_argument("--rev", default="", metavar="REV", help="read this revision's blobs; without it, plain files")


def _test(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("test", metavar="PATH::[CLASS::]NAME", help="a node id; PATH alone for a module that skips as a whole")


def _days(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--days", type=int, default=30, metavar="N", help="days until it expires (30)")


def run_digest(args: argparse.Namespace) -> int:
    """Prints ``{"bytecode_hash": …, "python": …, "source_digest": …, "test": …}``, or one bare value."""
    import json

    from ..core.bytecode import PYTHON, bytecode_hash
    from ..core.closure import split_id
    from .lease_files import sealed

    path, name = split_id(args.test)
    with sealed(args.repo, args.rev) as what:
        raw = _path(what, path)
        found = {"source_digest": what.closures().digest(raw, name)} if args.field != "bytecode_hash" else {}
        if args.field != "source_digest":
            found["bytecode_hash"] = bytecode_hash(what.files[raw], raw, name)
    _say_moved(what)
    if args.field:
        print(found[args.field])
    else:
        print(json.dumps({"test": args.test, "python": PYTHON, **found}, indent=2, sort_keys=True, ensure_ascii=False))
    return 0


def run_add(args: argparse.Namespace) -> int:
    """Appends a lease, or a standing row, and writes the ledger whole or not at all."""
    import msgspec

    from ..core.leases import DAY, Lease, Standing
    from ..errors import UsageError
    from .lease_files import plain

    what, now = plain(args.repo), int(time.time())
    ledger = _ledger(what)
    until = now + _within(args.days, what) * DAY
    digest = _digest(what, args.test)
    if bool(args.condition) == bool(args.signature):
        raise UsageError("lease add", "needs --signature, or --condition for a standing row", "see probatum lease add --help")
    common: dict[str, Any] = {"nodeid": args.test, "owner": args.owner, "reason": args.reason, "source_digest": digest}
    if args.condition:
        standing = Standing(**common, condition=args.condition, review_at=until)
        changed = msgspec.structs.replace(ledger, standing=(*ledger.standing, standing))
    else:
        lease = Lease(
            **common,
            failure_signature=args.signature,
            expires_at=until,
            first_seen=now,
            marker=args.marker or None,
        )
        changed = msgspec.structs.replace(ledger, leases=(*ledger.leases, lease))
    _write(args.repo, what, changed, now)
    print(f"leased {args.test} for {args.days} days; commit ci/flake_leases.json as a change of its own")
    return 0


def run_renew(args: argparse.Namespace) -> int:
    """Rebinds the rows of one test: its digests as they are now, and a new day. Converts rows with only a bytecode_hash."""
    import msgspec

    from ..core.bytecode import PYTHON, bytecode_hash
    from ..core.closure import split_id
    from ..core.leases import DAY, Lease
    from ..errors import UsageError
    from .lease_files import plain

    what, now = plain(args.repo), int(time.time())
    ledger = _ledger(what)
    until = now + _within(args.days, what) * DAY
    book = _book(what, ledger, now)
    path, name = split_id(args.test)
    digest = _digest(what, args.test)
    touched = 0

    def renewed(row: Any) -> Any:
        nonlocal touched
        named = book.stem(row) or row.name
        if named != "::".join(filter(None, (path, name))) or (book.param(row) and row.name != args.test and "[" in args.test):
            return row
        touched += 1
        fields: dict[str, Any] = {"source_digest": digest, "review_at" if hasattr(row, "review_at") else "expires_at": until}
        if isinstance(row, Lease) and row.bytecode_hash is not None:
            raw = _path(what, path)
            fields |= {"bytecode_hash": bytecode_hash(what.files[raw], raw, name), "python": PYTHON}
        if isinstance(row, Lease) and args.signature:
            fields["failure_signature"] = args.signature
        return msgspec.structs.replace(row, **fields)

    changed = msgspec.structs.replace(
        ledger,
        leases=tuple(map(renewed, ledger.leases)),
        standing=tuple(map(renewed, ledger.standing)),
        expected_red=tuple(map(renewed, ledger.expected_red)),
    )
    if not touched:
        raise UsageError("ci/flake_leases.json", f"has no row for {args.test}", "probatum lease add writes one")
    _write(args.repo, what, changed, now)
    print(f"renewed {touched} row{'s' * (touched > 1)} of {args.test}: {args.days} days from now")
    return 0


def run_list(args: argparse.Namespace) -> int:
    """One line a row, the next to expire first; a warning on stderr for each that ends within a week."""
    from ..core.leases import DAY, ago, sections
    from .lease_files import sealed

    now = int(time.time())
    with sealed(args.repo, args.rev) as what:
        ledger = _ledger(what)
    rows = [(_until(row), section, row) for section, found in sections(ledger) for row in found]
    for until, section, row in sorted(rows, key=lambda found: (found[0], found[1], found[2].name)):
        left = f"{ago(until - now)} left" if until > now else f"expired {ago(now - until)} ago"
        print(f"{section}  {row.name}  {left}  {row.owner}  {row.reason}")
        if until - now <= WEEK * DAY:
            print(f"warning: {row.name}: {left}; mend it, or: probatum lease renew", file=sys.stderr)
    if not rows:
        print("the ledger is empty")
    return 0


def run_check(args: argparse.Namespace) -> int:
    """What is wrong with the ledger, and visible skips without a row. Skips at run time are for the gate."""
    from ..core.canonical import unescape
    from ..core.leases import Malformed, sections
    from ..core.modules import Unresolved
    from ..core.skips import scan
    from .lease_files import sealed

    now, wrong = int(time.time()), 0
    with sealed(args.repo, args.rev) as what:
        try:
            ledger = _ledger(what)
        except Malformed as error:
            print(f"flake_lease/malformed  {error.line()}")
            return 1
        book = _book(what, ledger, now)
        named: list[Row] = [*ledger.leases, *ledger.standing]
        for section, rows in sections(ledger):
            for row in rows:
                bad = ("expired", "expired") if section == "quarantine" and now >= row.expires else None
                bad = book.wrong(row, rows) if section != "quarantine" else bad
                if bad is not None:
                    wrong += 1
                    print(f"flake_lease/{bad[0]}  {row.name}: {bad[1]}")
        library = what.closures().raw
        for path in what.modules:
            try:
                skips = scan(library, unescape(path))
            except Unresolved as error:
                print(f"flake_lease/unread  {error.line()}")
                continue
            for skip in skips:
                leased = any(skip.speaks_of(book.stem(row)) for row in named)
                if skip.marker and not skip.conditional and skip.scope in ("test", "class", "module") and not leased:
                    wrong += 1
                    print(f"flake_lease/no-lease  {skip.stem}: line {skip.line}: {skip.text}")
    _say_moved(what)
    if not wrong:
        print(f"nothing wrong; rows: {sum(len(rows) for _, rows in sections(ledger))}")
    return 1 if wrong else 0


def _path(what: Sealed, path: str) -> bytes:
    """A path as typed or as escaped in a record."""
    import os

    from ..core.canonical import unescape

    raw = os.fsencode(path)
    return raw if raw in what.files else unescape(path)


def _digest(what: Sealed, test: str) -> str:
    from ..core.closure import split_id

    path, name = split_id(test)
    return what.closures().digest(_path(what, path), name)


def _ledger(what: Sealed) -> Ledger:
    from ..core.leases import EMPTY, parse

    return EMPTY if what.ledger is None else parse(what.ledger)


def _max_days(what: Sealed) -> int:
    import msgspec

    from ..checks.flake_lease import Options

    given = what.policy.checks.get("flake_lease", {})
    return Options().max_days if given.get("off") is True else msgspec.convert(given, Options).max_days


def _book(what: Sealed, ledger: Ledger, now: int) -> Book:
    from ..core.leases import Book
    from ..core.modules import Unresolved

    closures = what.closures()

    def digest(stem: str) -> str:
        from ..core.closure import split_id

        path, name = split_id(stem)
        try:
            return closures.digest(_path(what, path), name)
        except Unresolved:
            return ""

    return Book(ledger, what.modules, digest, now, _max_days(what))


def _within(days: int, what: Sealed) -> int:
    from ..errors import UsageError

    most = _max_days(what)
    if not 1 <= days <= most:
        raise UsageError(f"--days {days}", f"is not within 1 and {most}", "the policy's max_days is the most")
    return days


def _until(row: Any) -> int:
    for field in ("expires_at", "review_at", "expires"):
        if hasattr(row, field):
            return int(getattr(row, field))
    raise LookupError(type(row).__name__)


def _write(top: Path, what: Sealed, ledger: Ledger, now: int) -> None:
    """Only a ledger that the gate would accept row by row is written."""
    from ..core.leases import Malformed, dump
    from ..core.policy import LEDGER
    from ..errors import UsageError
    from ..host import workfile

    try:
        data = dump(ledger)
    except Malformed as error:
        raise UsageError("lease", error.what, "nothing was written") from None
    book = _book(what, ledger, now)
    wrong = [(row, book.wrong(row, ledger.leases)) for row in ledger.leases]
    for row, bad in [*wrong, *((row, book.wrong(row, ledger.standing)) for row in ledger.standing)]:
        if bad is not None and bad[0] in ("duplicate", "too-long"):
            raise UsageError("lease", f"{row.name}: {bad[1]}", "nothing was written; renew the row that is there")
    workfile.write(top, LEDGER, data, replace=True)
    _say_moved(what)


def _say_moved(what: Sealed) -> None:
    for path in sorted(set(what.moved)):
        print(f"warning: {path} is not what ci/seal.lock pins; the gate reads the pinned blob", file=sys.stderr)
