"""Outcomes of reusable stages, kept between runs. An entry is verified before use; one that does not verify is removed."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..core.canonical import decode, digest, encode
from ..core.stage import Outcome
from ..errors import EvidenceCorrupt

_LONGEST = 512 << 20


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``key`` is in the entry too: a file that was renamed answers nothing."""

    key: str
    outcome: Outcome


class Stages:
    """A folder that only its owner may enter: one file a key, the digest of its canonical bytes on the first line."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, key: str) -> Outcome | None:
        """The outcome filed under ``key``; None when there is none that verifies."""
        path = self._path(key)
        try:
            self._own(self.folder, stat.S_ISDIR)
            self._own(path, stat.S_ISREG)
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                head, _, body = file.read(_LONGEST).partition(b"\n")
            if head.decode("ascii", "replace") != digest(body):
                raise EvidenceCorrupt(str(path), "its digest does not match")
            entry: Entry = decode(body, Entry, str(path))
            if entry.key != key or entry.outcome.end.how != "exited":
                raise EvidenceCorrupt(str(path), "it is another stage's")
        except FileNotFoundError:
            return None
        except (EvidenceCorrupt, OSError):
            path.unlink(missing_ok=True)
            return None
        return entry.outcome

    def save(self, key: str, outcome: Outcome) -> None:
        """File ``outcome`` whole or not at all. A full disk costs the reuse, not the run."""
        body = encode(Entry(key, outcome))
        path = self._path(key)
        beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.chmod(self.folder, 0o700)
            with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(digest(body).encode() + b"\n" + body)
            os.replace(beside, path)
        except OSError:
            beside.unlink(missing_ok=True)

    def _path(self, key: str) -> Path:
        return self.folder / key.removeprefix("sha256:")

    @staticmethod
    def _own(path: Path, kind: Callable[[int], bool]) -> None:
        state = os.lstat(path)
        if state.st_uid != os.geteuid() or state.st_mode & 0o077 or not kind(state.st_mode):
            raise EvidenceCorrupt(str(path), "others may write it")
