"""Links, submodules and look-alike names: what a patch may not do to sealed and production paths (section 1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .canonical import escape
from .check import Change
from .fold import folded
from .globs import text
from .records import Class
from .stage import Blob, Tree

LINK, SUBMODULE = 0o120000, 0o160000

HOPS = 40
"""Links followed on one way, as the kernel does."""

Read = Callable[[str], bytes]
ClassOf = Callable[[bytes], Class]


class Leaves(Exception):
    """A link's way ends outside the repository, or never."""


def wrong_links(
    base: Tree, merged: Tree, changes: Iterable[Change], sealed: Iterable[bytes], class_of: ClassOf, read: Read
) -> dict[str, str]:
    """Path to what is wrong with a link or submodule.

    A link or submodule of the patch may not enter, leave or replace a sealed path. One in the production paths of the
    merged tree may not lead out of them; one that base has too, leading to the same place, is base's own affair.
    """
    changed = {change.path: change for change in changes}
    special = {path: blob for path, blob in merged.files.items() if blob.mode in (LINK, SUBMODULE)}
    gone = {path for path, change in changed.items() if change.old is not None and change.old.mode in (LINK, SUBMODULE)}
    if not special and not gone:
        return {}
    guarded = _with_folders(sealed)
    after, before = _Links(merged, read), _Links(base, read)
    found: dict[str, str] = {}
    for path in sorted(special.keys() | gone):
        why = ""
        if path in changed:
            why = _touches_sealed(path, changed[path], guarded, class_of, after, before)
        if not why and path in special:
            why = _leaves_product(path, special[path], base, class_of, after, before)
        if why:
            found[escape(path)] = why
    return found


def collisions(changes: Iterable[Change], sealed: Iterable[bytes]) -> dict[str, str]:
    """Path of the patch to the sealed path, or folder of sealed files, that it is on some disk but is not here."""
    names: dict[str, bytes] = {}
    for path in sealed:
        names.setdefault(folded(text(path)), path)
        folder = path.rpartition(b"/")[0]
        if folder:
            names.setdefault(folded(text(folder)), folder)
    exact = set(names.values())
    found: dict[str, str] = {}
    for change in changes:
        if change.new is None or change.path in exact:
            continue
        for part in _upwards(change.path):
            twin = names.get(folded(text(part)))
            if twin is not None and twin != part and part not in exact:
                found[escape(change.path)] = escape(twin)
                break
    return found


def _upwards(path: bytes) -> Iterable[bytes]:
    while path:
        yield path
        path = path.rpartition(b"/")[0]


def _with_folders(paths: Iterable[bytes]) -> set[bytes]:
    return {part for path in paths for part in _upwards(path)}


class _Links:
    """Where the links of one tree lead, resolved as a kernel would, inside the repository only."""

    def __init__(self, tree: Tree, read: Read) -> None:
        self._files = tree.files
        self._read = read
        self._targets: dict[bytes, bytes] = {}

    def target(self, path: bytes, blob: Blob) -> bytes:
        """The text of a link."""
        if path not in self._targets:
            self._targets[path] = blob.data if blob.data is not None else self._read(blob.oid)
        return self._targets[path]

    def end(self, path: bytes) -> bytes:
        """The path that ``path`` leads to, every link on the way followed. Raises Leaves."""
        waiting = path.split(b"/")[::-1]
        here: list[bytes] = []
        hops = 0
        while waiting:
            part = waiting.pop()
            if part in (b"", b"."):
                continue
            if part == b"..":
                if not here:
                    raise Leaves("it leads out of the repository")
                here.pop()
                continue
            here.append(part)
            at = b"/".join(here)
            blob = self._files.get(at)
            if blob is None:
                continue
            if blob.mode == SUBMODULE and (waiting or at != path):
                raise Leaves(f"it leads into the submodule {escape(at)}")
            if blob.mode == LINK:
                hops += 1
                target = self.target(at, blob)
                if target.startswith(b"/"):
                    raise Leaves(f"its target is absolute: {escape(target)[:200]}")
                if hops > HOPS:
                    raise Leaves("its chain of links has no end")
                here.pop()
                waiting.extend(target.split(b"/")[::-1])
        return b"/".join(here)

    def place(self, path: bytes) -> tuple[bytes, str]:
        """(where it leads, "") or (nothing, why it leads nowhere)."""
        try:
            return self.end(path), ""
        except Leaves as error:
            return b"", str(error)


def _touches_sealed(path: bytes, change: Change, guarded: set[bytes], class_of: ClassOf, after: _Links, before: _Links) -> str:
    """A link or submodule that comes, goes or changes, and what it has to do with sealed paths."""
    if path in guarded:
        return "a link or submodule replaces, or was, a sealed path"
    if class_of(path) == "oracle":
        return "a link or submodule in the sealed folder"
    for entry, links in ((change.new, after), (change.old, before)):
        if entry is not None and entry.mode == LINK:
            end, _ = links.place(path)
            if end and (end in guarded or class_of(end) == "oracle"):
                return f"it leads to the sealed {escape(end)}"
    return ""


def _leaves_product(path: bytes, blob: Blob, base: Tree, class_of: ClassOf, after: _Links, before: _Links) -> str:
    if class_of(path) != "product":
        return ""
    same = base.files.get(path)
    if blob.mode == SUBMODULE:
        return "" if same == blob else "a submodule: its files are not in this repository"
    end, why = after.place(path)
    if same is not None and same.mode == LINK and before.place(path) == (end, why):
        return ""
    if why:
        return why
    if end and "product" in (class_of(end), class_of(end + b"/x")):
        return ""
    return f"it leaves the production paths, to {escape(end) or 'the top of the repository'}"
