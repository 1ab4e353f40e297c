"""``probatum seal``: shows what is new, changed or gone since the last seal, and pins HEAD's oracle in the work tree."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.policy import Policy
    from ..core.seal import Pin, Seal
    from ..core.stage import Tree
    from ..host.objects import Objects
    from ..host.workspace import Workspace


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("seal", help="pin the blobs of the sealed tests; shows what is new first")
    parser.add_argument("--repo", type=Path, default=Path("."), metavar="DIR", help="the repository (.)")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 when the seal is not HEAD's oracle")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0: sealed, or --check found the seal current. 1: --check found a difference."""
    from ..core.policy import SEAL
    from ..core.seal import parse_seal, render
    from ..errors import Exit
    from ..host import workfile
    from ..host.git import cache_folder
    from ..host.workspace import Workspace

    with Workspace(args.repo, cache_folder()) as workspace:
        top = workspace.source
        policy, where = _policy(workspace, top)
        if policy.layout == "strict":
            return _strict(workspace, top, check=args.check)
        seal, left = pin_head(workspace, policy)
    data = workfile.read(top, SEAL)
    old, problems = parse_seal(data) if data is not None else (None, [])
    if where:
        print(where)
    for line in [*problems, *left]:
        print(f"left out  {line}" if line in left else line, file=sys.stderr)
    differences = list(compare(old, seal))
    for line in differences:
        print(line)
    tests = sum(len(pin.tests or ()) for pin in seal.paths.values())
    count = f"{len(seal.paths)} files, {len(seal.modules)} test modules, {tests} tests"
    if args.check:
        current = old is not None and not differences and not problems
        print(f"{SEAL}: {'is current' if current else 'is not what HEAD holds; run probatum seal'}: {count}")
        return Exit.PASS if current else Exit.BLOCK
    workfile.write(top, SEAL, render(seal), replace=True)
    print(f"wrote {SEAL}: {count}. Read it and commit it as a change of its own.")
    return Exit.PASS


def head_tree(workspace: Workspace) -> tuple[Objects, Tree]:
    """HEAD's tree, brought over through git alone, and the reader of its blobs."""
    (head,) = workspace.commits(["HEAD"])
    objects = workspace.objects
    return objects, objects.tree(objects.commit(head).tree)


def pin_head(workspace: Workspace, policy: Policy) -> tuple[Seal, list[str]]:
    """The seal of HEAD's tree under ``policy``, and what cannot be sealed. Raises PolicyError where nothing is claimed."""
    import datetime

    from ..core.policy import FILE
    from ..core.seal import make_seal
    from ..errors import PolicyError

    objects, tree = head_tree(workspace)
    seal, left = make_seal(tree, policy, objects.read, datetime.datetime.now(datetime.UTC).date().isoformat())
    if not seal.modules:
        raise PolicyError(
            FILE, f"paths.sealed {list(policy.paths.sealed)} claims no test module of HEAD", "name your tests there"
        )
    return seal, left


def compare(old: Seal | None, new: Seal) -> Iterator[str]:
    """One line a path that a human is asked to seal: what it is, and which tests come, go or stay."""
    from ..core.canonical import escape

    before = old.paths if old is not None else {}
    for path in sorted({*before, *new.paths}):
        was, now = before.get(path), new.paths.get(path)
        if was == now:
            continue
        if now is None:
            yield f"gone      {escape(path)}{_tests(was, None)}"
        elif was is None:
            yield f"new       {escape(path)}{_tests(None, now)}"
        else:
            yield f"changed   {escape(path)}{_tests(was, now)}"


def _tests(was: Pin | None, now: Pin | None) -> str:
    from ..errors import one_line

    before, after = (was.tests if was else None) or (), (now.tests if now else None) or ()
    if not was or not now:
        return f" ({len(before or after)} tests)" if before or after else ""
    moved = [f"+ {name}" for name in after if name not in before] + [f"- {name}" for name in before if name not in after]
    return one_line(f" ({', '.join(moved)})") if moved else ""


def _policy(workspace: Workspace, top: Path) -> tuple[Policy, str]:
    """HEAD's policy, else the one in the work tree that is not committed yet."""
    from ..core.policy import FILE, MANIFEST
    from ..host import workfile
    from ..host.drive import load
    from ..host.observe import read_policy

    objects, tree = head_tree(workspace)
    if FILE.encode() not in tree.files and MANIFEST.encode() not in tree.files:
        data = workfile.read(top, FILE)
        if data is not None:
            return load(data), f"{FILE} is not committed yet: the work tree's is used"
    return read_policy(tree, objects.read, load)[0], ""


def _strict(workspace: Workspace, top: Path, *, check: bool) -> int:
    """The strict layout's seal is its manifest: every test module below tests/sealed, byte-sorted, one a line."""
    from ..core.canonical import escape
    from ..core.policy import MANIFEST
    from ..errors import Exit, PolicyError
    from ..host import workfile
    from ..host.observe import is_sealed_module

    _, tree = head_tree(workspace)
    modules = sorted(path for path in tree.files if is_sealed_module(path))
    if not modules:
        raise PolicyError(MANIFEST, "tests/sealed holds no test module at HEAD", "commit the tests first")
    data = b"".join(path + b"\n" for path in modules)
    old = workfile.read(top, MANIFEST) or b""
    for path in sorted({*old.splitlines(), *modules}):
        if path not in modules or path not in old.splitlines():
            print(f"{'new      ' if path in modules else 'gone     '} {escape(path)}")
    if check:
        print(f"{MANIFEST}: {'is current' if old == data else 'is not what HEAD holds; run probatum seal'}")
        return Exit.PASS if old == data else Exit.BLOCK
    workfile.write(top, MANIFEST, data, replace=True)
    print(f"wrote {MANIFEST}: {len(modules)} test modules. Read it and commit it as a change of its own.")
    return Exit.PASS
