"""cold_replay: a replay from a cold state was recorded, passed, and nothing that it speaks of has moved since."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ..core import replay
from ..core.canonical import digest_of
from ..core.check import Have, Note, Patch
from ..core.received import Received
from ..core.records import PatchBody
from ..core.replay import Admission, Options, Reality
from ..core.replay_rule import finding, law
from ..core.stage import Outcome, Stage
from ..core.verdict import Finding

RECORDS: tuple[str, ...] = ("replay", "received.admission", "admission")
BODIES: Mapping[str, type] = {"replay": Reality, "received": Received, "admission": Admission}
IMPORTS: tuple[str, ...] = ("admission",)
"""Kinds of records that come from outside this gate; judge sees them in their envelope."""

__all__ = ["BODIES", "IMPORTS", "RECORDS", "Options", "judge", "plan", "read"]


def plan(patch: Patch, have: Have) -> Iterable[Stage | Note]:
    """No stage: what an admission must match now, as a record. The replay itself ran in a job of its own."""
    record = have.get("patch")
    if isinstance(record, PatchBody) and not record.conflict:
        body = replay.reality(patch)
        yield Note(kind="replay", part="", body=body, input_digest=digest_of([patch.base.digest, patch.merged.digest]))


def read(stage: Stage, outcome: Outcome) -> Note:
    """Never asked: this check plans no stage."""
    raise LookupError(stage.name)


def judge(have: Have, options: Options, now: int) -> list[Finding]:
    """Admitted, or one finding for each reason why not. Absence of a record is a BLOCK finding."""
    reality, received = have.get("replay"), have.get("received.admission")
    if not isinstance(reality, Reality):
        return [finding("not-run", "there is no record of what a replay must match: base and head do not merge")]
    if not isinstance(received, Received):
        return [finding("missing", "nobody handed in an admission record: that counts as a failure", "gate --evidence DIR")]
    return law(have.get("admission"), received, reality)
