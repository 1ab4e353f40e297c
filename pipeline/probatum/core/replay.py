"""What a cold replay leaves, what it measured, and when it admits: the law behind cold_replay and ``probatum replay admit``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from .check import Patch
from .evidence import Predicate, Subject, rfc3339
from .globs import compiled, text
from .policy import FILE, Policy
from .records import Body
from .replay_ledger import Asked, subject_of
from .stage import Outcome, Runtime, Stage, Tree
from .suite import PROBE, Job, scored_tree, suite_stage, whole_tree
from .testimony import parse

SCHEMA = "admission/v1"
TICK = 20_000
"""Microseconds: the kernel's clock tick, in which processes' starts are told, and a little more."""


class ColdLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="r", tag="cold"):
    """The first line of the report, written inside the sandbox before any code of the tree ran."""

    nonce: str
    first_us: int
    now_us: int
    spaces: dict[str, int]
    bytecode: int
    files: int
    mtime_us: int
    ctime_us: int
    python: str
    packages: dict[str, str]


class Measured(Body, frozen=True, kw_only=True):
    """How cold it was. Times are unix microseconds; ``caches`` is folder to entries before the installer started.

    ``started_us``: the replay. ``first_process_us``: the sandbox's, by the launcher; ``inside_us``: the same, by the first
    line from inside. ``spaces``: writable place to files in it. ``bytecode``: compiled files in the tree. ``files``: installed
    files and their oldest times. ``junk``: why the first line could not be read.
    """

    started_us: int
    caches: dict[str, int]
    launcher_nonce: str
    nonce: str = ""
    first_process_us: int = 0
    inside_us: int = 0
    spaces: dict[str, int] = {}
    bytecode: int = 0
    files: int = 0
    mtime_us: int = 0
    ctime_us: int = 0
    junk: str = ""


class Admission(Body, frozen=True, kw_only=True):
    """``admission/v1``. ``runner_image``: the image's digest, else the environment's. ``ledger``: the digest of the line

    with which this replay began. ``failed``: node ids, at most a hundred.
    """

    schema: str
    tree_sha: str
    head_tree: str
    base_sha: str
    head_sha: str
    runner_image: str
    environment: str
    hook_version: int
    suite: str
    cache: str
    seed: int
    toolchain: dict[str, str]
    result: str
    started_at: str
    change: str
    ledger: str
    tests: int
    failed: tuple[str, ...]
    reason: str
    measured: Measured


class Reality(Body, frozen=True, kw_only=True):
    """What an admission must match now. ``runner_image``: a digest, "" where neither policy nor runtime names an image.

    ``hook_changed``: what the diff does to the hook version, "" for nothing. ``alone``: it changes nothing but harness.
    """

    base: str
    head: str
    merged_tree: str
    runtime: Literal["gate", "environment", "image"]
    runner_image: str
    environment: str
    hook_version: int
    hook_changed: str
    suite: str
    alone: bool


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``hook_version``: raise it and every older record is void. ``suite``: the sealed tests over the merged production
    paths, or the merged tree's own. ``only``: globs of the test modules to replay, a hermetic subset (sealed only; none: all).
    ``may_fail``: node ids whose failure does not fail the replay. ``runner_image``: the image, by digest, that an engine of
    images must have run on.
    """

    hook_version: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1
    suite: Literal["sealed", "head"] = "sealed"
    only: tuple[str, ...] = ()
    may_fail: tuple[str, ...] = ()
    runner_image: Annotated[str, msgspec.Meta(pattern=r"^(|[^@\s]+@sha256:[0-9a-f]{64})$")] = ""


def options_of(policy: Policy) -> Options:
    """Base's options of cold_replay; the defaults where its policy does not name the check."""
    given = {key: item for key, item in policy.checks.get("cold_replay", {}).items() if key not in ("off", "because")}
    return msgspec.convert(given, Options)


