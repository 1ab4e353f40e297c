"""The sealed files as a lease command sees them: plain files of a folder, or a revision's blobs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from ..core.closure import Closures
from ..core.policy import MANIFEST, STRICT, Policy
from ..errors import UsageError

FORBIDDEN = frozenset({".git", "__pycache__", "node_modules", ".venv"})


class Folder(Mapping[bytes, bytes]):
    """Sealed files of a plain folder, read when they are asked for. Links are left out: nothing outside is followed."""

    def __init__(self, top: Path, paths: list[bytes]) -> None:
        self.top = os.fsencode(top)
        self.paths = dict.fromkeys(paths)

    def __getitem__(self, path: bytes) -> bytes:
        if path not in self.paths:
            raise KeyError(path)
        try:
            with open(os.path.join(self.top, path), "rb") as file:
                return file.read()
        except OSError as error:
            raise UsageError(os.fsdecode(path), f"cannot be read: {error.strerror}") from None

    def __contains__(self, path: object) -> bool:
        return path in self.paths

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


def walk(top: Path) -> Iterator[bytes]:
    """Paths of the regular files below ``top``, ``/`` between parts."""
    start = os.fsencode(top)
    stack = [b""]
    while stack:
        folder = stack.pop()
        with os.scandir(os.path.join(start, folder)) as entries:
            for entry in entries:
                path = folder + b"/" + entry.name if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if os.fsdecode(entry.name) not in FORBIDDEN:
                        stack.append(path)
                elif entry.is_file(follow_symlinks=False):
                    yield path


def policy_of(top: Path) -> Policy:
    """The folder's policy, or the built-in strict one."""
    return STRICT


def sealed_of(top: Path, policy: Policy) -> Folder:
    """The sealed files of a plain folder, by its policy (and seal, in place)."""
    prefixes = tuple(glob.removesuffix("**").encode() for glob in policy.paths.sealed)
    return Folder(top, sorted(path for path in walk(top) if path.startswith(prefixes)))


def closures_of(top: Path) -> tuple[Closures, Folder]:
    """Digests over the plain files of ``top``."""
    policy = policy_of(top)
    files = sealed_of(top, policy)
    return Closures(files, [root.encode() for root in policy.pythonpath]), files


__all__ = ["MANIFEST", "Folder", "closures_of"]
