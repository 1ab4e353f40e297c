"""What a check is, and what it is asked about: a module in ``checks/`` with these names satisfies it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import msgspec

from .evidence import Subject
from .policy import Policy
from .records import Class
from .stage import Outcome, Runtime, Stage, Tree
from .verdict import Finding


class Entry(msgspec.Struct, frozen=True):
    """One side of a change: git mode, object id, path in bytes."""

    mode: int
    oid: str
    path: bytes


class Change(msgspec.Struct, frozen=True):
    """A path that differs between base's tree and the merged tree. No rename detection."""

    status: str
    old: Entry | None
    new: Entry | None

    @property
    def path(self) -> bytes:
        entry = self.new or self.old
        assert entry is not None
        return entry.path


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """What the checks plan from. ``read`` gives a blob's bytes by object id; ``base`` and ``merged`` are whole trees.
    ``classes`` are the changed paths' (both sides and content considered), ``class_of`` is any path's by name alone.

    ``sealed`` is the oracle as a human sealed it: path to blob (strict: base's own files; in place: the pinned ones).
    ``modules`` are the sealed test modules, sorted. ``environment`` is the runtime of base's tests, ``generated`` the
    files that a build of base adds to its tree (version files), ``probe`` what runs beside the tests. ``seed`` is a
    fresh nonce of this gate; ``now`` its one clock reading, unix seconds.
    """

    subject: Subject
    policy: Policy
    changes: tuple[Change, ...]
    classes: Mapping[bytes, Class]
    class_of: Callable[[bytes], Class]
    base: Tree
    merged: Tree
    sealed: Tree
    modules: tuple[bytes, ...]
    read: Callable[[str], bytes]
    environment: Runtime
    probe: Tree
    generated: Tree
    seed: str
    now: int


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A typed record before it is sealed. ``input_digest`` covers everything it was made from."""

    kind: str
    part: str
    body: Any
    input_digest: str
    outcome: Outcome | None = None


Have = Mapping[str, Any]
"""Record name without ``.json`` (``patch``, ``suite.base``) to its body."""


class Check(Protocol):
    """A module in ``checks/``: NAME.py, NAME.schema.json (generated), NAME.md (the page)."""

    RECORDS: tuple[str, ...]
    """Names of the records that this check may write."""
    BODIES: Mapping[str, type]
    """Kind to body type, for kinds that only this check knows."""
    Options: type
    """Its part of the policy, a Struct with defaults."""

    def plan(self, patch: Patch, have: Have) -> Iterable[Stage | Note]:
        """Asked in waves until nothing new comes; nothing is executed here."""

    def read(self, stage: Stage, outcome: Outcome) -> Note:
        """Bytes to a typed record. Total: junk becomes a record that says junk."""

    def judge(self, have: Have, options: Any, now: int) -> list[Finding]:
        """Pure and total; absence is a BLOCK finding."""