def asked(subject: Subject, policy: Policy, change: str) -> Asked:
    """Who wants to replay what: base, merged tree and what base's policy says of replays make two replays one subject."""
    options = options_of(policy)
    said = (options.hook_version, options.runner_image, suite_text(options))
    key = subject_of(subject.base, subject.merged_tree, said)
    return Asked(change=change, subject=key, base=subject.base, head=subject.head, tree=subject.merged_tree)


def suite_text(options: Options) -> str:
    """The replayed suite in one line, compared between record and policy."""
    return " ".join([options.suite, *sorted(options.only), *(f"may-fail:{id_}" for id_ in sorted(options.may_fail))])


def reality(patch: Patch) -> Reality:
    """What base, the merge result and this environment say."""
    options = options_of(patch.policy)
    named = patch.environment.ref if patch.environment.kind == "image" else options.runner_image
    return Reality(
        base=patch.subject.base,
        head=patch.subject.head,
        merged_tree=patch.subject.merged_tree,
        runtime=patch.environment.kind,
        runner_image=named.rpartition("@")[2],
        environment=patch.environment.ref,
        hook_version=options.hook_version,
        hook_changed=_hook_change(patch, options.hook_version),
        suite=suite_text(options),
        alone=bool(patch.classes) and set(patch.classes.values()) <= {"harness"},
    )


def runner_image(runtime: Runtime, image: str = "") -> str:
    """The image's digest where there is an image, else the environment's."""
    named = runtime.ref if runtime.kind == "image" else image
    return named.rpartition("@")[2] or runtime.ref


def stage(patch: Patch, seed: int, probe: Tree) -> Stage:
    """The replay's stage: the suite in an order that ``seed`` chooses, and first of all the measuring line."""
    options = options_of(patch.policy)
    if options.suite == "head":
        job = Job(label="", tree=whole_tree(patch), modules=(), order=seed)
    else:
        wanted = compiled(options.only or ("**",))
        modules = tuple(path for path in patch.modules if wanted.fullmatch(text(path)))
        job = Job(label="", tree=scored_tree(patch, patch.class_of), modules=modules, order=seed)
    made = suite_stage(patch, "replay", [job], trust="candidate", freeze=False if options.suite == "head" else None)
    mounts = tuple(msgspec.structs.replace(mount, tree=probe) if mount.target == PROBE else mount for mount in made.mounts)
    argv = tuple(item.replace("/run.py", "/cold.py") for item in made.argv)
    return msgspec.structs.replace(made, mounts=mounts, argv=argv)


def read(
    now: Reality,
    outcome: Outcome,
    *,
    head_tree: str,
    nonce: str,
    seed: int,
    change: str,
    ledger: str,
    started_us: int,
    caches: Mapping[str, int],
    toolchain: Mapping[str, str],
    may_fail: tuple[str, ...],
    runtime: Runtime,
) -> Admission:
    """The admission of one replay, from what came back; junk becomes a record that fails and says junk."""
    first, _, rest = outcome.report.partition(b"\n")
    measured = Measured(
        started_us=started_us, caches=dict(caches), launcher_nonce=outcome.nonce, first_process_us=outcome.first_process
    )
    packages: dict[str, str] = {}
    try:
        line = msgspec.json.decode(first, type=ColdLine)
    except (msgspec.MsgspecError, ValueError) as error:
        measured = msgspec.structs.replace(measured, junk=f"no first line from inside: {str(error)[:200]}")
    else:
        packages = line.packages
        measured = msgspec.structs.replace(
            measured, nonce=line.nonce, inside_us=line.first_us, spaces=line.spaces, bytecode=line.bytecode, files=line.files,
            mtime_us=line.mtime_us, ctime_us=line.ctime_us,
        )  # fmt: skip
    suite = parse(msgspec.structs.replace(outcome, report=rest))
    red = tuple(row.id for row in suite.tests if row.outcome in ("failed", "error"))
    failed = tuple(id_ for id_ in red if id_ not in may_fail)
    reason = _why_failed(suite, failed)
    warm = next(warmth(measured, nonce, runtime.kind), "")
    if outcome.facts.cache != "none":
        warm = "the engine answered from its cache"
    return Admission(
        schema=SCHEMA,
        tree_sha=now.merged_tree,
        head_tree=head_tree,
        base_sha=now.base,
        head_sha=now.head,
        runner_image=runner_image(runtime, outcome.facts.image),
        environment=runtime.ref,
        hook_version=now.hook_version,
        suite=now.suite,
        cache="warm" if warm else "cold",
        seed=seed,
        toolchain={**toolchain, **{f"package:{name}": version for name, version in packages.items()}},
        result="fail" if reason or warm else "pass",
        started_at=rfc3339(started_us),
        change=change,
        ledger=ledger,
        tests=len(suite.tests),
        failed=failed[:100],
        reason=reason or warm,
        measured=measured,
    )


