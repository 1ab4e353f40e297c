"""``probatum init``: policy, seal or manifest, ledger and workflow for a repository; nothing is moved or overwritten."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.closure import Closures
    from ..core.layout import Layout
    from ..core.policy import Policy
    from ..core.stage import Tree
    from ..host.objects import Objects
    from ..host.workspace import Workspace
    from .init_ledger import Who

WORKFLOW = ".github/workflows/probatum.yml"


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("init", help="set a repository up: policy, seal or manifest, ledger")
    parser.add_argument("--repo", type=Path, default=Path("."), metavar="DIR", help="the repository (.)")
    parser.add_argument("--python", default="", metavar="X.Y", help="the interpreter of the tests (the gate's own)")
    parser.add_argument("--owner", default="", metavar="NAME", help="who answers for leases (git's user.email)")
    parser.add_argument("--days", type=int, default=90, metavar="N", help="until the first leases expire, 90 at most (90)")
    parser.add_argument("--no-workflow", action="store_true", help="write no CI workflow")
    parser.add_argument("--no-try", action="store_true", help="do not try the result on a throw-away commit")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 when everything is there and the trial came through, 1 when something is missing; what it is was printed."""
    from ..core.layout import detect
    from ..core.policy import FILE, LEDGER, MANIFEST, SEAL
    from ..core.seal import render, rules_of
    from ..errors import UsageError
    from ..host import workfile
    from ..host.drive import load
    from ..host.env_python import own
    from ..host.git import cache_folder
    from ..host.workspace import Workspace
    from . import init_files
    from .seal import head_tree, pin_head

    if not 1 <= args.days <= 90:
        raise UsageError("--days", f"{args.days} is not from 1 to 90", "leases are short on purpose")
    with Workspace(args.repo, cache_folder()) as workspace:
        top = workspace.source
        if not (top / ".git").exists():
            raise UsageError(str(top), "is a bare repository", "run init in a clone with a work tree")
        objects, tree = head_tree(workspace)
        layout = detect(tree.files, rules_of(tree, objects.read))
        if layout.kind == "none":
            raise UsageError(str(top), "HEAD holds no test module", "commit tests first; pytest's names: test_*.py, *_test.py")
        writer = _Writer(top)
        text = init_files.policy(layout, args.python or own().minor, _lock(tree))
        kept = workfile.read(top, FILE)
        policy = load(kept if kept is not None else text.encode())
        writer.write(FILE, text.encode(), _says(policy, layout))
        if policy.layout == "strict":
            modules = sorted(path for path in tree.files if _strict_module(path))
            writer.write(MANIFEST, b"".join(path + b"\n" for path in modules), f"{len(modules)} sealed test modules")
        else:
            seal, left = pin_head(workspace, policy)
            tests = sum(len(pin.tests or ()) for pin in seal.paths.values())
            writer.write(SEAL, render(seal), f"{len(seal.paths)} files pinned, {len(seal.modules)} test modules, {tests} tests")
            for line in left:
                print(f"not sealed: {line}")
        writer.write(LEDGER, init_files.LEDGER.encode(), "no lease yet")
        if not args.no_workflow and _github(top, tree):
            writer.write(WORKFLOW, init_files.WORKFLOW.encode(), "runs from the target branch, a pinned version")
        for line in _advice(policy, tree, objects):
            print(line)
        missing = [] if args.no_try else _try(args, workspace, writer, policy)
    for line in missing:
        print(line)
    print(f"next: read what was written, commit it to the target branch ({', '.join(writer.written) or 'nothing new'})")
    return 1 if missing else 0


