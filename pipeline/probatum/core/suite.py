"""A suite stage runs sealed or proposed tests beside the probe; its report is testimony and is read with suspicion."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from .check import Patch
from .globs import compiled, text
from .policy import amount
from .records import Class
from .stage import FIXED_ENV, Blob, Limits, Mount, Stage, Tree, Trust
from .testimony import folded, parse, parse_jobs

__all__ = ["Job", "base_tree", "folded", "parse", "parse_jobs", "probe_tree", "scored_tree", "suite_stage", "whole_tree"]

PROBE = "/probe"
ARGV = ("{python}", "-s", "-B", f"{PROBE}/run.py")
"""Not ``-I``: an isolated interpreter ignores PYTHONHASHSEED too. run.py takes its own folder off sys.path first of all."""

SHIPPED = ("run.py", "plugin.py", "fixed.py", "watch.py", "look.py", "clock.py", "disguise.py", "looks.py")


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One run of pytest over ``modules`` of ``tree``.

    ``ids`` selects exact node ids, or every parameter of a test that is named without one (None: all). ``strip`` takes
    skip and xfail away, so that the tests really run. ``order`` shuffles modules and their tests. ``wall`` ends the job
    after so many seconds (0: only the stage's limit does; it counts only where a stage has several jobs). Without
    ``modules`` pytest discovers what the tree's own configuration says.

    ``collect`` only collects. ``expect``: every id that must be collected, no other and none twice, or nothing runs.
    ``ignore``: files that discovery passes over. ``disguise`` hides from product code that it is tested.
    """

    label: str
    tree: Tree
    modules: tuple[bytes, ...]
    ids: tuple[str, ...] | None = None
    strip: bool = False
    order: int | None = None
    wall: int = 0
    collect: bool = False
    expect: tuple[str, ...] | None = None
    ignore: tuple[bytes, ...] = ()
    disguise: bool = False


def probe_tree(files: Mapping[str, bytes]) -> Tree:
    """The probe as a tree: of ``files`` (name to bytes, as they lie in ``probatum/probe``) what runs beside the tests."""
    return Tree({name.encode(): Blob(0o100644, data=files[name]) for name in SHIPPED})


def suite_stage(
    patch: Patch,
    part: str,
    jobs: Sequence[Job],
    *,
    trust: Trust,
    reusable: bool = False,
    freeze: bool | None = None,
) -> Stage:
    """The stage ``suite.PART``. Its trees lie at neutral paths that say neither which is real nor what a job is for.

    A reusable stage's paths come from the trees' contents, so that the same stage has the same digest tomorrow.
    """
    policy = patch.policy
    if freeze is None:
        freeze = policy.freeze_clock if policy.freeze_clock is not None else policy.layout == "strict"
    sealed = sorted(_text(path) for path in patch.sealed.files if path.endswith(b".py"))
    mounts, scratch, rows = [Mount(PROBE, patch.probe)], [], []
    for job in jobs:
        at = _place(job.tree.digest if reusable else f"{patch.seed} {part} {job.label}", job.label)
        mounts.append(Mount(at, job.tree))
        scratch += [f"{at}/{path.strip('/')}" for path in policy.writable]
        rows.append(
            {
                "label": job.label,
                "tree": at,
                "modules": [_text(path) for path in job.modules],
                "ids": job.ids,
                "strip": job.strip,
                "order": job.order,
                "freeze": freeze,
                "pythonpath": policy.pythonpath,
                "sealed": sealed,
                "wall": job.wall,
                "collect": job.collect,
                "expect": job.expect,
                "ignore": [_text(path) for path in job.ignore],
                **({"disguise": _disguise(patch)} if job.disguise else {}),
            }
        )
    limits = policy.limits
    return Stage(
        name=f"suite.{part}",
        trust=trust,
        runtime=patch.environment,
        mounts=tuple(mounts),
        argv=ARGV,
        cwd=mounts[1].target,
        env=tuple(sorted(policy.env.items())),
        stdin=json.dumps({"jobs": rows}, separators=(",", ":")).encode("ascii"),
        limits=Limits(
            wall=amount(limits.wall),
            memory=amount(limits.memory),
            processes=limits.processes,
            file=amount(limits.file),
            disk=amount(limits.disk),
            output=amount(limits.output),
        ),
        scratch=tuple(scratch),
        reusable=reusable,
    )


