"""The files of a replay: an admission record, its ledger, and a copy of the ledger beside the record."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from ..core import evidence, replay_ledger
from ..core.replay import Admission
from ..core.replay_ledger import Line
from ..errors import EvidenceCorrupt, UsageError
from . import sign
from .received import LEDGER, content

RECORD = "admission"


class Ledger:
    """The ledger in a file; lines are only added, under a lock, and only to a ledger whose chain holds."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def locked(self) -> Iterator[LockedLedger]:
        """Nobody else adds a line meanwhile. Raises EvidenceCorrupt for a broken chain, UsageError for no plain file."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            handle = os.open(
                self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise UsageError(f"--ledger {self.path}", error.strerror or str(error), "name a plain file") from None
        with open(handle, "r+b", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise UsageError(f"--ledger {self.path}", "is no plain file", "name one")
            fcntl.flock(handle, fcntl.LOCK_EX)
            data = os.pread(handle, replay_ledger.LONGEST + 1, 0)
            lines = replay_ledger.parse(data, str(self.path))
            twice = replay_ledger.used_twice(lines)
            if twice:
                raise EvidenceCorrupt(str(self.path), twice)
            yield LockedLedger(lines, data, file.fileno())


class LockedLedger:
    """The lines, while nobody else can add one."""

    def __init__(self, lines: tuple[Line, ...], data: bytes, handle: int) -> None:
        self.lines, self.data, self._handle = lines, data, handle

    def add(self, **fields: object) -> Line:
        """One more line, on the disk when this returns."""
        line, data = replay_ledger.line_after(self.lines, **fields)
        os.write(self._handle, data)
        os.fsync(self._handle)
        self.lines, self.data = (*self.lines, line), self.data + data
        return line


def beside(out: Path) -> Path:
    """Where the ledger's copy lies: beside the record."""
    return out.with_name(out.name + LEDGER)


def replaceable(out: Path) -> None:
    """Raises UsageError for a file that is no record: it would be lost."""
    if not os.path.lexists(out):
        return
    try:
        evidence.unseal(content(out), Admission, out.name)
    except (OSError, EvidenceCorrupt):
        raise UsageError(f"--out {out}", "is there and is no admission record", "name another file, or move it away") from None


def void(out: Path) -> None:
    """The record in ``out`` is void before the next replay begins."""
    replaceable(out)
    out.unlink(missing_ok=True)
    out.with_name(out.name + sign.SUFFIX).unlink(missing_ok=True)


def write(path: Path, data: bytes) -> None:
    """``path`` holds ``data`` whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except OSError as error:
        raise UsageError(str(path), error.strerror or str(error), "name a file that can be written") from None
    finally:
        draft.unlink(missing_ok=True)
