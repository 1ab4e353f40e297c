"""The sealed files as a lease command sees them: plain files of a folder, or a revision's blobs."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..core.canonical import escape
from ..core.closure import Closures
from ..core.globs import compiled, text
from ..core.policy import FILE, LEDGER, SEAL, STRICT, Policy
from ..core.seal import parse_seal, rules_of
from ..core.stage import Blob, Tree
from ..errors import PolicyError, UsageError

_NOT_SOURCE = frozenset({b".git", b"__pycache__", b"node_modules", b".venv"})


class Sealed(NamedTuple):
    """What a lease command works on. ``ledger`` is None where there is none; ``moved`` are files that differ from the seal."""

    policy: Policy
    files: Mapping[bytes, bytes]
    modules: tuple[str, ...]
    ledger: bytes | None
    moved: list[str]

    def closures(self) -> Closures:
        """Digests over the sealed files."""
        return Closures(self.files, [root.encode("utf-8", "surrogateescape") for root in self.policy.pythonpath])


class Folder(Mapping[bytes, bytes]):
    """Files of a plain folder, read when asked for. ``pins``: what a seal says their blob ids are."""

    def __init__(self, top: Path, paths: list[bytes], pins: Mapping[bytes, str], moved: list[str]) -> None:
        self.top, self.paths, self.pins, self.moved = os.fsencode(top), dict.fromkeys(paths), pins, moved
        self.known: dict[bytes, bytes] = {}

    def __getitem__(self, path: bytes) -> bytes:
        if path not in self.paths:
            raise KeyError(path)
        if path not in self.known:
            try:
                with open(os.path.join(self.top, path), "rb") as file:
                    self.known[path] = file.read()
            except OSError as error:
                raise UsageError(escape(path), f"cannot be read: {error.strerror}", "make it readable") from None
            if path in self.pins and self.pins[path] != _blob_id(self.known[path], len(self.pins[path])):
                self.moved.append(escape(path))
        return self.known[path]

    def __contains__(self, path: object) -> bool:
        return path in self.paths

    def __iter__(self) -> Iterator[bytes]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


def plain(top: Path) -> Sealed:
    """Plain files: no git needed. Policy and seal are read where they are there; without a policy, the strict defaults."""
    if not top.is_dir():
        raise UsageError(str(top), "is no folder", "name the repository's top folder with --repo")
    policy_bytes = _file(top, FILE)
    policy = STRICT if policy_bytes is None else _policy(policy_bytes)
    moved: list[str] = []
    if policy.layout == "in-place" and (data := _file(top, SEAL)) is not None:
        seal, problems = parse_seal(data)
        if problems:
            raise PolicyError(SEAL, problems[0].removeprefix(f"{SEAL}: "))
        there = [path for path in seal.paths if os.path.isfile(os.path.join(os.fsencode(top), path))]
        pins = {path: seal.paths[path].oid for path in there}
        files = Folder(top, sorted(there), pins, moved)
        modules = tuple(escape(path) for path in seal.modules)
        return Sealed(policy, files, modules, _file(top, LEDGER), moved)
    claimed = compiled(policy.paths.sealed)
    every = sorted(_walk(top, policy))
    chosen = {path for path in every if claimed.fullmatch(text(path))}
    tree = {path: Blob(0o100644, oid=text(path)) for path in every}
    rules = rules_of(Tree(tree), lambda name: _read(top, name))
    found = {path for path in chosen if rules.is_module(path)}
    if policy.layout == "in-place":
        chosen |= {path for path in every if path.endswith(b"conftest.py") and _above(path, found)}
    return Sealed(policy, Folder(top, sorted(chosen), {}, moved), _text(found), _file(top, LEDGER), moved)


@contextlib.contextmanager
def revision(top: Path, rev: str) -> Iterator[Sealed]:
    """The blobs of a revision, with its own policy and seal; strict defaults where it has no policy."""
    import time

    from ..core.lease_plan import sealed_files
    from ..host.git import cache_folder
    from ..host.observe import sealed_oracle
    from ..host.workspace import Workspace

    with Workspace(top, cache_folder()) as workspace:
        (commit,) = workspace.commits([rev])
        objects = workspace.objects
        tree = objects.tree(objects.commit(commit).tree)
        found = sealed_files(tree, objects.read)
        policy = _policy(found[FILE.encode()]) if FILE.encode() in found else STRICT
        oracle = sealed_oracle(tree, policy, objects, int(time.time()))
        entry = tree.files.get(LEDGER.encode())
        if entry is not None and LEDGER.encode() not in found:
            raise UsageError(LEDGER, f"is no regular file at {rev} (mode {entry.mode:o})", "make it a file")
        ledger = found[LEDGER.encode()] if entry is not None else None
        yield Sealed(policy, sealed_files(oracle.tree, objects.read), _text(oracle.modules), ledger, [])


def sealed(top: Path, rev: str) -> contextlib.AbstractContextManager[Sealed]:
    """Plain files, or a revision's."""
    return revision(top, rev) if rev else contextlib.nullcontext(plain(top))


def _policy(data: bytes) -> Policy:
    from ..host.drive import load

    return load(data)


def _file(top: Path, name: str) -> bytes | None:
    path = top / name
    if path.is_symlink() or (path.exists() and not path.is_file()) or path.parent.is_symlink():
        raise UsageError(name, "is no regular file", "make it one: what the gate reads is never a link")
    return _read(top, name) if path.exists() else None


def _read(top: Path, name: str) -> bytes:
    try:
        return (top / name).read_bytes()
    except OSError as error:
        raise UsageError(name, f"cannot be read: {error.strerror}", "make it readable") from None


def _walk(top: Path, policy: Policy) -> Iterator[bytes]:
    """Regular files below ``top`` that a sealed glob can reach, and the conftest and configuration files above them."""
    start = os.fsencode(top)
    heads = {glob.partition("*")[0].rpartition("/")[0].encode("utf-8", "surrogateescape") for glob in policy.paths.sealed}
    stack = [b""]
    while stack:
        folder = stack.pop()
        with os.scandir(os.path.join(start, folder)) as entries:
            for entry in entries:
                path = folder + b"/" + entry.name if folder else entry.name
                if entry.is_dir(follow_symlinks=False):
                    if entry.name not in _NOT_SOURCE and any(_on_the_way(path, head) for head in heads):
                        stack.append(path)
                elif entry.is_file(follow_symlinks=False):
                    yield path


def _on_the_way(path: bytes, head: bytes) -> bool:
    return not head or path == head or path.startswith(head + b"/") or head.startswith(path + b"/")


def _above(conftest: bytes, modules: set[bytes]) -> bool:
    folder = conftest.rpartition(b"/")[0]
    return conftest.rpartition(b"/")[2] == b"conftest.py" and any(
        path.startswith(folder + b"/") or not folder for path in modules
    )


def _text(paths: set[bytes] | tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(escape(path) for path in sorted(paths))


def _blob_id(data: bytes, length: int) -> str:
    hasher = hashlib.sha256 if length == 64 else hashlib.sha1
    return hasher(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
