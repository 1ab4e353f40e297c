"""``probatum shards``: plan a suite once, run its parts anywhere, and prove that their union is the plan."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.shards import ShardPlan

KINDS = ("github", "gitlab", "buildkite")


def add_parser(commands: Any) -> None:
    """The command's arguments. Without a step it plans, runs and gates on this machine."""
    parser = commands.add_parser("shards", help="split a suite, run the parts, prove that their union is the plan")
    _subject(parser)
    _split(parser, required=False)
    _running(parser)
    parser.add_argument("--out", type=Path, default=Path("shards_out"), metavar="DIR", help="plan and manifests (shards_out)")
    parser.add_argument("--index", type=int, metavar="I", help="run this one shard of the plan in --out")
    parser.add_argument("--matrix", nargs="?", const="github", choices=KINDS, help="print a matrix: github, gitlab, buildkite")
    parser.set_defaults(run=_door)
    steps = parser.add_subparsers(metavar="STEP")

    plan = steps.add_parser("plan", help="collect once and split: DIR/plan.json")
    _subject(plan)
    _split(plan, required=True)
    plan.add_argument("--out", type=Path, required=True, metavar="DIR", help="where plan.json goes")
    plan.add_argument("--engine", default="", metavar="NAME", help="bubblewrap, or what policy says")
    plan.add_argument("--key", type=Path, metavar="FILE", help="sign with this Ed25519 key")
    plan.set_defaults(run=_plan)

    run = steps.add_parser("run", help="run all shards of a plan, or one: DIR/shard-I.json")
    run.add_argument("--plan", type=Path, required=True, metavar="FILE", help="the plan")
    run.add_argument("--index", type=int, metavar="I", help="only this shard, from 0 (else TEST_SHARD_INDEX, else all)")
    run.add_argument("--repo", type=Path, default=Path("."), metavar="DIR", help="the repository (this folder)")
    run.add_argument("--out", type=Path, metavar="DIR", help="where manifests go (the plan's folder)")
    _running(run)
    run.set_defaults(run=_run)

    gate = steps.add_parser("gate", help="join manifests from anywhere: one line a reason, exit 0 or 1")
    gate.add_argument("folder", type=Path, metavar="DIR", help="plan.json and manifests, in it or one folder below")
    gate.add_argument("--repo", type=Path, metavar="DIR", help="compare with this repository's head and base, read its ledger")
    gate.add_argument("--base", default="", metavar="REV", help="the target's tip (the remote's default branch, else main)")
    gate.add_argument("--head", default="", metavar="REV", help="the reviewed head (HEAD)")
    gate.add_argument("--junit", type=Path, metavar="FILE", help="JUnit of the whole run (DIR/junit.xml)")
    gate.add_argument("--update-durations", type=Path, metavar="FILE", help="after a green run, bring this file up to date")
    gate.set_defaults(run=_gate)


