"""Plans and manifests as files: written whole, read strictly, wherever they were downloaded to."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from ..core.leases import Quarantined
from ..core.leases import parse as parse_ledger
from ..core.policy import FILE, LEDGER
from ..core.shards import FieldMissing, Manifest, ShardPlan, parse
from ..core.verdict import Finding, Verdict
from ..errors import EvidenceCorrupt, ProbatumError, UsageError
from . import sign
from .drive import load
from .git import cache_folder
from .workspace import Workspace

PLAN = "plan.json"
JUNIT = "junit.xml"
LONGEST = 512 << 20


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """What lies in a folder: the plan (None where it cannot be read), the manifests that can, and what cannot."""

    plan: ShardPlan | None
    manifests: tuple[Manifest, ...]
    findings: tuple[Finding, ...]


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """What base says to a gate over shards: the reviewed commits, its quarantine rows (None: nobody read its ledger), and

    the key that signs records.
    """

    head: str
    base: str
    merged_tree: str
    quarantine: tuple[Quarantined, ...] | None
    findings: tuple[Finding, ...]
    key: str


def gather(folder: Path, key: str = "") -> Gathered:
    """Reads ``plan.json`` and every ``shard-*.json`` in ``folder`` and its subfolders; ``key``: what must have signed them."""
    if not folder.is_dir():
        raise UsageError(str(folder), "is no folder", "give the one that holds plan.json and the manifests")
    findings: list[Finding] = []
    plans: dict[str, ShardPlan] = {}
    for path in _named(folder, PLAN):
        plan = _read(path, folder, ShardPlan, key, findings)
        if plan is not None:
            plans.setdefault(plan.plan_digest, plan)
    if not plans and not findings:
        findings.append(_block("no-plan", f"{folder.name or folder}: no plan.json: nothing says what should have run"))
    if len(plans) > 1:
        findings.append(_block("plan", f"{len(plans)} different plans: nothing says which one counts"))
    read = [_read(path, folder, Manifest, key, findings) for path in _named(folder, "shard-*.json")]
    plan = next(iter(plans.values())) if len(plans) == 1 else None
    return Gathered(plan=plan, manifests=tuple(m for m in read if m is not None), findings=tuple(findings))


def look_at(repo: Path, base: str, head: str) -> Base:
    """The reviewed commits of ``repo``, and base's ledger and keys. Raises UsageError for a revision that is not there."""
    with Workspace(repo, cache_folder()) as workspace:
        subject, _, _ = workspace.subject(base or None, head or None)
        objects = workspace.objects
        files = objects.tree(objects.commit(subject.base).tree).files
        policy, ledger = files.get(FILE.encode()), files.get(LEDGER.encode())
        keys = load(objects.read(policy.oid)).keys if policy is not None else {}
        rows: tuple[Quarantined, ...] = ()
        findings: list[Finding] = []
        if ledger is not None:
            try:
                rows = parse_ledger(objects.read(ledger.oid)).quarantine
            except ProbatumError as error:
                findings.append(_block("quarantine", f"{error.line()}: it quarantines nothing"))
        return Base(
            head=subject.head,
            base=subject.base,
            merged_tree=subject.merged_tree,
            quarantine=rows,
            findings=tuple(findings),
            key=keys.get("gate", ""),
        )


def reviewed_by_hash(head: str, base: str) -> Base:
    """The reviewed commits where no repository is at hand: the plan's own rows of base's ledger count."""
    return Base(head=head, base=base, merged_tree="", quarantine=None, findings=(), key="")


def read_plan(path: Path) -> ShardPlan:
    """The plan in ``path``. Raises EvidenceCorrupt."""
    try:
        plan: ShardPlan = parse(_bytes(path), ShardPlan, str(path))
    except OSError as error:
        raise UsageError(str(path), error.strerror or str(error), "make one: probatum shards plan") from None
    return plan


def earlier(folder: Path, plan: ShardPlan) -> dict[int, tuple[int, frozenset[str]]]:
    """Shard to (attempts, ids that did not pass) of the manifests of this plan that ``folder`` holds already.

    A manifest that cannot be read was an attempt too, of which nothing is known: every id of its shard counts as red.
    """
    found: dict[int, tuple[int, frozenset[str]]] = {}
    for index, group in enumerate(plan.groups):
        path = folder / f"shard-{index}.json"
        if not os.path.lexists(path):
            continue
        try:
            manifest: Manifest = parse(_bytes(path), Manifest, path.name)
        except (EvidenceCorrupt, OSError):
            found[index] = (1, frozenset(group))
            continue
        if manifest.run == plan.run:
            passed = set(manifest.node_ids) - {failure.id for failure in manifest.failures}
            whole = manifest.status in ("passed", "failed")
            red = set(group) - passed if whole else set(group)
            found[index] = (max(1, manifest.attempts), frozenset(red | set(manifest.retried)))
    return found


def write(folder: Path, name: str, data: bytes, key: Path | None = None) -> None:
    """``name`` holds ``data`` whole or not at all, its signature beside it; a newer attempt takes the earlier one's place."""
    if key is not None:
        _place(folder, name + sign.SUFFIX, sign.sign(sign.load_key(key), name, data))
    _place(folder, name, data)


def made(folder: Path) -> None:
    """The folder is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out {folder}", error.strerror or str(error), "name a folder that can be made") from None


def clear(folder: Path) -> None:
    """A new plan takes the last run's plan and manifests away, and touches nothing else in the folder."""
    made(folder)
    for pattern in (PLAN, JUNIT, "shard-*.json", f"*.json{sign.SUFFIX}"):
        for path in folder.glob(pattern):
            if path.is_symlink() or path.is_file():
                path.unlink()


def _place(folder: Path, name: str, data: bytes) -> None:
    draft = folder / f".{name}.{os.getpid()}"
    try:
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, folder / name)
    finally:
        draft.unlink(missing_ok=True)


def _named(folder: Path, pattern: str) -> Iterator[Path]:
    yield from sorted(path for path in (*folder.glob(pattern), *folder.glob(f"*/{pattern}")))


def _read(path: Path, folder: Path, type_: Any, key: str, findings: list[Finding]) -> Any:
    name = str(path.relative_to(folder))
    try:
        data = _bytes(path)
        if key:
            beside = path.with_name(path.name + sign.SUFFIX)
            sign.check(key, path.name, data, beside.read_bytes() if beside.is_file() else None)
        return parse(data, type_, name)
    except FieldMissing as error:
        findings.append(_block("missing-field", error.line(), _shard(path)))
    except EvidenceCorrupt as error:
        findings.append(_block("corrupt", error.line(), _shard(path)))
    except OSError as error:
        findings.append(_block("corrupt", f"{name}: {error.strerror or error}", _shard(path)))
    return None


def _bytes(path: Path) -> bytes:
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise EvidenceCorrupt(path.name, "is no regular file")
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise EvidenceCorrupt(path.name, "is too long to be read")
    return data


def _shard(path: Path) -> str:
    """``shard 3`` of ``shard-3.json``: one that cannot be read is not also missing."""
    return path.stem.replace("-", " ", 1)


def _block(name: str, reason: str, subject: str = "") -> Finding:
    return Finding(id=f"shards/{name}", verdict=Verdict.BLOCK, reason=reason, subject=subject)
