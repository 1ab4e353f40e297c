"""What was fetched from a workspace stays in a bare repository of ours, fetched incrementally, one gate at a time."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..errors import EngineUnavailable
from .git import WAIT, Ended, Git, private_folder, write_if_changed

KEPT, PACKS = 400, 60
"""Commits that are remembered, and packs that are not yet joined."""

HARMLESS = """
    badDate badDateOverflow badEmail badFilemode badName badTimezone extraHeaderEntry gitignoreSymlink mailmapSymlink
    gitattributesSymlink gitmodulesParse gitmodulesLarge gitmodulesSymlink missingEmail missingNameBeforeEmail
    missingSpaceBeforeDate missingSpaceBeforeEmail missingTaggerEntry badTagName multipleAuthors nulInCommit zeroPaddedDate
    zeroPaddedFilemode
"""
"""Flaws in old commits of honest projects, none of which bends a tree: noted by fsck, not refused."""

CONFIG = """[core]
	repositoryformatversion = {version}
	filemode = true
	bare = true
	hooksPath = /dev/null
	fsmonitor = false
	logAllRefUpdates = false
	attributesFile = /dev/null
	excludesFile = /dev/null
	commitGraph = false
	multiPackIndex = false
	protectHFS = true
	protectNTFS = true
[transfer]
	fsckObjects = true
[fetch]
	unpackLimit = 1
	writeCommitGraph = false
[gc]
	auto = 0
[maintenance]
	auto = false
[protocol]
	version = 2
[protocol "file"]
	allow = always
{extra}[fetch "fsck"]
"""


class Cache:
    """A bare repository of ours that holds what was fetched from one workspace. A ref under ``refs/kept`` says that a

    commit is there with everything it needs: git writes it after the objects were checked and found connected.
    """

    def __init__(self, git: Git, key: str, object_format: str) -> None:
        self.git = git
        self.path = git.home / key
        self.lock_path = git.home / f"{key}.lock"
        self.object_format = object_format

    def ready(self) -> None:
        """The folder is there, ours alone, and configured as written here, whatever happened to it before."""
        for name in ("", "objects", "objects/pack", "objects/info", "refs", "refs/kept"):
            private_folder(self.path / name)
        extra = "" if self.object_format == "sha1" else "[extensions]\n\tobjectformat = sha256\n"
        text = CONFIG.format(version=1 if extra else 0, extra=extra) + "".join(
            f"\t{name} = ignore\n" for name in HARMLESS.split()
        )
        write_if_changed(self.path / "config", text.encode())
        write_if_changed(self.path / "HEAD", b"ref: refs/heads/none\n")
        for name in ("objects/info/alternates", "objects/info/http-alternates", "info/grafts", "info/attributes"):
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                (self.path / name).unlink()

    def has(self, oid: str) -> bool:
        """Whether the commit was fetched whole."""
        try:
            return (self.path / "refs/kept" / oid).read_text() == oid + "\n"
        except OSError:
            return False

    @contextlib.contextmanager
    def locked(self) -> Iterator[int]:
        """One gate at a time writes. Children inherit the lock, so that it outlives a killed gate as long as they do."""
        handle = os.open(self.lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            deadline = time.monotonic() + WAIT
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise EngineUnavailable(str(self.lock_path), f"another gate held it for {WAIT:.0f} s") from None
                    time.sleep(0.02)
            yield handle
        finally:
            os.close(handle)

    def tidy(self) -> None:
        """Under the lock nobody else writes: what a killed git left (locks, half packs) goes, old refs go, packs are joined."""
        for folder in (self.path, self.path / "refs/kept"):
            for left in folder.glob("*.lock"):
                left.unlink()
        packs = self.path / "objects/pack"
        for left in (*packs.glob("tmp_*"), *self.path.glob(".*.*")):
            left.unlink()
        kept = sorted(self.path.glob("refs/kept/*"), key=lambda path: path.stat().st_mtime, reverse=True)
        for old in kept[KEPT:]:
            old.unlink()
        if len(list(packs.glob("*.pack"))) > PACKS:
            self.git.run(["repack", "-a", "-d", "-q"], at=self.path)

    def fetch(self, source: Path, wanted: Iterable[str], handle: int, *, shallow: bool = False) -> Ended:
        """Brings ``wanted`` (full hashes) over, with their history."""
        self.tidy()
        command = ["fetch", "--quiet", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules", "--no-auto-maintenance"]
        if shallow:
            command.append("--update-shallow")
        command += [f"--upload-pack={self.git.serving()}", "--", str(source), *(f"{oid}:refs/kept/{oid}" for oid in wanted)]
        ended = self.git.run(command, at=self.path, keep=(handle,))
        if ended.code:
            self.tidy()
        return ended


def cache_key(source: Path) -> str:
    """One cache per workspace path."""
    return hashlib.sha256(os.fsencode(source)).hexdigest()[:32]