def warmth(measured: Measured, nonce: str, kind: str) -> Iterator[str]:
    """Every reason why it was not cold. ``kind``: of the runtime; an image's own files are pinned by its digest."""
    if measured.junk:
        yield measured.junk
    if measured.nonce != nonce or measured.launcher_nonce != nonce:
        yield "the nonce that came back from inside is not this replay's"
    for name, first in (("first process", measured.first_process_us), ("first process, seen from inside,", measured.inside_us)):
        if first < measured.started_us - TICK:
            yield f"the {name} is older than the replay"
    for folder, entries in sorted(measured.caches.items()):
        if entries:
            yield f"the cache folder {folder} held {entries} entries at the start"
    for place, files in sorted(measured.spaces.items()):
        if files:
            yield f"{place} held {files} files before the first test"
    if measured.bytecode:
        yield f"{measured.bytecode} compiled files in the tree"
    if kind != "image":
        if not measured.files:
            yield "no installed file was found"
        for name, oldest in (("written", measured.mtime_us), ("placed", measured.ctime_us)):
            if measured.files and oldest < measured.started_us - TICK:
                yield f"an installed file was {name} before the replay began"


def inconsistent(record: Predicate[Admission]) -> str:
    """Why envelope and body are not of one replay, "" where they are."""
    body = record.body
    pairs = (
        ("base", record.base, body.base_sha),
        ("head", record.head, body.head_sha),
        ("merged tree", record.merged_tree, body.tree_sha),
    )
    return next((f"the envelope names another {name} than the record" for name, one, two in pairs if one != two), "")


def _why_failed(suite: Any, failed: tuple[str, ...]) -> str:
    """Why the run does not pass, "" where it does. Whatever is not whole and green is not a pass."""
    if suite.end.how != "exited":
        return f"ended: {suite.end.how} {suite.end.limit or suite.end.code}"
    if suite.junk or not suite.finished:
        tail = suite.tail.splitlines()
        return suite.junk or f"the suite did not run to its end{f' ({tail[-1][:200]})' if tail else ''}"
    broken = next((path for path, error in suite.modules.items() if error), "")
    if broken:
        return f"{broken} cannot be collected"
    ran = {row.id for row in suite.tests}
    if not ran or set(suite.collected) - ran:
        return "no test ran" if not ran else f"{len(set(suite.collected) - ran)} collected tests never ran"
    if failed:
        return f"{len(failed)} failed, the first is {failed[0]}"
    return "" if suite.exitstatus in (0, 1) else f"pytest ended with {suite.exitstatus}"


def _hook_change(patch: Patch, version: int) -> str:
    """What the diff does to hook_version, "" for nothing. A policy that cannot be read there counts as changed."""
    before, after = (side.files.get(FILE.encode()) for side in (patch.base, patch.merged))
    if before == after:
        return ""
    if after is None:
        return f"{FILE} is gone in this diff"
    from ..errors import ProbatumError
    from .yaml12 import load

    try:
        value, _ = load(patch.read(after.oid))
        found = value["checks"]["cold_replay"].get("hook_version", 1)
    except (ProbatumError, KeyError, TypeError, AttributeError):
        return f"{FILE} in this diff names no cold_replay that can be read"
    return (
        ""
        if type(found) is int and found == version
        else f"hook_version {version} becomes {re.sub(r'[^0-9]', '?', str(found))[:12]}"
    )
