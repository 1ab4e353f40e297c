"""A file of the work tree is written whole or not at all, never through a link, and only where a human asked for it."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ..errors import UsageError


def write(top: Path, name: str, data: bytes, *, replace: bool) -> bool:
    """``top/name`` holds ``data``; False when it was there and ``replace`` is off.

    Raises UsageError where a folder on the way, or the file itself, is a link or no plain file.
    """
    _plain_folders(top, name)
    target = top / name
    if target.is_symlink() or (target.exists() and not stat.S_ISREG(target.stat().st_mode)):
        raise UsageError(str(target), "is no plain file", "move it away first")
    if target.exists() and not replace:
        return False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
        with open(aside, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, target)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UsageError(str(target), f"cannot be written: {error.strerror}", "make the folder writable") from None
    return True


def read(top: Path, name: str) -> bytes | None:
    """The bytes of a plain file of the work tree, None where there is none."""
    _plain_folders(top, name)
    path = top / name
    if path.is_symlink():
        raise UsageError(str(path), "is no plain file", "move it away first")
    if not path.is_file():
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(str(path), f"cannot be read: {error.strerror}", "make it readable") from None


def _plain_folders(top: Path, name: str) -> None:
    path = top
    for part in name.split("/")[:-1]:
        path = path / part
        if path.is_symlink() or (path.exists() and not path.is_dir()):
            raise UsageError(str(path), "is no plain folder", "move it away first")
