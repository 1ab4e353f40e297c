"""Commits, trees and blobs are read from the private cache by object id; no name is resolved and no filter runs."""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from ..core.canonical import escape
from ..core.check import Change, Entry
from ..core.stage import Blob, Tree
from ..errors import EngineUnavailable, ProbatumError, UsageError
from .git import Ended, Git, disk_full, finish

AT_ONCE = 400
"""Requests that are written before answers are read; together they fit in a pipe, so neither side can block the other."""

MODES = {b"100644": 0o100644, b"100664": 0o100644, b"100755": 0o100755, b"120000": 0o120000, b"160000": 0o160000}

TWISTED = re.compile(rb"[\t/](?:\.|\.\.|\.git)?[/\0]", re.IGNORECASE)
"""A path component that is empty, ``.``, ``..`` or ``.git`` in the output of ``ls-tree -z``."""


class Commit(msgspec.Struct, frozen=True):
    """What a commit object says of its tree and parents."""

    tree: str
    parents: tuple[str, ...]


class Objects:
    """Reads one bare repository. Safe to call from several threads. ``close`` ends its one process."""

    def __init__(self, git: Git, at: Path) -> None:
        self._git = git
        self._at = at
        self._lock = threading.Lock()
        self._reader: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Objects:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing of it is left running."""
        with self._lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                assert reader.stdin is not None and reader.stdout is not None
                with contextlib.suppress(OSError):
                    reader.stdin.close()
                reader.stdout.close()
                reader.kill()
                reader.wait()

    # -- single objects ---------------------------------------------------------------------------
    def read(self, oid: str) -> bytes:
        """The bytes of a blob."""
        return self.content(oid, "blob")

    def many(self, oids: Iterable[str]) -> Iterator[bytes]:
        """The bytes of many blobs, in the order asked."""
        for part in _batches(oids, AT_ONCE):
            with self._lock:
                self._ask("contents", part)
                found = [self._answer("blob") for _ in part]
            yield from found

    def sizes(self, oids: Iterable[str]) -> Iterator[int]:
        """The sizes in bytes of many objects, without reading them."""
        for part in _batches(oids, AT_ONCE):
            with self._lock:
                self._ask("info", part)
                found = [self._header()[1] for _ in part]
            yield from found

    def absent(self, oids: Iterable[str]) -> frozenset[str]:
        """Those of ``oids`` that are no blob of the cache."""
        found: set[str] = set()
        for part in _batches(oids, AT_ONCE):
            with self._lock:
                self._ask("info", part)
                found.update(oid for oid in part if self._header()[0] != "blob")
        return frozenset(found)

    def content(self, oid: str, kind: str) -> bytes:
        """The bytes of one object of type ``kind``. Raises ProbatumError when it is missing or of another type."""
        with self._lock:
            self._ask("contents", [oid])
            return self._answer(kind)

    def has(self, oid: str) -> bool:
        """Whether the object is there."""
        with self._lock:
            self._ask("info", [oid])
            return self._header()[0] != "missing"

    def commit(self, oid: str) -> Commit:
        """The tree and parents of a commit. Raises UsageError when it is no commit."""
        with self._lock:
            self._ask("info", [oid])
            kind, _ = self._header()
        if kind != "commit":
            raise UsageError(
                oid, "not in the repository" if kind == "missing" else f"is a {kind}, not a commit", "name a commit"
            )
        tree, parents = "", []
        for line in self.content(oid, "commit").split(b"\n"):
            word, _, value = line.partition(b" ")
            if word == b"tree":
                tree = value.decode("ascii")
            elif word == b"parent":
                parents.append(value.decode("ascii"))
            else:
                break
        return Commit(tree, tuple(parents))

    def _ask(self, command: str, oids: list[str]) -> None:
        if self._reader is None:
            self._reader = self._git.start(["cat-file", "--batch-command"], at=self._at, stdin=subprocess.PIPE)
        assert self._reader.stdin is not None
        try:
            self._reader.stdin.write("".join(f"{command} {oid}\n" for oid in oids).encode("ascii"))
            self._reader.stdin.flush()
        except OSError as error:
            raise EngineUnavailable("git cat-file", f"it ended: {error.strerror}") from None

    def _header(self) -> tuple[str, int]:
        assert self._reader is not None and self._reader.stdout is not None
        words = self._reader.stdout.readline().split()
        if len(words) == 3:
            return words[1].decode("ascii"), int(words[2])
        if len(words) == 2:
            return words[1].decode("ascii"), 0
        raise EngineUnavailable("git cat-file", "it ended without an answer")

    def _answer(self, kind: str) -> bytes:
        found, size = self._header()
        if found in ("missing", "ambiguous"):
            raise ProbatumError("git", f"a {kind} is {found} in the cache", "remove the cache folder and run the gate again")
        assert self._reader is not None and self._reader.stdout is not None
        data = self._reader.stdout.read(size)
        if len(data) != size or self._reader.stdout.read(1) != b"\n":
            raise EngineUnavailable("git cat-file", "it ended in the middle of an answer")
        if found != kind:
            raise ProbatumError("git", f"a {found} where a {kind} was expected")
        return data

    # -- trees ------------------------------------------------------------------------------------
    def compare(self, old: str, new: str) -> tuple[Tree, Tree, tuple[Change, ...]]:
        """(tree ``old``, tree ``new``, what differs), by two processes at once."""
        listing = self._git.start(["ls-tree", "-r", "-z", "--full-tree", old], at=self._at)
        diffing = self._git.start(
            ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--ignore-submodules=none", old, new], at=self._at
        )
        try:
            before = parse_tree(_good("ls-tree", finish(listing)))
            changes = parse_changes(_good("diff-tree", finish(diffing)))
        except BaseException:
            listing.kill()
            diffing.kill()
            raise
        if not changes:
            return Tree(before), Tree(before), ()
        after = dict(before)
        for change in changes:
            if change.new is None:
                del after[change.path]
        for change in changes:
            if change.new is not None:
                after[change.path] = Blob(change.new.mode, change.new.oid)
        return Tree(before), Tree(after), changes

    def tree(self, oid: str) -> Tree:
        """Every file, link and submodule of a tree."""
        return Tree(parse_tree(_good("ls-tree", self._git.run(["ls-tree", "-r", "-z", "--full-tree", oid], at=self._at))))

    # -- history ----------------------------------------------------------------------------------
    def merge_base(self, base: str, head: str) -> str:
        """The merge base, "" when the two share no history; ``base`` itself when it is an ancestor of ``head``."""
        current = head
        for _ in range(64):  # most branches are short and straight: no process then
            if current == base:
                return base
            parents = self.commit(current).parents
            if len(parents) != 1 or not self.has(parents[0]):  # a shallow clone ends somewhere
                break
            current = parents[0]
        ended = self._git.run(["merge-base", base, head], at=self._at)
        if ended.code not in (0, 1):
            raise ProbatumError("git merge-base", ended.reason)
        return ended.out.decode("ascii").strip()

    def merge(self, base: str, head: str) -> tuple[str, tuple[bytes, ...]]:
        """(tree, ()) of a clean merge of two commits, or ("", paths in conflict)."""
        command = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", base, head]
        ended = self._git.run(command, at=self._at)
        tree, *paths = ended.out.split(b"\0")
        if ended.code == 0:
            return tree.decode("ascii"), ()
        if ended.code == 1:
            return "", tuple(sorted({path for path in paths if path})) or (b".",)
        disk_full(ended, self._at)
        raise UsageError("git merge-tree", ended.reason, "rebase the patch on its base")

    def landed(self, commit: str, base: str, merged_tree: str) -> str:
        """ "" when ``commit`` has ``merged_tree`` and ``base`` as first parent; else what is different."""
        found = self.commit(commit)
        if not merged_tree or found.tree != merged_tree:
            return f"its tree is {found.tree}, judged was {merged_tree or 'a conflict'}"
        if found.parents[:1] != (base,):
            return f"its first parent is {(found.parents or ('none',))[0]}, judged was {base}"
        return ""


def parse_tree(listing: bytes) -> dict[bytes, Blob]:
    """The output of ``ls-tree -r -z``. Raises ProbatumError for a tree that git itself would not write."""
    twisted = TWISTED.search(listing)
    if twisted is not None:
        _refuse_tree(listing, twisted.start())
    files: dict[bytes, Blob] = {}
    lines = listing.split(b"\0")
    if lines.pop():
        raise EngineUnavailable("git ls-tree", "it ended in the middle of a line")
    for line in lines:
        facts, _, path = line.partition(b"\t")
        mode, _, oid = facts.split(b" ")
        files[path] = Blob(MODES[mode], oid.decode("ascii"))
    if len(files) != len(lines):
        raise ProbatumError("git", "a tree names one path twice", "the commit is damaged or forged: make it again with git")
    return files


def parse_changes(raw: bytes) -> tuple[Change, ...]:
    """The output of ``diff-tree -r -z --raw --no-renames``."""
    fields = raw.split(b"\0")
    changes = []
    for facts, path in zip(fields[0::2], fields[1::2], strict=False):
        old_mode, new_mode, old_oid, new_oid, status = facts.split(b" ")
        old = None if status == b"A" else Entry(MODES[old_mode[1:]], old_oid.decode("ascii"), path)
        new = None if status == b"D" else Entry(MODES[new_mode], new_oid.decode("ascii"), path)
        changes.append(Change(status.decode("ascii"), old, new))
    return tuple(changes)


def _refuse_tree(listing: bytes, at: int) -> None:
    path = listing[: listing.find(b"\0", at + 1)].rpartition(b"\t")[2]
    raise ProbatumError(escape(path), "no path that git would write", "the commit is damaged or forged: make it again with git")


def _good(name: str, ended: Ended) -> bytes:
    if ended.code:
        raise ProbatumError(f"git {name}", ended.reason)
    return ended.out


def _batches(items: Iterable[str], size: int) -> Iterator[list[str]]:
    source = iter(items)
    while part := list(itertools.islice(source, size)):
        yield part
