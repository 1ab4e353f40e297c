"""Every changed path has one class; where two could claim it, the strictest counts (section 0).

The built-in rules for what runs beside the tests (harness and stricter) look at the folded name (case and Unicode
normalisation taken away): on some disks CONFTEST.PY is conftest.py. Policy's globs look at the bytes.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator

import msgspec

from .check import Change
from .claims import ORDER, RANK, Claims, Globs, Names, built_in, stricter
from .fold import folded
from .globs import text
from .policy import Policy
from .pyproject import compare_pyproject, compare_setup_cfg
from .records import Class

LEFT = ("ci", ".ci")
"""The gate's own folders: harness where nothing more exact claims what is in them."""

REASON: dict[Class, str] = {
    "workflow": "a CI system runs it",
    "harness": "it decides how tests run, or what runs before them",
    "oracle": "it is part of the oracle",
    "environment": "it decides what is installed or built",
}

TABLES = {"pyproject.toml": compare_pyproject, "setup.cfg": compare_setup_cfg}
"""Files whose class depends on what differs in them, anywhere."""

LAST = (b"l", b"L", b"g", b"G", b".", b" ")
"""Last bytes of names that could fold to one of TABLES: spares the others the folding."""

ENDS = (".", " ")

IMPORTABLE = re.compile(r"(?P<name>[^/.]+)(?:/__init__)?(?:\.(?:py|pyc|pyw)|(?:\.[^/]*)?\.(?:so|pyd))", re.DOTALL)


class Folder(msgspec.Struct, frozen=True):
    """What is known of a path once its folder is known."""

    ours: Class | None
    our_names: Names | None
    theirs: Class | None
    their_names: Names | None
    left: bool
    top: bool


class Rules:
    """What decides a class, sorted once per gate. ``of`` makes them."""

    def __init__(self, claims: Claims, sealed: frozenset[bytes], roots: tuple[str, ...], shadows: frozenset[str]) -> None:
        self.globs = Globs(claims)
        self.sealed = sealed
        self.sealed_folders = frozenset(folder for path in sealed for folder in _folders(path))
        self.roots, self.shadows = roots, shadows
        self.folders: dict[str, Folder] = {}

    @classmethod
    def of(cls, policy: Policy, sealed: Iterable[bytes], shadows: Iterable[str] = (), test_roots: Iterable[str] = ()) -> Rules:
        """Rules of base's ``policy``; ``sealed`` are the oracle's paths, ``test_roots`` what pytest puts on sys.path.

        ``shadows``: module names that a patch must not bring to the top of sys.path: the standard library's and the
        environment's, without those that base has there already (``new_shadows``).
        """
        paths = policy.paths
        claims: Claims = {
            "workflow": paths.workflow,
            "harness": paths.harness,
            "oracle": paths.sealed,
            "environment": paths.environment,
            "cassette": paths.cassette,
            "product": paths.product,
            "proposed": paths.proposed,
            "docs": paths.docs,
        }
        return cls(
            claims, frozenset(sealed), tuple(map(folded, roots(policy, test_roots))), frozenset(map(str.casefold, shadows))
        )

    def folder(self, folder: str) -> Folder:
        """What a folder decides; asked once per folder."""
        known = self.folders.get(folder)
        if known is None:
            fold = folded(folder)
            top = any(
                f"{where}/" in self.roots or (where == "" and "" in self.roots) for where in (fold, fold.rpartition("/")[0])
            )
            left = fold.partition("/")[0] in LEFT
            known = Folder(*built_in().of_folder(fold), *self.globs.of_folder(folder), left, top and bool(self.shadows))
            self.folders[folder] = known
        return known

    def shadowed(self, path: str) -> str:
        """The module whose place at the top of sys.path this path would take, "" for none."""
        fold = folded(path)
        for root in self.roots:
            module = top_module(fold, root)
            if module in self.shadows:
                return module
        return ""


