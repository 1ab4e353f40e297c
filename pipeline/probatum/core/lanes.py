"""Lane authority: who may write which kind of record."""

from __future__ import annotations

LANES: dict[str, frozenset[str]] = {
    "environment": frozenset({"environment"}),
    "gate": frozenset(
        {"plan", "patch", "skips", "suite", "looks", "verdict", "decision", "admission", "shard", "replay", "received"}
    ),
    "record": frozenset({"cassette", "sampling", "review"}),
    "drift": frozenset({"drift"}),
    "draft": frozenset({"proposal"}),
    "apply": frozenset({"apply"}),
    "explain": frozenset({"note"}),
}
"""Lane to the kinds it may write (section 0 of the specification). Only the gate lane decides."""


def may_write(lane: str, kind: str) -> bool:
    """A lane writes the kinds of its row and nothing else; an unknown lane writes nothing."""
    return kind in LANES.get(lane, frozenset())
