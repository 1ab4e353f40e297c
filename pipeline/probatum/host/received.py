"""Takes records of other jobs in: read strictly, kept byte for byte, and described as they were found."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

from ..core import canonical, evidence
from ..core.check import Note
from ..core.received import Received
from ..errors import EvidenceCorrupt
from . import sign

LONGEST = 16 << 20
LEDGER = ".ledger"


def receive(folder: Path | None, record: str, body: type, public: str) -> tuple[bytes | None, Note]:
    """(the bytes of ``record``.json where they are a record of that kind, what was found). Raises nothing for bad bytes.

    ``public``: the key that must have signed it ("" asks for no signature).
    """
    name = f"{record}.json"
    found = Received(name=name, digest="", problem="no --evidence was given", signature="")
    data = None
    if folder is not None:
        data, found = look(folder / name, record, body, public)
    note = Note(kind="received", part=record, body=found, input_digest=found.digest or canonical.digest(b""))
    return (None if found.problem else data), note


def look(path: Path, record: str, body: type, public: str, ledger: Path | None = None) -> tuple[bytes | None, Received]:
    """The bytes of ``path`` and what they are; its ledger lies beside it unless another is named."""
    text = _ledger(ledger or path.with_name(path.name + LEDGER))
    kind, _, part = record.partition(".")
    data, problem, signature = None, "", ""
    try:
        data = content(path)
        found: evidence.Predicate[Any] = evidence.unseal(data, body, path.name)
        if (found.kind, found.part) != (kind, part):
            raise EvidenceCorrupt(path.name, f"is a record of the kind {found.kind!r}")
    except FileNotFoundError:
        problem = f"there is no {path.name}: a replay that was cancelled, timed out or lost leaves none"
    except OSError as error:
        problem = f"{path.name}: {error.strerror or error}"
    except EvidenceCorrupt as error:
        problem = error.line()
    if public and data is not None:
        try:
            sign.check(public, path.name, data, _beside(path))
        except EvidenceCorrupt as error:
            signature = error.line()
    digest = canonical.digest(data) if data is not None else ""
    return data, Received(name=path.name, digest=digest, problem=problem, signature=signature, ledger=text)


def content(path: Path, longest: int = LONGEST) -> bytes:
    """The bytes of a regular file, no link followed. Raises OSError, or EvidenceCorrupt for anything else."""
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise EvidenceCorrupt(path.name, "is no regular file")
        data = file.read(longest + 1)
    if len(data) > longest:
        raise EvidenceCorrupt(path.name, f"is longer than {longest} bytes")
    return data


def _beside(path: Path) -> bytes | None:
    try:
        return content(path.with_name(path.name + sign.SUFFIX))
    except OSError:
        return None


def _ledger(path: Path) -> str | None:
    """What cannot be read counts as not there; what is no text shows as a ledger whose chain does not hold."""
    try:
        return content(path).decode("utf-8", "backslashreplace")
    except (OSError, EvidenceCorrupt):
        return None
