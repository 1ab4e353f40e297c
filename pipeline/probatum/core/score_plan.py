"""The stages behind src_score: base, then the real run, its twins and the proposed tests, then what they leave open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..errors import PolicyError
from .canonical import digest_of, escape, unescape
from .check import Have, Note, Patch
from .records import PatchBody, SuiteBody
from .seal import rules_of
from .shard_score import all_there, joined, score_jobs
from .stage import End, Outcome, Stage, Tree
from .static_tests import try_static_tests
from .suite import Job, base_tree, scored_tree, suite_stage
from .table import proposed_paths, self_referential
from .testimony import folded, parse, parse_jobs
from .twin_plan import real_tree, twin_jobs
from .twin_rule import DISGUISED, looking, looks_note, suspects, undisguised

FOLDED = ("twins", "twincheck")
RED = ("failed", "error")
DATA = (b".json", b".csv", b".yaml", b".yml", b".toml", b".txt")
LINK = 0o120000


def plan(patch: Patch, have: Have) -> Iterable[Stage | Note]:
    """Nothing for a patch that conflicts, cannot be laid out, moves oracle and product together, or has a broken oracle.

    Raises PolicyError where base's own sealed tests cannot be run: a defect of base is exit 2.
    """
    record = have.get("patch")
    if not isinstance(record, PatchBody) or record.conflict or record.oracle or record.unfit or self_referential(record):
        return
    if "looks" not in have:
        yield looks_note(patch)
    before = base_tree(patch, patch.class_of)
    yield suite_stage(patch, "base", [Job(label="", tree=before, modules=patch.modules)], trust="base", reusable=True)
    base = have.get("suite.base")
    if base is None:
        return
    _usable(base)
    after = scored_tree(patch, patch.class_of)
    sources = {path: patch.read(patch.sealed.files[path].oid) for path in patch.modules}
    real = real_tree(after, sources, patch.seed)
    yield from _run(patch, have, base, score_jobs(real, patch.modules, base, _shards(patch)))
    yield from _twins(patch, record, have, before, after, sources)
    yield from _proposed(patch, record, before, after)
    if "suite.run" in have:
        red = newly_red(base, have["suite.run"])
        if red:
            job = Job(label="", tree=before, modules=patch.modules, ids=red)
            yield suite_stage(patch, "recheck", [job], trust="base")


def _run(patch: Patch, have: Have, base: SuiteBody, jobs: Sequence[Job]) -> Iterator[Stage | Note]:
    """The real run: one stage, or one a shard and a record that joins them."""
    if len(jobs) == 1:
        yield suite_stage(patch, "run", jobs, trust="candidate")
        return
    stages = [suite_stage(patch, f"run{index}", [job], trust="candidate") for index, job in enumerate(jobs)]
    yield from stages
    bodies = all_there(jobs, have, "run")
    if bodies is not None:
        digest = digest_of([stage.digest for stage in stages])
        yield Note(kind="suite", part="run", body=joined(base, bodies), input_digest=digest)


def _twins(
    patch: Patch, record: PatchBody, have: Have, before: Tree, after: Tree, sources: Mapping[bytes, bytes]
) -> Iterator[Stage | Note]:
    """Control twins and a disguised run over the patch; a job with a suspect is run over base, to see whether it counts."""
    share = _share(patch)
    if share <= 0:
        return
    data = {
        path: patch.read(blob.oid) for path, blob in patch.sealed.files.items() if path.endswith(DATA) and blob.mode != LINK
    }
    base: SuiteBody = have["suite.base"]
    late = _late(patch, base, sources)
    jobs = twin_jobs(after, sources, base, patch.seed, share, data=data, disguise=late)
    if not jobs:
        body = SuiteBody(
            end=End("exited"), nonce_ok=True, junk="", finished=True, exitstatus=0, modules={}, collected=(), tests=(), watch=()
        )
        yield Note(kind="suite", part="twins", body=body, input_digest=before.digest)
        return
    yield suite_stage(patch, "twins", jobs, trust="candidate")
    twins, run = have.get("suite.twins"), have.get("suite.run")
    if twins is not None and run is not None:
        asked = [
            *suspects(twins),
            *undisguised(run, twins),
            *([DISGUISED] if looking(record, have.get("looks"), twins, None) else []),
        ]
        check = twin_jobs(before, sources, base, patch.seed, share, data=data, only=asked, disguise=late)
        if check:
            yield suite_stage(patch, "twincheck", check, trust="base")


def _late(patch: Patch, base: SuiteBody, sources: Mapping[bytes, bytes]) -> list[str]:
    """Tests of modules that base cannot collect, as their text shows them: a disguised run takes them along."""
    lost = {path: error for path, error in base.modules.items() if error and not error.startswith("Skipped:")}
    if not lost:
        return []
    rules = rules_of(patch.base, patch.read)
    return [
        f"{name}::{test}"
        for path, source in sources.items()
        if (name := path.decode("utf-8", "surrogateescape")) in lost
        for test in try_static_tests(path, source, rules)
    ]


def read(stage: Stage, outcome: Outcome) -> Note:
    """The probe's report as a SuiteBody; a stage of several jobs is folded into one (ids become ``LABEL ID``)."""
    part = stage.name.removeprefix("suite.")
    body = folded(stage, parse_jobs(stage, outcome)) if part in FOLDED else parse(outcome)
    return Note(kind="suite", part=part, body=body, input_digest=stage.digest, outcome=outcome)


def newly_red(base: SuiteBody, run: SuiteBody) -> tuple[str, ...]:
    """Node ids that are red in ``run`` and were not on base."""
    was = {row.id: row.outcome for row in base.tests}
    return tuple(row.id for row in run.tests if row.outcome in RED and row.id in was and was[row.id] not in RED)


def _proposed(patch: Patch, record: PatchBody, before: Tree, after: Tree) -> Iterator[Stage]:
    modules = tuple(unescape(path) for path in proposed_paths(record))
    if not modules:
        return
    free = {edit.path for edit in record.edits if edit.as_ == "proposed"}
    files = {
        path: blob for path, blob in patch.merged.files.items() if patch.class_of(path) == "proposed" or escape(path) in free
    }
    for part, tree in (("proposed", after), ("proposedbase", before)):
        job = Job(label="", tree=tree.with_files(files), modules=modules)
        yield suite_stage(patch, part, [job], trust="candidate")


def _shards(patch: Patch) -> int:
    options: Any = patch.policy.checks.get("src_score", {})
    return int(options.get("shards", 1))


def _share(patch: Patch) -> float:
    options: Any = patch.policy.checks.get("src_score", {}).get("twins", {})
    return float(options.get("share", 0.25))


def _usable(base: SuiteBody) -> None:
    """Base's sealed tests ran to their end and there is at least one, or the gate cannot judge."""
    where, remedy = "base's sealed tests", "mend base first; try: probatum doctor"
    tail = f": {base.tail.splitlines()[-1]}" if base.tail else ""
    if base.end.how == "over":
        raise PolicyError(where, f"go over the {base.end.limit} limit", "raise it under limits: in ci/gate.yaml")
    if base.end.how != "exited" or base.junk or not base.finished:
        raise PolicyError(
            where, f"did not run to their end ({base.end.how} {base.end.code}{base.junk and ', ' + base.junk}){tail}", remedy
        )
    errors = [f"{path}: {error}" for path, error in base.modules.items() if error]
    if not base.tests and errors:
        raise PolicyError(where, f"cannot be collected: {errors[0]}", remedy)
    if not base.tests:
        raise PolicyError(where, "hold no test", "seal at least one")
