"""Which failures of a replay may be tried again: a table over facts of the engine's side, as data."""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["product", "infrastructure"]


class Fact(msgspec.Struct, frozen=True):
    """Something that the engine's side of a replay can say, and what a failure with it is."""

    where: str
    fact: str
    kind: Kind
    words: str


FACTS = (
    Fact("environment", "unavailable", "infrastructure", "the package index or the installer failed"),
    Fact("engine", "unavailable", "infrastructure", "the engine did not open, or was lost"),
    Fact("launcher", "silent", "infrastructure", "no record from the launcher itself"),
    Fact("launcher", "setup", "infrastructure", "the launcher could not start the command"),
    Fact("command", "exited", "product", "the command ended by itself, with whatever status"),
    Fact("command", "signalled", "product", "the command died of a signal, whichever"),
    Fact("command", "over", "product", "the command passed a limit of its own stage"),
)
"""Which failures may be replayed. No row looks at an exit status, a signal number or a word: candidate code can make those."""


def kind_of(where: str, fact: str) -> Kind:
    """What a failure is. One that the table does not know is the product's, which is never replayed."""
    return next((row.kind for row in FACTS if (row.where, row.fact) == (where, fact)), "product")