def roots(policy: Policy, test_roots: Iterable[str] = ()) -> tuple[str, ...]:
    """Prefixes of paths that are on sys.path: the top of the repository, policy's ``pythonpath``, and ``test_roots``."""
    named = {"" if root in ("", ".") else root.removeprefix("./").strip("/") + "/" for root in (".", *policy.pythonpath)}
    return tuple(sorted(named.union(test_roots)))


def roots_of_tests(modules: Iterable[bytes], files: Container[bytes]) -> frozenset[str]:
    """What pytest puts on sys.path for test modules: of each, the nearest folder upwards that is no package."""
    found = set()
    for module in modules:
        folder = module.rpartition(b"/")[0]
        while folder and folder + b"/__init__.py" in files:
            folder = folder.rpartition(b"/")[0]
        found.add(text(folder) + "/" if folder else "")
    return frozenset(found)


def top_module(path: str, root: str) -> str:
    """The module that ``path`` brings to the top of sys.path when ``root`` is on it, "" for none."""
    if path.startswith(root):
        match = IMPORTABLE.fullmatch(path, len(root))
        if match is not None:
            return match["name"]
    return ""


def new_shadows(
    policy: Policy, base: Iterable[bytes], installed: Iterable[str] = (), test_roots: Iterable[str] = ()
) -> frozenset[str]:
    """Names of the standard library and of ``installed`` modules that base's own tree does not shadow already."""
    names = {name.casefold() for name in (*sys.stdlib_module_names, *installed)}
    places = roots(policy, test_roots)
    deepest = max(root.count("/") for root in places) + 1
    for path in base:
        if path.count(b"/") <= deepest:
            for root in places:
                names.discard(top_module(text(path), root).casefold())
    return frozenset(names)


def classify(path: bytes, rules: Rules) -> Class:
    """The class of a path, by its name alone."""
    return explain(path, rules)[0]


def explain(path: bytes, rules: Rules) -> tuple[Class, str]:
    """(class, why where it is not plain policy). The strictest class that claims the path; ``other`` when none does."""
    folder, _, name = text(path).rpartition("/")
    known = rules.folders.get(folder) or rules.folder(folder)
    fold = name.lower() if name.isascii() and not name.endswith(ENDS) else folded(name)
    best = known.ours
    if known.our_names is not None:
        named = known.our_names.of(fold)
        if named is not None:
            best = stricter(best, named)
    if path in rules.sealed:
        if best == "harness" and fold.startswith("conftest."):
            best = None
        best = stricter(best, "oracle")
    elif path in rules.sealed_folders:  # a file where base has a folder of sealed files
        best = stricter(best, "oracle")
    if known.top and best != "workflow":
        module = rules.shadowed(f"{folder}/{name}" if folder else name)
        if module:
            return "harness", f"it would be imported in place of {module}"
    if best is None and known.left:
        best = "harness"
    claim = known.theirs
    if known.their_names is not None:
        named = known.their_names.of(name)
        if named is not None:
            claim = stricter(claim, named)
    if claim is not None and (best is None or RANK[claim] <= RANK[best]):
        return claim, ""
    return (best, REASON[best]) if best is not None else ("other", "")


def classify_change(change: Change, rules: Rules, read: Callable[[str], bytes]) -> tuple[Class, str]:
    """(class, why) of a change: the strictest of both sides, of its name, and of the tables that differ in it."""
    entry = change.new or change.old
    assert entry is not None
    path = entry.path
    found, why = explain(path, rules)
    compare = TABLES.get(folded(text(path.rpartition(b"/")[2]))) if path.endswith(LAST) or path[-1:] >= b"\x80" else None
    if compare is None:
        return found, why
    sides = []
    for entry in (change.old, change.new):
        if entry is not None and entry.mode not in (0o100644, 0o100755):
            return _strictest([found, "harness"]), "it is no plain file"
        sides.append(None if entry is None else read(entry.oid))
    differing = compare(*sides)
    worst = _strictest([found, *differing])
    return (
        worst,
        why if worst == found and why else f"what differs in it: {', '.join(name for name in ORDER if name in differing)}",
    )


def _folders(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path


def _strictest(classes: Iterable[Class]) -> Class:
    return min(classes, key=RANK.__getitem__)
