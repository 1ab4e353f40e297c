"""Lays one layer on a root folder: whiteouts, links and modes as the builder meant them; what is hostile is refused whole.

Every path is looked up inside the root, links included: no name and no link of a layer reaches a file of the host.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
import tarfile
from pathlib import Path
from typing import IO, NamedTuple

from ..core.images import Hostile, link_leaves, member_path

ENTRIES, TOTAL, CHUNK, HEADER = 1_000_000, 16 << 30, 1 << 20, 64 << 20
"""Members of an image, bytes of its files, bytes copied at once, bytes of a header that are read at once."""

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
WHITEOUT, OPAQUE = ".wh.", ".wh..wh..opq"


SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
LOADER = ("etc/ld.so.cache", "etc/alternatives")
"""What an engine mounts from a root besides /usr."""


class Budget:
    """What is left for one image: members and bytes."""

    def __init__(self, entries: int = ENTRIES, size: int = TOTAL) -> None:
        self.entries, self.size = entries, size

    def take(self, where: str, size: int) -> None:
        """One more member of ``size`` bytes."""
        self.entries -= 1
        self.size -= size
        if size < 0 or self.entries < 0 or self.size < 0:
            raise Hostile(where, "unpacks to more members or bytes than an image may have")


class Entry(NamedTuple):
    parts: tuple[str, ...]
    member: tarfile.TarInfo


class Layer:
    """One layer on its way into ``root``."""

    def __init__(self, root: Path, where: str, budget: Budget) -> None:
        self.root, self.where, self.budget = root, where, budget
        self.modes: dict[Path, tuple[int, float]] = {}

    def apply(self, file: IO[bytes]) -> None:
        """Whiteouts hide what lower layers brought, then the layer's own members come."""
        try:
            with tarfile.open(fileobj=_Bounded(file, self.where), mode="r:", errorlevel=2) as archive:  # type: ignore[call-overload]
                entries, gone = self.listed(archive)
                for parts in gone:
                    self.hide(parts)
                for entry in entries:
                    self.place(archive, entry)
                self.finish()
        except (tarfile.TarError, EOFError) as error:
            raise Hostile(self.where, f"is no tar: {error}") from None
        except (ValueError, UnicodeError, OverflowError) as error:
            raise Hostile(self.where, f"cannot be laid out: {error}") from None
        except OSError as error:
            if error.errno in DISK:
                raise
            raise Hostile(self.where, f"cannot be laid out: {error.strerror}") from None

    def finish(self) -> None:
        """Folders get their modes and times last, when nothing is put into them any more."""
        for folder, (mode, when) in sorted(self.modes.items(), reverse=True):
            if folder.is_dir() and not folder.is_symlink():
                os.chmod(folder, mode | 0o700)
                os.utime(folder, (when, when))

    def listed(self, archive: tarfile.TarFile) -> tuple[list[Entry], list[tuple[str, ...]]]:
        """(members, whiteouts), every name and kind looked at before anything is written."""
        entries: list[Entry] = []
        gone: list[tuple[str, ...]] = []
        seen: set[tuple[str, ...]] = set()
        for member in archive:
            self.budget.take(self.where, member.size if member.isreg() else 0)
            try:
                parts = member_path(member.name)
            except ValueError as error:
                raise self._hostile(member, str(error)) from None
            if parts in seen:
                raise self._hostile(member, "stands in it twice")
            seen.add(parts)
            if any(part.startswith(WHITEOUT) for part in parts):
                if not member.isreg() or any(part.startswith(WHITEOUT) for part in parts[:-1]):
                    raise self._hostile(member, "a whiteout that is no plain file")
                if parts[-1] != OPAQUE and (parts[-1].startswith(".wh..wh.") or parts[-1][4:] in ("", ".", "..")):
                    raise self._hostile(member, "an unknown kind of whiteout")
                gone.append(parts)
                continue
            self._look(member, parts)
            entries.append(Entry(parts, member))
        return entries, gone

    def _look(self, member: tarfile.TarInfo, parts: tuple[str, ...]) -> None:
        if not parts and not member.isdir():
            raise self._hostile(member, "would replace the root")
        if member.issym():
            if not member.linkname or "\0" in member.linkname or link_leaves(parts, member.linkname):
                raise self._hostile(member, f"a link that leads out: {member.linkname[:100]!r}")
        elif member.islnk():
            try:
                if not member_path(member.linkname):
                    raise ValueError("a hard link to the root")
            except ValueError as error:
                raise self._hostile(member, f"a hard link to {member.linkname[:100]!r}: {error}") from None
        elif member.ischr() or member.isblk() or member.isfifo():
            raise self._hostile(member, "a device node or a pipe")
        elif not (member.isreg() or member.isdir()) or member.issparse():
            raise self._hostile(member, f"a member of the kind {member.type!r}")

    def hide(self, parts: tuple[str, ...]) -> None:
        """What lower layers have under this name is gone."""
        folder = self.inside(parts[:-1], make=False)
        if folder is None:
            return
        if parts[-1] == OPAQUE:
            for child in list(folder.iterdir()):
                remove(child)
        else:
            remove(folder / parts[-1].removeprefix(WHITEOUT))

    def place(self, archive: tarfile.TarFile, entry: Entry) -> None:
        """One member, under its name, in place of what was there."""
        parts, member = entry
        if not parts:
            self.modes[self.root] = (member.mode & 0o7777, member.mtime)
            return
        folder = self.inside(parts[:-1], make=True)
        assert folder is not None
        path = folder / parts[-1]
        if member.isdir() and path.is_dir() and not path.is_symlink():
            self.modes[path] = (member.mode & 0o1777, member.mtime)
            return
        if member.islnk():
            other = member_path(member.linkname)
            source = self.inside(other[:-1], make=False)
            target = source / other[-1] if source is not None else None
            if target is None or not os.path.lexists(target) or (target.is_dir() and not target.is_symlink()):
                raise self._hostile(member, f"a hard link to {member.linkname[:100]!r}, which is no file of the image")
            if target == path:
                raise self._hostile(member, "a hard link to itself")
            remove(path)
            os.link(target, path, follow_symlinks=False)
            return
        remove(path)
        if member.isdir():
            path.mkdir(0o700)
            self.modes[path] = (member.mode & 0o1777, member.mtime)
        elif member.issym():
            os.symlink(member.linkname, path)
            os.utime(path, (member.mtime, member.mtime), follow_symlinks=False)
        else:
            self._file(archive, member, path)

    def _file(self, archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> None:
        reader = archive.extractfile(member)
        assert reader is not None
        left = member.size
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
            while left:
                part = reader.read(min(CHUNK, left))
                if not part:
                    raise self._hostile(member, "is cut short")
                out.write(part)
                left -= len(part)
        # No set-user-id on the host's disk: in a sandbox it means nothing (no_new_privs).
        os.chmod(path, member.mode & 0o777 | 0o400)
        os.utime(path, (member.mtime, member.mtime))

    def inside(self, parts: tuple[str, ...], *, make: bool) -> Path | None:
        """The folder that ``parts`` mean with the root as /, links followed within it; None where it is not there."""
        waiting = list(reversed(parts))
        here: list[str] = []
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                here = here[:-1]
                continue
            path = self.root.joinpath(*here, part)
            if path.is_symlink():
                links += 1
                if links > 40:
                    raise Hostile(self.where, f"{'/'.join(parts)[:100]!r} goes round in circles")
                target = os.readlink(path)
                if target.startswith("/"):
                    here = []
                waiting += [step for step in reversed(target.split("/")) if step not in ("", ".")]
                continue
            if not os.path.lexists(path):
                if not make:
                    return None
                path.mkdir(0o755)
            elif not stat.S_ISDIR(os.lstat(path).st_mode):
                if not make:
                    return None
                raise Hostile(self.where, f"{'/'.join(parts)[:100]!r} leads through a file")
            here.append(part)
        return self.root.joinpath(*here)

    def _hostile(self, member: tarfile.TarInfo, what: str) -> Hostile:
        return Hostile(self.where, f"{member.name[:100]!r}: {what}", "use an image that an honest builder made")


def remove(path: Path) -> None:
    """Gone, whatever it is; a link itself, never what it leads to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


class _Bounded:
    """A file that is never read in one huge piece, whatever a header announces."""

    def __init__(self, file: IO[bytes], where: str) -> None:
        self.file, self.where = file, where

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= HEADER:
            raise Hostile(self.where, f"a header of {size} bytes")
        return self.file.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.file.seek(offset, whence)

    def tell(self) -> int:
        return self.file.tell()
