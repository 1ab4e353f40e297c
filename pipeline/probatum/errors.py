"""What the gate says when it could not judge, and the exit codes.

A verdict is a value; an exception means that the gate could not judge, and that is never a pass.
"""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """Exit codes of every command. 75 is never used: a harness may use it for a known flake signature."""

    PASS = 0
    BLOCK = 1
    USAGE = 2
    HOLD = 3
    CORRUPT = 4
    ENGINE = 5
    BUG = 70
    INTERRUPT = 130


class ProbatumError(Exception):
    """One line for a person: where, what, remedy.

    ``where`` is a file (with a line number where one is known), a revision or a command; ``what`` names the
    offending value; ``remedy`` says what to do about it. Every part is shown escaped, on one line.
    """

    exit = Exit.BUG

    def __init__(self, where: str, what: str, remedy: str = "") -> None:
        self.where, self.what, self.remedy = where, what, remedy
        super().__init__(self.line())

    def line(self) -> str:
        """The whole message on one line, control characters escaped."""
        text = f"{self.where}: {self.what}" if self.where else self.what
        if self.remedy:
            text += f"; {self.remedy}"
        return one_line(text)


class UsageError(ProbatumError):
    """Wrong arguments, or no repository, or an unknown revision: exit 2."""

    exit = Exit.USAGE


class PolicyError(ProbatumError):
    """Base's policy, or the oracle it names, cannot be used: exit 2."""

    exit = Exit.USAGE


class EvidenceCorrupt(ProbatumError):
    """A record is not byte-equal to its canonical form, not ours, not planned, or wrongly signed: exit 4."""

    exit = Exit.CORRUPT


class EngineUnavailable(ProbatumError):
    """The engine failed, as opposed to the command in it: exit 5 and no record."""

    exit = Exit.ENGINE


def one_line(text: str) -> str:
    """``text`` on one line: control characters and lone surrogates become escapes."""
    safe = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in safe)