class _Writer:
    """Writes what is not there, and says one line about each file."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.written: list[str] = []
        self.files: dict[str, bytes] = {}

    def write(self, name: str, data: bytes, what: str) -> None:
        from ..errors import one_line
        from ..host import workfile

        if workfile.write(self.top, name, data, replace=False):
            self.written.append(name)
            print(one_line(f"wrote {name}: {what}"))
        else:
            print(f"kept  {name}: it is there already")
        self.files[name] = workfile.read(self.top, name) or b""


def _says(policy: Policy, layout: Layout) -> str:
    if layout.kind == "strict":
        return "strict layout, as it is there"
    return f"in place; product {' '.join(policy.paths.product)}; sealed {' '.join(policy.paths.sealed)}"


def _lock(tree: Tree) -> str:
    from ..host.env_sources import LOCKS

    return next((name for name in LOCKS if name.encode() in tree.files), "")


def _strict_module(path: bytes) -> bool:
    from ..host.observe import is_sealed_module

    return is_sealed_module(path)


def _github(top: Path, tree: Tree) -> bool:
    """A workflow only where workflows are read: a .github folder, or no other CI system's file."""
    others = (b".gitlab-ci.yml", b"azure-pipelines.yml", b"bitbucket-pipelines.yml", b"Jenkinsfile", b".circleci/config.yml")
    return any(path.startswith(b".github/") for path in tree.files) or not any(path in tree.files for path in others)


def _advice(policy: Policy, tree: Tree, objects: Objects) -> Iterator[str]:
    """What init does not write itself."""
    from . import init_files

    if b"noxfile.py" in tree.files:
        yield "noxfile.py is yours; a session for it:\n" + "".join(f"    {line}\n" for line in init_files.NOX.splitlines())
    if policy.layout == "in-place" and not any(path.startswith(b"tests/") for path in tree.files):
        yield "new tests of a patch are proposed until you seal them: probatum seal"


def _try(args: argparse.Namespace, workspace: Workspace, writer: _Writer, policy: Policy) -> list[str]:
    """Tries an honest patch; where skips need rows and the ledger is init's own, writes them and tries again.

    The second trial forces leased tests to run, so that a lease names how its test really fails.
    """
    from ..core.leases import dump
    from ..core.policy import LEDGER
    from ..host import workfile
    from .init_ledger import rows
    from .init_try import trial

    who = _who(args, writer.top, policy)
    closures = _closures(workspace, policy)
    for attempt in (1, 2, 3):
        missing, ledger = trial(workspace, writer.files, policy, lambda out: rows(out, closures, who))
        if not missing:
            print("tried: a comment in a product file would merge")
        if ledger is None or LEDGER not in writer.written or attempt == 3:
            break
        data = dump(ledger)
        if data == writer.files[LEDGER]:
            break
        workfile.write(writer.top, LEDGER, data, replace=True)
        writer.files[LEDGER] = data
        if attempt == 1:
            count = len(ledger.leases) + len(ledger.standing)
            print(f"wrote {LEDGER}: {count} rows for skips that are there, for {args.days} days; read each one")
    return missing


def _who(args: argparse.Namespace, top: Path, policy: Policy) -> Who:
    """Who answers for the first rows: the flag, git's user.email, or the answer of whoever sits at the terminal."""
    import subprocess
    import sys
    import time

    from .init_ledger import DAY, Who

    owner = args.owner
    if not owner:
        told = subprocess.run(
            ["git", "config", "user.email"], cwd=top, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        owner = told.stdout.strip() or "nobody yet: name an owner"
        if sys.stdin.isatty():
            owner = input(f"who answers for leases of skipped tests [{owner}]: ").strip() or owner
    days = min(args.days, int(policy.checks.get("flake_lease", {}).get("max_days", 90)))
    now = int(time.time())
    return Who(owner, now, now + days * DAY)


def _closures(workspace: Workspace, policy: Policy) -> Closures:
    """Digests over HEAD's sealed files."""
    from ..core.closure import Closures
    from ..core.globs import compiled, text
    from ..core.lease_plan import sealed_files
    from ..core.seal import sealed_tree
    from ..core.stage import Tree
    from .seal import head_tree, pin_head

    objects, tree = head_tree(workspace)
    if policy.layout == "strict":
        claimed = compiled(policy.paths.sealed)
        sealed = Tree({path: blob for path, blob in tree.files.items() if claimed.fullmatch(text(path))})
    else:
        sealed = sealed_tree(pin_head(workspace, policy)[0])
    return Closures(sealed_files(sealed, objects.read), tuple(root.encode() for root in policy.pythonpath))
