"""oracle_integrity: one patch, one change class; nothing enters, leaves or imitates the oracle on the way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import msgspec

from ..core.check import Have, Note, Patch
from ..core.records import Class, PatchBody
from ..core.stage import Outcome, Stage
from ..core.table import classes_of, counted
from ..core.verdict import Finding, Verdict

RECORDS: tuple[str, ...] = ()
BODIES: Mapping[str, type] = {}

WITH_PRODUCT_BLOCKS: tuple[Class, ...] = ("harness", "workflow")
WITH_PRODUCT_HOLDS: tuple[Class, ...] = ("environment", "cassette")
HUMAN: frozenset[Class] = frozenset({"oracle", "harness", "environment", "workflow"})
FREE: frozenset[Class] = frozenset({"product", "proposed", "docs"})


class Options(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``edits``: what a patch gets that changes a sealed test in place. ``allow``: classes that may ride with product."""

    edits: Literal["block"] = "block"
    allow: tuple[Literal["environment", "cassette", "other"], ...] = ()


def plan(patch: Patch, have: Have) -> Iterable[Stage | Note]:
    """Nothing runs: git objects say it all."""
    return ()


def read(stage: Stage, outcome: Outcome) -> Note:
    """This check has no stage."""
    raise LookupError(stage.name)


def judge(have: Have, options: Options, now: int) -> list[Finding]:
    """The class table, and what must not move with any class."""
    patch = have.get("patch")
    if not isinstance(patch, PatchBody):
        return [_block("not-run", "there is no record of the patch", remedy="run the gate again")]
    return [*_structure(patch), *_table(patch, options)]


def _structure(patch: PatchBody) -> Iterator[Finding]:
    for path in patch.conflict:
        yield _block("conflict", "does not merge into base", path, "rebase onto base and resolve it")
    for problem in patch.oracle:
        yield _block("oracle-broken", problem, remedy="land a repair of the oracle as a change of its own")
    for path, why in patch.unfit.items():
        yield _block("unfit-path", f"cannot be laid out: {why}", path, "choose another name")
    for path in patch.output:
        yield _block("output-folder", "a commit must not hold the gate's own output folder", path, "take it out of the commit")
    for path, problem in patch.links.items():
        yield _block("link", problem, path, "replace the link by the file itself")
    for path, sealed in patch.collisions.items():
        yield _block("collision", f"is {sealed} on a disk that folds case or normalises names", path, "choose another name")


def _table(patch: PatchBody, options: Options) -> Iterator[Finding]:
    found = classes_of(patch)
    riding = found - set(options.allow) if "product" in found else found - (set(options.allow) & {"other"})
    if not patch.changes:
        yield _hold("nothing", "the merged tree is base's tree", remedy="close it, or push what is missing")
        return
    if "product" in found:
        blocked = False
        if "oracle" in found:
            blocked = True
            for path in _paths(patch, "oracle"):
                yield _block("product-and-oracle", "the oracle changes together with product", path, _SPLIT)
        for kind in WITH_PRODUCT_BLOCKS:
            for path in _paths(patch, kind):
                blocked = True
                yield _block(f"product-and-{kind}", f"{_a(kind)} file changes together with product", path, _SPLIT)
        for kind in WITH_PRODUCT_HOLDS:
            for path in _paths(patch, kind) if kind in riding else ():
                yield _hold(f"product-and-{kind}", f"{_a(kind)} file changes together with product", path, _LOOK)
        if not blocked and "other" in riding:
            for path in _paths(patch, "other"):
                yield _hold("unclassified", "no glob of the policy claims it", path, "name it in ci/gate.yaml, or " + _LOOK)
    elif found & HUMAN:
        for kind in sorted(found & HUMAN):
            for path in _paths(patch, kind):
                yield _hold("human-change-set", f"{_a(kind)} change is a human change set", path, _LOOK)
    else:
        for kind in sorted(riding - FREE):
            for path in _paths(patch, kind):
                yield _hold("unclassified", f"a patch of class {kind!r} is not in the table", path, _LOOK)


_SPLIT = "land it as a patch of its own, before or after this one"
_LOOK = "a human looks at it"


def _paths(patch: PatchBody, kind: Class) -> list[str]:
    return [path for path, class_ in counted(patch) if class_ == kind]


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


def _block(name: str, reason: str, subject: str = "", remedy: str = "") -> Finding:
    return _finding(Verdict.BLOCK, name, reason, subject, remedy)


def _hold(name: str, reason: str, subject: str = "", remedy: str = "") -> Finding:
    return _finding(Verdict.HOLD, name, reason, subject, remedy)


def _finding(verdict: Verdict, name: str, reason: str, subject: str, remedy: str) -> Finding:
    reproduce = "probatum judge oracle_integrity --evidence ci_out"
    return Finding(
        id=f"oracle_integrity/{name}", verdict=verdict, reason=reason, subject=subject, remedy=remedy, reproduce=reproduce
    )