def _disguise(patch: Patch) -> dict[str, object]:
    """The disguised job's clock, and what it hides: sealed test modules and the folders above them that hold no product.

    Where product lies is base's word; a patch cannot make the tests' folder its own.
    """
    days = 3000 + int(hashlib.sha256(f"{patch.seed} disguise".encode()).hexdigest()[:8], 16) % 1500  # within 32 bits
    folders = {folder for path in patch.modules for folder in _folders(path)}
    ours = {folder for path in patch.base.files if patch.class_of(path) == "product" for folder in _folders(path)}
    return {
        "epoch": int(FIXED_ENV["SOURCE_DATE_EPOCH"]) + days * 86400,
        "hidden": sorted(_text(path) for path in {*patch.modules, *(folders - ours)}),
    }


def base_tree(patch: Patch, class_of: Callable[[bytes], Class]) -> Tree:
    """What base's own sealed run sees: base's files but the oracle's and the proposed ones, and the sealed files."""
    return _composed(patch, patch.base, class_of)


def scored_tree(patch: Patch, class_of: Callable[[bytes], Class]) -> Tree:
    """What is scored: as ``base_tree``, but the production paths are *replaced* by the merged tree's (deletions count)."""
    return _composed(patch, patch.merged, class_of)


def whole_tree(patch: Patch) -> Tree:
    """The merged tree as it is, with what a build of base adds: what an ordinary CI job checks out."""
    return Tree(_laid(patch.generated.files, {path: blob for path, blob in patch.merged.files.items() if _wanted(path, blob)}))


def _composed(patch: Patch, product: Tree, class_of: Callable[[bytes], Class]) -> Tree:
    claimed = compiled(patch.policy.paths.sealed)
    kept = {
        path: blob
        for path, blob in patch.base.files.items()
        if _wanted(path, blob)
        and class_of(path) not in ("product", "oracle", "proposed")
        and not claimed.fullmatch(text(path))  # a conftest there that nobody sealed, say
    }
    over = {path: blob for path, blob in product.files.items() if _wanted(path, blob) and class_of(path) == "product"}
    files = _laid(patch.generated.files, kept)
    return Tree(_laid(_laid(files, over), {path: blob for path, blob in patch.sealed.files.items() if _wanted(path, blob)}))


def _wanted(path: bytes, blob: Blob) -> bool:
    """Neither git's own, nor a submodule, nor bytecode: what is not source is not scored."""
    parts = path.lower().split(b"/")
    return (
        blob.mode != 0o160000
        and b".git" not in parts
        and b"__pycache__" not in parts
        and not parts[-1].endswith((b".pyc", b".pyo"))
    )


def _laid(under: Mapping[bytes, Blob], over: Mapping[bytes, Blob]) -> dict[bytes, Blob]:
    """``over`` laid on ``under``; where one has a file and the other a folder of that name, ``over`` wins."""
    folders = {folder for path in over for folder in _folders(path)}
    kept = {
        path: blob
        for path, blob in under.items()
        if path not in folders and not any(folder in over for folder in _folders(path))
    }
    return {**kept, **over}


def _folders(path: bytes) -> Iterable[bytes]:
    at = path.find(b"/")
    while at > 0:
        yield path[:at]
        at = path.find(b"/", at + 1)


def _place(secret: str, label: str) -> str:
    return "/w/" + hashlib.sha256(f"{secret} {label}".encode()).hexdigest()[:16]


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
