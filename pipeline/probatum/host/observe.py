"""A patch is observed in git objects only: no file of it is executed, imported or checked out."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, cast

import msgspec

from ..core.canonical import encode, escape
from ..core.check import Change, Patch
from ..core.classes import Rules, classify, classify_change, new_shadows, roots_of_tests
from ..core.evidence import Subject
from ..core.globs import compiled, text
from ..core.links import collisions, wrong_links
from ..core.policy import BUILT_IN, FILE, LEDGER, MANIFEST, SEAL, STRICT, Policy
from ..core.records import ChangeRow, Class, Edit, PatchBody
from ..core.stage import Blob, Runtime, Tree
from ..errors import PolicyError, UsageError
from .objects import Objects
from .tree import check
from .workspace import Workspace

LINK, SUBMODULE = 0o120000, 0o160000

OUTPUT = b"ci_out"

LFS = b"version https://git-lfs.github.com/spec/"


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """What base says before anything of the patch is looked at. ``source`` is where the policy comes from,

    ``data`` its bytes (canonical ones of the built-in policy).
    """

    subject: Subject
    conflict: tuple[bytes, ...]
    chosen: str
    policy: Policy
    source: str
    data: bytes
    base: Tree
    merged: Tree
    changes: tuple[Change, ...]


Load = Callable[[bytes], Policy]
"""Reads ``ci/gate.yaml``: ``functools.partial(yaml12.load_policy, options=…)``."""


def look(workspace: Workspace, base: str | None, head: str | None, load: Load, default: Policy | None = None) -> Base:
    """Subject, base's policy and both trees. Raises UsageError (revisions) or PolicyError (base has no usable policy, and

    there is no ``default``).
    """
    subject, conflict, chosen = workspace.subject(base, head)
    objects = workspace.objects
    old = objects.commit(subject.base).tree
    if subject.merged_tree:
        before, after, changes = objects.compare(old, subject.merged_tree)
    else:  # the merge conflicts: nothing is scored; what head changed since the two parted is only shown
        before = objects.tree(old)
        parted, new = objects.commit(subject.merge_base).tree, objects.commit(subject.head).tree
        _, _, changes = objects.compare(parted, new)
        after = before
    policy, source, data = read_policy(before, objects.read, load, default)
    return Base(
        subject=subject,
        conflict=conflict,
        chosen=chosen,
        policy=policy,
        source=source,
        data=data,
        base=before,
        merged=after,
        changes=changes,
    )


def read_policy(
    base: Tree, read: Callable[[str], bytes], load: Load, default: Policy | None = None
) -> tuple[Policy, str, bytes]:
    """(base's policy, where it stands, its bytes): ``ci/gate.yaml``, else the built-in strict one where base has a manifest."""
    found = base.files.get(FILE.encode())
    if found is not None:
        if found.mode in (LINK, SUBMODULE):
            raise PolicyError(FILE, "is no plain file at base", "commit it as a file")
        data = read(found.oid)
        return load(data), FILE, data
    if MANIFEST.encode() in base.files:
        return STRICT, BUILT_IN, encode(STRICT)
    if default is not None:
        return default, "", encode(default)
    raise PolicyError(FILE, f"is not at base, and {MANIFEST} neither", "run probatum init and commit what it writes")


def observe(
    workspace: Workspace,
    seen: Base,
    *,
    environment: Runtime,
    probe: Tree,
    generated: Tree,
    installed: Iterable[str] = (),
    inputs: Iterable[str] = (),
    self_import: Iterable[str] = (),
    seed: str,
    now: int,
) -> tuple[Patch, PatchBody]:
    """What the checks plan from, and the record of what git says of the patch.

    ``installed``: top-level module names of the environment. ``now``: unix seconds. Facts that condemn base's oracle are
    in ``PatchBody.oracle``; they are findings, not errors.
    """
    policy, read = seen.policy, workspace.objects.read
    oracle = sealed_oracle(seen.base, policy, workspace.objects, now)
    sealed = oracle.tree
    # The patch may add or take away the __init__.py that decides what is put on sys.path: both states count.
    states = (side.with_files(sealed.files).files for side in (seen.base, seen.merged))
    on_path = frozenset().union(*(roots_of_tests(oracle.modules, files) for files in states))
    paths = msgspec.structs.replace(policy.paths, environment=(*policy.paths.environment, *inputs))
    ruled = msgspec.structs.replace(policy, paths=paths)  # what decided the environment is of its class, whatever its name
    rules = Rules.of(ruled, sealed.files, new_shadows(policy, seen.base.files, installed, on_path), on_path)
    bare = msgspec.structs.replace(ruled, paths=msgspec.structs.replace(paths, sealed=()))
    unclaimed = Rules.of(bare, sealed.files)
    changes = seen.changes
    edits: tuple[Edit, ...] = ()
    if oracle.seal is not None:
        from ..core import seal as seals

        edits = tuple(seals.edits(changes, oracle.seal, policy, seen.merged, read))
    as_oracle = {edit.path for edit in edits if edit.as_ == "oracle"}
    classes: dict[bytes, Class] = {}
    rows = []
    for change in changes:
        class_, why = classify_change(change, rules, read)
        if (
            oracle.seal is not None
            and class_ == "oracle"
            and claims(policy, change.path)
            and escape(change.path) not in as_oracle
        ):
            known = change.path in sealed.files
            class_, why = "proposed", "every sealed test in it is unchanged" if known else "nobody sealed it"
            if classify_change(change, unclaimed, read)[0] == "environment":  # a requirements file beside the tests
                class_, why = "environment", "nobody sealed it"
        classes[change.path] = class_
        rows.append(_row(change, class_, why))

    @functools.cache
    def class_of(path: bytes) -> Class:
        return classify(path, rules)

    guarded = [*sealed.files, *(name.encode() for name in (FILE, SEAL, MANIFEST, LEDGER))]
    body = PatchBody(
        layout=policy.layout,
        conflict=tuple(map(escape, seen.conflict)),
        changes=tuple(rows),
        links=wrong_links(seen.base, seen.merged, seen.changes, guarded, class_of, read),
        collisions=collisions(seen.changes, guarded),
        oracle=oracle.wrong,
        edits=edits,
        missing=missing(workspace, seen.merged, sealed, class_of),
        unfit=unfit(changes),
        self_import=tuple(sorted(self_import)),
        output=tuple(sorted(escape(path) for path in seen.merged.files if path == OUTPUT or path.startswith(OUTPUT + b"/"))),
    )
    patch = Patch(
        subject=seen.subject,
        policy=policy,
        changes=seen.changes,
        classes=classes,
        class_of=class_of,
        base=seen.base,
        merged=seen.merged,
        sealed=sealed,
        modules=oracle.modules,
        read=read,
        environment=environment,
        probe=probe,
        generated=generated,
        seed=seed,
        now=now,
    )
    return patch, body


class Oracle(msgspec.Struct, frozen=True, kw_only=True):
    """The oracle as a human sealed it, its test modules, and what is wrong with it, one line each. ``seal`` is None in

    the strict layout, and where base has no usable seal.
    """

    tree: Tree
    modules: tuple[bytes, ...]
    wrong: tuple[str, ...]
    seal: Any = None  # a core.seal.Seal, which only the layout in place loads


def sealed_oracle(base: Tree, policy: Policy, objects: Objects, now: int) -> Oracle:
    """The pinned blobs of base's seal (in place), or base's own files that a sealed glob claims (strict)."""
    if policy.layout == "strict":
        files = {path: blob for path, blob in base.files.items() if claims(policy, path)}
        modules, wrong = read_manifest(base, objects.read)
        return Oracle(tree=Tree(files), modules=modules, wrong=wrong)
    found = base.files.get(SEAL.encode())
    if found is None or found.mode in (LINK, SUBMODULE):
        return Oracle(tree=Tree({}), modules=(), wrong=(f"{SEAL} is not a file at base; run probatum seal",))
    from ..core import seal as seals  # it brings the parser of test modules along, which the strict layout never needs

    seal, problems = seals.parse_seal(objects.read(found.oid))
    here = {blob.oid for blob in base.files.values()}
    absent = objects.absent(pin.oid for pin in seal.paths.values() if pin.oid not in here)
    problems += seals.problems(seal, policy, absent.__contains__, now)
    usable = None if problems else seal
    return Oracle(tree=seals.sealed_tree(seal), modules=seal.modules, wrong=tuple(problems), seal=usable)


def claims(policy: Policy, path: bytes) -> bool:
    """Whether a sealed glob of policy claims a path."""
    return _sealed_globs(policy.paths.sealed).fullmatch(text(path)) is not None


@functools.cache
def _sealed_globs(globs: tuple[str, ...]) -> re.Pattern[str]:
    return compiled(globs)


def read_manifest(base: Tree, read: Callable[[str], bytes]) -> tuple[tuple[bytes, ...], tuple[str, ...]]:
    """(test modules, what is wrong): one byte-sorted path a line, exactly the test modules in base's tests/sealed."""
    blob = base.files.get(MANIFEST.encode())
    there = tuple(sorted(path for path in base.files if is_sealed_module(path)))
    if blob is None or blob.mode in (LINK, SUBMODULE):
        return there, (f"{MANIFEST} is not a file at base",)
    data = read(blob.oid)
    wrong = []
    lines = data.split(b"\n")
    if lines.pop() != b"":
        wrong.append(f"{MANIFEST}: the last line does not end")
    if b"\r" in data or b"\0" in data or any(line != line.strip() or not line for line in lines):
        wrong.append(f"{MANIFEST}: an empty line, or white space around a path")
    if lines != sorted(set(lines)):
        wrong.append(f"{MANIFEST}: not byte-sorted, or a path twice")
    listed = set(lines)
    wrong += [f"{MANIFEST} lists {escape(path)}, which is no test module at base" for path in sorted(listed - set(there))]
    wrong += [f"{escape(path)} is a test module at base that {MANIFEST} does not list" for path in there if path not in listed]
    wrong += [f"{escape(path)} is no plain file at base" for path in there if base.files[path].mode in (LINK, SUBMODULE)]
    return there, tuple(wrong)


def is_sealed_module(path: bytes) -> bool:
    """A test module of the strict layout: ``test_*.py`` or ``*_test.py`` below tests/sealed."""
    name = path.rpartition(b"/")[2]
    named = name.endswith(b".py") and (name.startswith(b"test_") or name.endswith(b"_test.py"))
    return named and path.startswith(b"tests/sealed/")


def missing(workspace: Workspace, merged: Tree, sealed: Tree, class_of: Callable[[bytes], Class]) -> dict[str, str]:
    """Path to why its content cannot be scored: submodules, LFS pointers and paths that no disk holds."""
    found: dict[str, str] = {}
    for path, blob in (*merged.files.items(), *sealed.files.items()):
        if (blob.mode == SUBMODULE or len(path) > 255) and (path in sealed.files or class_of(path) == "product"):
            why = "a submodule: its files are not in this repository" if blob.mode == SUBMODULE else _unfit(path, blob)
            if why:
                found[escape(path)] = why
    objects = workspace.objects
    attributes = [blob.oid for path, blob in merged.files.items() if path.endswith(b".gitattributes") and blob.mode != LINK]
    if any(b"lfs" in data for data in objects.many(attributes)):  # elsewhere a pointer is just a file
        needed = {path: blob for path, blob in merged.files.items() if class_of(path) == "product"} | sealed.files
        for path in _pointers(objects, needed):
            found[escape(path)] = "a git LFS pointer: its content is not in the repository"
    return found


def unfit(changes: Iterable[Change]) -> dict[str, str]:
    """Path to why it cannot be laid out, of what the patch brings. Such a patch is not scored."""
    brought = [change.new for change in changes if change.new is not None]
    odd = [entry for entry in brought if len(entry.path) > 255 or b"git" in entry.path.lower()]
    found = {escape(entry.path): _unfit(entry.path, Blob(entry.mode, entry.oid)) for entry in odd}
    return {path: why for path, why in found.items() if why}


def _unfit(path: bytes, blob: Blob) -> str:
    try:
        check(Tree({path: blob}))
    except UsageError as error:
        return error.what
    return ""


def _pointers(objects: Objects, files: Mapping[bytes, Blob]) -> list[bytes]:
    plain = [(path, blob.oid) for path, blob in files.items() if blob.mode not in (LINK, SUBMODULE) and blob.oid]
    sizes = objects.sizes(oid for _, oid in plain)
    small = [item for item, size in zip(plain, sizes, strict=True) if 0 < size < 1024]
    contents = objects.many(oid for _, oid in small)
    return [path for (path, _), data in zip(small, contents, strict=True) if data.startswith(LFS)]


def _row(change: Change, class_: Class, why: str) -> ChangeRow:
    old, new = change.old, change.new
    return ChangeRow(
        status=cast(Literal["A", "M", "D", "T"], change.status),
        path=escape(change.path),
        class_=class_,
        old_mode=f"{old.mode:06o}" if old else "",
        new_mode=f"{new.mode:06o}" if new else "",
        old_oid=old.oid if old else "",
        new_oid=new.oid if new else "",
        why=why,
    )