def _subject(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repo", type=Path, default=Path("."), metavar="DIR", help="the repository (this folder)")
    parser.add_argument("--base", default="", metavar="REV", help="the target's tip (the remote's default branch, else main)")
    parser.add_argument("--head", default="", metavar="REV", help="the head under review (HEAD)")


def _split(parser: argparse.ArgumentParser, required: bool) -> None:
    parser.add_argument("--shards", type=_positive, required=required, metavar="N", help="how many parts")
    parser.add_argument(
        "--suite", choices=("head", "sealed"), default="head", help="the merged tree's own, or the oracle (head)"
    )
    parser.add_argument("--keep-together", choices=("file", "class"), default="", help="never part the tests of one")
    parser.add_argument("--allow-empty", action="store_true", help="declare shards empty where there are too few tests")
    parser.add_argument("--durations", type=Path, metavar="FILE", help="recorded durations (ci/durations.json at base)")


def _running(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--capacity", type=_positive, default=0, metavar="N", help="shards at once (one a processor)")
    parser.add_argument(
        "--attempt", type=_positive, metavar="N", help="which attempt this is (what the CI system says, else 1)"
    )
    parser.add_argument("--bazel-env", action="store_true", help="show the tests Bazel's variables for their shard")
    parser.add_argument("--engine", default="", metavar="NAME", help="bubblewrap, or what policy says")
    parser.add_argument("--key", type=Path, metavar="FILE", help="sign with this Ed25519 key")


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 100_000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1")
    return int(text)


def _door(args: argparse.Namespace) -> int:
    """Plan, run and gate here; or one of them, as ``nox -s shards -- --index I`` and ``-- --matrix`` ask."""
    from ..errors import Exit
    from ..host.shard_files import PLAN

    args.shards = args.shards or os.cpu_count() or 1
    if args.matrix:
        from ..report.shards import matrix

        print(matrix(args.matrix, args.shards))
        return Exit.PASS
    args.plan = args.out / PLAN
    if args.index is not None:
        return _run(args)
    code = _plan(args)
    if code:
        return code
    code = _run(args)
    if code == Exit.ENGINE:
        return code
    args.folder, args.junit, args.update_durations = args.out, None, None
    return _gate(args)


def _plan(args: argparse.Namespace) -> int:
    """Exit 0 and DIR/plan.json, or 1 with one line a reason why the suite cannot be split."""
    from ..core import canonical
    from ..errors import Exit
    from ..host import shards
    from ..host.shard_files import PLAN, clear, write
    from ..report.shards import Lines
    from ..report.terminal import plain

    clear(args.out)
    order = shards.Order(repo=args.repo, base=args.base, head=args.head, suite=args.suite, engine=args.engine)
    wanted = shards.Wanted(
        shards=args.shards, keep_together=args.keep_together, allow_empty=args.allow_empty, durations=args.durations
    )
    try:
        with shards.opened(order, Lines()) as opened:
            plan = shards.plan(opened, wanted)
    except shards.NoPlan as error:
        for reason in error.reasons:
            print(plain(f"shards/no-plan: {reason}"))
        print("SHARDS_BLOCKED: no plan")
        return Exit.BLOCK
    write(args.out, PLAN, canonical.encode(plan), args.key)
    print(_summary(plan))
    return Exit.PASS


def _summary(plan: ShardPlan) -> str:
    known, total = len(plan.durations_us), len(plan.node_ids)
    longest, whole = max(plan.loads_us) / 1e6, sum(plan.loads_us) / 1e6
    took = (
        f", {known} of {total} recorded, longest shard {longest:.1f} s of {whole:.1f} s" if known else ", nothing recorded yet"
    )
    return f"SHARDS_PLANNED: {total} node ids in {plan.shards} shards{took}, commit {plan.commit[:12]}"


def _run(args: argparse.Namespace) -> int:
    """Exit 0 when every shard asked for passed, 1 when one did not, 5 when one has no manifest."""
    from ..errors import Exit
    from ..host import shards
    from ..host.shard_files import earlier, made, read_plan
    from ..report.shards import Lines

    plan = read_plan(args.plan)
    _check(plan, args.plan)
    out = args.out or args.plan.parent
    made(out)
    index = _bazel(plan) if args.index is None else args.index
    indexes = _indexes(plan, index)
    order = shards.Order(
        repo=args.repo, base=plan.base, head=plan.commit, suite=plan.suite, engine=args.engine, capacity=args.capacity
    )
    watcher = Lines(plan)
    with shards.opened(order, watcher) as opened:
        job = shards.Run(
            plan=plan,
            indexes=indexes,
            out=out,
            attempt=args.attempt or _attempt(),
            earlier=earlier(out, plan),
            key=args.key,
            env={one: _bazel_env(plan, one) for one in indexes} if args.bazel_env else {},
        )
        done, lost = shards.run(opened, job, watcher)
    if lost:
        return Exit.ENGINE
    return Exit.PASS if all(manifest.status == "passed" for manifest in done.values()) else Exit.BLOCK


def _check(plan: ShardPlan, path: Path) -> None:
    from ..core.cover import plan_problems
    from ..errors import EvidenceCorrupt

    for why in plan_problems(plan):
        raise EvidenceCorrupt(str(path), why.removeprefix("plan.json: "), "make a new plan")


def _indexes(plan: ShardPlan, index: int | None) -> tuple[int, ...]:
    from ..errors import UsageError

    if index is None:
        return tuple(range(plan.shards))
    if not 0 <= index < plan.shards:
        raise UsageError(f"--index {index}", f"the plan has the shards 0 to {plan.shards - 1}", "give one of them")
    return (index,)


def _bazel(plan: ShardPlan) -> int | None:
    """The shard that Bazel's test-sharding protocol asks for; touching its file says that we know the protocol."""
    from ..errors import UsageError

    status, index, total = (os.environ.get(f"TEST_{name}", "") for name in ("SHARD_STATUS_FILE", "SHARD_INDEX", "TOTAL_SHARDS"))
    if status:
        try:
            Path(status).touch()
        except OSError as error:
            raise UsageError(f"TEST_SHARD_STATUS_FILE={status}", error.strerror or str(error), "") from None
    if not index:
        return None
    if not index.isascii() or not index.isdigit() or (total and total != str(plan.shards)):
        here = f"TEST_SHARD_INDEX={index} TEST_TOTAL_SHARDS={total}"
        raise UsageError(here, f"the plan has {plan.shards} shards", "make the plan with as many shards as the runner has")
    return int(index)


def _bazel_env(plan: ShardPlan, index: int) -> tuple[tuple[str, str], ...]:
    values = {"SHARD_INDEX": str(index), "TOTAL_SHARDS": str(plan.shards), "SHARD_STATUS_FILE": "/tmp/shard.status"}
    return tuple((f"TEST_{name}", value) for name, value in values.items())


def _attempt() -> int:
    """What the CI system says: a job that is run again is another attempt."""
    again = os.environ.get("BUILDKITE_RETRY_COUNT", "")
    tried = os.environ.get("GITHUB_RUN_ATTEMPT", "")
    return max(1, int(tried) if tried.isdigit() else 1, int(again) + 1 if again.isdigit() else 1)


def _gate(args: argparse.Namespace) -> int:
    """Exit 0 with one line that says what was covered, or 1 with one line a reason."""
    import time

    from ..core.cover import Reviewed, blocked_line, law, reasons, success_line
    from ..core.durations import dump_durations, updated
    from ..core.shards import live_rows
    from ..errors import Exit
    from ..host.shard_files import JUNIT, gather, look_at, reviewed_by_hash, write
    from ..host.shards import read_durations
    from ..report.shards import junit
    from ..report.terminal import plain

    seen = (
        look_at(args.repo or Path("."), args.base, args.head) if _needs_repo(args) else reviewed_by_hash(args.head, args.base)
    )
    gathered = gather(args.folder, seen.key)
    findings = [*gathered.findings, *seen.findings]
    plan = gathered.plan
    if plan is not None:
        rows = plan.quarantine if seen.quarantine is None else seen.quarantine
        reviewed = Reviewed(head=seen.head, base=seen.base, merged_tree=seen.merged_tree)
        broken = {finding.subject for finding in gathered.findings}
        findings += [
            finding
            for finding in law(plan, gathered.manifests, live_rows(rows, int(time.time())), reviewed)
            if not (finding.id == "shards/missing" and finding.subject in broken)
        ]
    target: Path = args.junit or args.folder / JUNIT
    write(target.parent, target.name, junit(plan, gathered.manifests, findings))
    for line in reasons(findings):
        print(plain(line))
    if plan is None or findings:
        print(plain(blocked_line(findings, plan)))
        return Exit.BLOCK
    if not seen.head:
        print("note: no reviewed head was given; compared with the plan's own commit only")
    print(success_line(plan))
    if args.update_durations:
        path: Path = args.update_durations
        new = updated(read_durations(path), plan, gathered.manifests)
        write(path.parent, path.name, dump_durations(new))
    return Exit.PASS


def _needs_repo(args: argparse.Namespace) -> bool:
    """A full hash can be compared without a repository."""
    names = [name for name in (args.head, args.base) if name]
    return args.repo is not None or any(len(name) not in (40, 64) or not _hex(name) for name in names)


def _hex(text: str) -> bool:
    return all(c in "0123456789abcdef" for c in text)
