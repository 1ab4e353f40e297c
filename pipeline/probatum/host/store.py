"""The write-once store of one gate: ``ci_out/``."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from ..core import evidence
from ..core.canonical import digest
from ..core.records import Decision
from ..core.verdict import Verdict
from ..errors import EvidenceCorrupt, UsageError

TEXTS = ("src_score", "oracle_integrity", "flake_lease")


class Store:
    """Records are written once, whole, and only where the plan names them; text files come last.

    Missing write bits are tidiness, not security: what makes a record tamper-evident is its digest, and what makes it
    tamper-proof is a signature.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.digests: dict[str, str] = {}
        self.records: dict[str, bytes] = {}
        self._planned: frozenset[str] = frozenset()

    @classmethod
    def fresh(cls, folder: Path) -> Store:
        """A new, empty folder; one that was there is moved to ``NAME.previous`` first, so that no old PASS survives a crash.

        Raises UsageError when the folder is a link, no folder, holds a repository, or holds the working folder.
        """
        folder = folder.absolute()
        where = f"--out {folder}"
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UsageError(where, "is a link or no folder", "name a folder that the gate may own")
        if folder.exists():
            if folder.resolve() in [Path.cwd().resolve(), *Path.cwd().resolve().parents] or (folder / ".git").exists():
                raise UsageError(where, "is a working folder or a repository", "name a folder that the gate may own")
            _move_away(folder)
        try:
            folder.mkdir(parents=True)
        except OSError as error:
            raise UsageError(where, error.strerror or str(error), "name a folder that can be made") from None
        return cls(folder)

    def plan(self, data: bytes, records: tuple[str, ...]) -> None:
        """The plan is the first record; from here on only the file names in ``records`` may be written."""
        self._planned = frozenset(["plan.json", *records])
        self.write("plan.json", data)

    def write(self, name: str, data: bytes) -> None:
        """``name`` holds ``data`` whole or not at all. Raises EvidenceCorrupt for a second write or an unplanned name."""
        if name not in self._planned:
            raise EvidenceCorrupt(name, "is a record that nobody planned")
        self._place(name, data)
        self.records[name] = data
        self.digests[name] = digest(data)

    def finish(self, decision: Decision, data: bytes, sign: Callable[[str, bytes], bytes] | None = None) -> None:
        """``decision.json``, then the three text files, each exactly ``PASS`` or ``FAIL``.

        ``sign`` (name, bytes) gives the envelope that is laid beside each record; no stage runs any more by then.
        """
        if sign is not None:
            for name, record in [*self.records.items(), ("decision.json", data)]:
                self._place(name + ".dsse", sign(name, record))
        self._place("decision.json", data)
        for name in TEXTS:
            named = decision.verdicts.get(name)
            passed = named is not None and named.verdict is Verdict.PASS
            self._place(f"{name}.txt", b"PASS" if passed else b"FAIL")

    def _place(self, name: str, data: bytes) -> None:
        target, draft = self.folder / name, self.folder / f".{name}.{os.getpid()}"
        try:
            with open(draft, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(draft, stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
            os.link(draft, target)
        except FileExistsError:
            raise EvidenceCorrupt(name, "is already written; records are written once") from None
        finally:
            draft.unlink(missing_ok=True)


def read(folder: Path, name: str) -> bytes:
    """The bytes of a record. Raises EvidenceCorrupt when it is missing or no regular file."""
    try:
        fd = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with open(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise EvidenceCorrupt(name, "is no regular file")
            return file.read()
    except FileNotFoundError:
        raise EvidenceCorrupt(name, "is missing", "run the gate again") from None
    except OSError as error:
        raise EvidenceCorrupt(name, error.strerror or str(error)) from None


def record_names(folder: Path) -> list[str]:
    """File names of the records in ``folder``, sorted."""
    return sorted(path.name for path in folder.glob("*.json") if path.name != "decision.json")


def _move_away(folder: Path) -> None:
    previous = folder.with_name(folder.name + ".previous")
    if previous.is_dir() and not previous.is_symlink() and (previous / evidence.file_name("plan")).is_file():
        shutil.rmtree(previous)
    number = 1
    while os.path.lexists(previous):
        number += 1
        previous = folder.with_name(f"{folder.name}.previous-{number}")
    os.rename(folder, previous)
