"""The typed bodies of the records that several checks read. A body that only one check knows lives with that check."""

from __future__ import annotations

from typing import ClassVar, Literal

import msgspec

from .stage import End
from .verdict import Finding, Verdict

Class = Literal["workflow", "harness", "oracle", "environment", "cassette", "product", "proposed", "docs", "other"]
"""Change classes, strictest first: a path that two globs claim is of the first (section 0)."""

Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every record body: immutable, unknown fields refused."""


class PlanBody(Body, frozen=True, kw_only=True):
    """The sealed plan: what must be there before a decision. ``records`` are the file names that may be written."""

    required: tuple[str, ...]
    off: dict[str, str]
    records: tuple[str, ...]
    authority: Literal["deciding", "advisory"]
    why_advisory: str
    policy_source: str
    policy: dict[str, object]
    now: int
    seed: str


class ChangeRow(Body, frozen=True, kw_only=True, rename={"class_": "class"}):
    """One path that differs between base's tree and the merged tree. Paths escaped, modes octal text, "" where absent."""

    status: Literal["A", "M", "D", "T"]
    path: str
    class_: Class
    old_mode: str = ""
    new_mode: str = ""
    old_oid: str = ""
    new_oid: str = ""
    why: str = ""


class Edit(Body, frozen=True, kw_only=True, rename={"as_": "as"}):
    """A changed file that a sealed glob claims, in the in-place layout: new, or every sealed test unchanged, is proposed."""

    path: str
    as_: Literal["proposed", "oracle"]
    tests: tuple[str, ...] = ()


class PatchBody(Body, frozen=True, kw_only=True):
    """What git objects say of the patch; nothing was executed to find it.

    ``conflict``: paths that do not merge. ``links``: path to what is wrong with a symlink or submodule. ``collisions``: path
    to the sealed path that it matches but for case or normalisation. ``oracle``: what is wrong with base's seal or manifest,
    one line each. ``missing``: LFS pointers and the like that cannot be scored. ``unfit``: new paths that cannot be laid out.
    ``self_import``: product packages that pytest imports. ``output``: paths of the merged tree in the output folder.
    """

    layout: Literal["strict", "in-place"]
    conflict: tuple[str, ...]
    changes: tuple[ChangeRow, ...]
    links: dict[str, str]
    collisions: dict[str, str]
    oracle: tuple[str, ...]
    edits: tuple[Edit, ...]
    missing: dict[str, str] = {}
    unfit: dict[str, str] = {}
    self_import: tuple[str, ...] = ()
    output: tuple[str, ...] = ()


class TestRow(Body, frozen=True, kw_only=True):
    """One node id of a run. ``signature`` is ``Type: message``, white space normalised, "" where nothing failed.

    ``phases`` are the outcomes of setup, call and teardown in the order reported ("" for one that never came);
    ``reason`` is a skip's or xfail's reason; ``times`` counts how often the id finished.
    """

    __test__: ClassVar[bool] = False

    id: str
    outcome: Outcome
    phases: tuple[str, ...]
    duration_us: int = 0
    signature: str = ""
    reason: str = ""
    times: int = 1


class SuiteBody(Body, frozen=True, kw_only=True):
    """One run of sealed or proposed tests, as the probe reported it and the launcher saw it end.

    ``end`` and ``nonce_ok`` are the launcher's word; the rest is testimony of the tests' own interpreter. ``junk`` says why
    the report could not be read ("" when it could). ``modules``: path to "" (collected) or the collection error.
    ``collected``: the node ids, in order. ``watch``: what importing and running changed in code that was loaded before it.
    """

    end: End
    nonce_ok: bool
    junk: str
    finished: bool
    exitstatus: int
    modules: dict[str, str]
    collected: tuple[str, ...]
    tests: tuple[TestRow, ...]
    watch: tuple[str, ...]
    python: str = ""
    pytest: str = ""
    wall_us: int = 0
    tail: str = ""


class VerdictBody(Body, frozen=True, kw_only=True):
    """One check's verdict: the join of its findings. ``evidence``: file name to digest of every record it could see."""

    name: str
    verdict: Verdict
    findings: tuple[Finding, ...]
    evidence: dict[str, str] = {}


Word = Literal["MERGE_OK", "MERGE_BLOCKED", "MERGE_HELD"]


class Named(msgspec.Struct, frozen=True):
    """A verdict under its check's name in ``decision.json``."""

    verdict: Verdict
    findings: tuple[Finding, ...]


class Decision(Body, frozen=True, kw_only=True):
    """``decision.json``. The contract that other tools read."""

    decision: Word
    line: str
    authority: Literal["deciding", "advisory"]
    base: str
    head: str
    merged_tree: str
    verdicts: dict[str, Named]
    off: dict[str, str]
    attempt: int
    nonce: str
    plan_digest: str
    policy_digest: str
    tool: str


BODIES: dict[str, type] = {"plan": PlanBody, "patch": PatchBody, "suite": SuiteBody, "verdict": VerdictBody}
"""Kind to body, for the kinds that several rooms read."""
