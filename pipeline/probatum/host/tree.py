"""A tree is laid out once per digest, as raw bytes: no filter, no attribute, no link is followed on the way."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from ..core.canonical import escape
from ..core.fold import folded
from ..core.stage import Blob, Tree
from ..errors import EngineUnavailable, UsageError

WHEN = 1_700_000_000
"""Modification time of every file and folder, in seconds: nothing tells one tree from another by its clock."""

LINK, SUBMODULE = 0o120000, 0o160000

Read = Callable[[str], bytes]
Many = Callable[[Iterable[str]], Iterator[bytes]]


class Trees:
    """Lays trees out under ``work``. Safe to call from several threads.

    ``read`` gives one blob by object id; ``many``, where given, gives many in the order asked and is faster.
    """

    def __init__(self, read: Read, work: Path, many: Many | None = None) -> None:
        self._read, self._many = read, many
        self._work = work
        self._lock = threading.Lock()
        self._laid: dict[str, Path] = {}
        self._first: dict[tuple[int, str], bytes] = {}

    def __call__(self, tree: Tree) -> Path:
        """The folder that holds ``tree``: files 0644 or 0755, folders 0755, links as links, submodules as empty folders.

        Raises UsageError for a path that no file system could hold safely, EngineUnavailable when there is no room.
        """
        with self._lock:
            folder = self._laid.get(tree.digest)
            if folder is None:
                folder = self._work / tree.digest.removeprefix("sha256:")[:32]
                try:
                    self._lay(tree, folder)
                except OSError as error:
                    shutil.rmtree(folder, ignore_errors=True)
                    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EROFS, errno.EACCES):
                        raise EngineUnavailable(
                            str(self._work), f"cannot lay out a tree: {error.strerror}", "make room"
                        ) from None
                    raise
                except BaseException:
                    shutil.rmtree(folder, ignore_errors=True)
                    raise
                self._laid[tree.digest] = folder
            return folder

    def __enter__(self) -> Trees:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing that it laid out is left."""
        with self._lock:
            for folder in self._laid.values():
                shutil.rmtree(folder, ignore_errors=True)
            self._laid.clear()
            self._first.clear()

    def _lay(self, tree: Tree, folder: Path) -> None:
        check(tree)
        self._work.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o755)
        os.chmod(folder, 0o755)
        top = os.fsencode(folder)
        folders = [top, *(top + b"/" + path for path in _folders(tree))]
        for path in folders[1:]:
            os.mkdir(path)
            os.chmod(path, 0o755)
        for path, blob, data in self._contents(tree, top):
            _write(top + b"/" + path, blob.mode, data)
        for path in reversed(folders):
            os.utime(path, (WHEN, WHEN))

    def _contents(self, tree: Tree, top: bytes) -> Iterator[tuple[bytes, Blob, bytes]]:
        """What must be written. A stored blob that an earlier tree holds is linked instead: most trees of a gate differ in a
        few files. Bytes of our own making never are, so that a count of links tells nobody which tree is which."""
        stored = []
        for path, blob in tree.files.items():
            if blob.data is not None:
                yield path, blob, blob.data
            elif blob.mode != SUBMODULE and not self._linked(path, blob, top):
                stored.append((path, blob))
        oids = (blob.oid for _, blob in stored)
        contents = self._many(oids) if self._many is not None else map(self._read, oids)
        for (path, blob), data in zip(stored, contents, strict=True):
            yield path, blob, data
            self._first.setdefault((blob.mode, blob.oid), top + b"/" + path)

    def _linked(self, path: bytes, blob: Blob, top: bytes) -> bool:
        first = self._first.get((blob.mode, blob.oid))
        if first is None or first.startswith(top + b"/"):
            return False
        try:
            os.link(first, top + b"/" + path, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.EMLINK, errno.EPERM, errno.ENOTSUP, errno.ENOENT):
                return False
            raise
        return True


def check(tree: Tree) -> None:
    """Every path of the tree is one that can be laid out inside its folder; else UsageError."""
    folders = set()
    for path in tree.files:
        parts = path.split(b"/")
        for part in parts:
            if part in (b"", b".", b"..") or b"\0" in part or _is_git(part):
                raise UsageError(
                    escape(path), f"the component {escape(part)!r} cannot be laid out", "take it out of the commit"
                )
            if len(part) > 255:
                raise UsageError(escape(path)[:80] + "…", f"a name of {len(part)} bytes; 255 is the limit", "shorten it")
        if len(path) > 3500:
            raise UsageError(escape(path)[:80] + "…", f"a path of {len(path)} bytes; 3500 is the limit", "shorten it")
        for at in range(1, len(parts)):
            folders.add(b"/".join(parts[:at]))
    both = next((path for path in folders if path in tree.files), None)
    if both is not None:
        raise UsageError(escape(both), "is a file and a folder at once", "take one of them out of the commit")


def _is_git(part: bytes) -> bool:
    if len(part) < 4 or part[:1] not in b".gG\xe2\xef":
        return False
    name = folded(part.decode("utf-8", "surrogateescape"))
    return name in (".git", "git~1") or name.startswith((".git:", ".git/"))


def _folders(tree: Tree) -> list[bytes]:
    """Every folder that the tree needs, parents first."""
    found: set[bytes] = set()
    for path, blob in tree.files.items():
        folder = path if blob.mode == SUBMODULE else path.rpartition(b"/")[0]
        while folder and folder not in found:
            found.add(folder)
            folder = folder.rpartition(b"/")[0]
    return sorted(found)


def _write(path: bytes, mode: int, data: bytes) -> None:
    if mode == LINK:
        os.symlink(data, path)
        os.utime(path, (WHEN, WHEN), follow_symlinks=False)
        return
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fchmod(handle, 0o755 if mode == 0o100755 else 0o644)
        os.utime(handle, (WHEN, WHEN))
    finally:
        os.close(handle)
