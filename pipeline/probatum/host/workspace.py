"""Revisions of a workspace become commits in the private cache; a tag never decides what the base is."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..core.evidence import Subject
from ..errors import EvidenceCorrupt, ProbatumError, UsageError
from .cache import Cache, cache_key
from .git import HASH, Ended, Git, cache_folder, disk_full, find_repository, list_refs
from .objects import Objects

STEPS = re.compile(r"(?P<name>.*?)(?P<steps>(?:[~^][0-9]*)*)", re.DOTALL)


class Workspace:
    """One repository, seen through its cache. ``objects`` reads what ``subject`` or ``commit`` has brought over."""

    def __init__(self, repo: Path, cache: Path) -> None:
        self.source = find_repository(repo)
        self.git = Git(cache / "git")
        self._refs: tuple[dict[str, str], dict[str, str]] | None = None
        self._cache: Cache | None = None
        self._objects: Objects | None = None

    def __enter__(self) -> Workspace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing of it is left running."""
        if self._objects is not None:
            self._objects.close()

    @property
    def objects(self) -> Objects:
        """The reader of the cache."""
        if self._objects is None:
            raise ProbatumError(str(self.source), "nothing was fetched from it yet")
        return self._objects

    @property
    def shallow(self) -> bool:
        """Whether the workspace lacks history, so that only a straight line from base to head can be trusted."""
        return self._cache is not None and self._cache.path.name.endswith(".shallow")

    def refs(self) -> tuple[dict[str, str], dict[str, str]]:
        """(ref to commit, symbolic ref to target), asked once."""
        if self._refs is None:
            self._refs = list_refs(self.git, self.source)
        return self._refs

    def subject(self, base: str | None, head: str | None = None) -> tuple[Subject, tuple[bytes, ...], str]:
        """(subject, paths in conflict, where the base's name came from). ``merged_tree`` is "" where there is a conflict.

        Without ``base``: the tip of the remote's default branch, else of the local ``main`` or ``master``, by full ref
        name. Without ``head``: HEAD. Raises UsageError for a revision that is not there.
        """
        chosen = self._default_base() if base is None else base
        found_base, found_head = self.commits([chosen, head or "HEAD"])
        objects = self.objects
        merge_base = objects.merge_base(found_base, found_head)
        conflict: tuple[bytes, ...] = ()
        if merge_base == found_base:
            merged = objects.commit(found_head).tree
        elif self.shallow:
            raise self._no_history(f"base {found_base} is not among head's ancestors as far as this shallow clone reaches")
        elif not merge_base:
            raise UsageError(str(self.source), "base and head share no history", "rebase the patch on its base")
        else:
            merged, conflict = objects.merge(found_base, found_head)
        subject = Subject(base=found_base, head=found_head, merge_base=merge_base, merged_tree=merged)
        return subject, conflict, chosen

    def commits(self, names: Iterable[str]) -> list[str]:
        """The commits that ``names`` mean, each in the cache with its history."""
        tips = [self._tip(name) for name in names]
        self._bring(list(dict.fromkeys(tip for tip, _, _ in tips)))
        return [self._walk(tip, steps, name) for tip, steps, name in tips]

    # -- names ------------------------------------------------------------------------------------
    def _default_base(self) -> str:
        refs, links = self.refs()
        heads = [name for name in links if re.fullmatch(r"refs/remotes/[^/]+/HEAD", name)]
        heads = ["refs/remotes/origin/HEAD"] if "refs/remotes/origin/HEAD" in heads else heads
        if len(heads) == 1 and links[heads[0]] in refs:
            return links[heads[0]]
        for name in ("refs/heads/main", "refs/heads/master"):
            if name in refs:
                return name
        raise UsageError(str(self.source), "no remote default branch, no main and no master", "give --base REV")

    def _tip(self, name: str) -> tuple[str, str, str]:
        match = STEPS.fullmatch(name)
        assert match is not None
        plain = "HEAD" if match["name"] == "@" else match["name"]
        if HASH.fullmatch(plain.lower()):
            return plain.lower(), match["steps"], name
        refs, _ = self.refs()
        return named(plain, refs, str(self.source)), match["steps"], name

    def _walk(self, oid: str, steps: str, name: str) -> str:
        commit = self.objects.commit(oid)
        for sign, digits in re.findall(r"([~^])([0-9]*)", steps):
            count = int(digits or 1) if len(digits) < 7 else 10**6
            wanted = [0] * count if sign == "~" else ([count - 1] if count else [])
            for parent in wanted:
                if parent >= len(commit.parents):
                    raise UsageError(str(self.source), f"unknown revision {name!r}", "history does not reach that far")
                oid = commit.parents[parent]
                commit = self.objects.commit(oid)
        return oid

    # -- objects ----------------------------------------------------------------------------------
    def _bring(self, wanted: list[str]) -> None:
        lengths = {len(oid) for oid in wanted}
        if len(lengths) != 1:
            raise UsageError(str(self.source), "hashes of two kinds", "give both revisions in the repository's own kind")
        object_format = "sha1" if lengths == {40} else "sha256"
        key = cache_key(self.source) + ("" if object_format == "sha1" else ".sha256")
        whole, partial = (Cache(self.git, key + suffix, object_format) for suffix in ("", ".shallow"))
        cache = next((cache for cache in (whole, partial) if all(map(cache.has, wanted))), None)
        if cache is None:
            ended = self._fetch(whole, wanted)
            cache = whole
            if not all(map(whole.has, wanted)):
                self._unless_shallow(ended, wanted)
                self._unless_shallow(
                    self._fetch(partial, wanted, shallow=True), wanted, final=not all(map(partial.has, wanted))
                )
                cache = partial
        else:
            cache.ready()
            for oid in wanted:
                with contextlib.suppress(OSError):
                    os.utime(cache.path / "refs/kept" / oid)
        self._use(cache)

    def _use(self, cache: Cache) -> None:
        if self._cache is None or self._cache.path != cache.path:
            self.close()
            self._cache, self._objects = cache, Objects(self.git, cache.path)

    def _fetch(self, cache: Cache, wanted: list[str], *, shallow: bool = False) -> Ended:
        with cache.locked() as handle:
            cache.ready()
            missing = [oid for oid in wanted if not cache.has(oid)]
            return cache.fetch(self.source, missing, handle, shallow=shallow) if missing else Ended(0, b"", "")

    def _unless_shallow(self, ended: Ended, wanted: list[str], *, final: bool = False) -> None:
        """Raises what the end of a fetch means, unless it only means that the workspace is shallow."""
        if ended.code == 0 and not final:
            return
        absent = re.search(r"not our ref ([0-9a-f]+)", ended.err)
        if absent is not None:
            if any(os.path.lexists(self.source / name) for name in ("shallow", ".git/shallow")):
                raise self._no_history(f"{absent[1]} is not in this shallow clone")
            raise UsageError(
                str(self.source), f"unknown revision {absent[1]!r}", "fetch it, or give one that the repository has"
            )
        if "promisor" in ended.err or "lazy fetching" in ended.err:
            raise UsageError(
                str(self.source),
                "a partial clone: objects are missing",
                "run git fetch --refetch --no-filter in it, or clone it whole",
            )
        disk_full(ended, self.git.home)
        raise UsageError(
            str(self.source),
            f"git fetch refused: {ended.reason}",
            "run git fsck in it: it is damaged, or not what git would write",
        )

    def _no_history(self, what: str) -> ProbatumError:
        return UsageError(str(self.source), what, "run git fetch --unshallow (in CI: fetch-depth: 0)")


def verify_landed(repo: Path, commit: str, base: str, merged_tree: str, cache: Path | None = None) -> None:
    """``commit`` has ``merged_tree`` as its tree and ``base`` as its first parent; else EvidenceCorrupt."""
    with Workspace(repo, cache or cache_folder()) as workspace:
        (found,) = workspace.commits([commit])
        why = workspace.objects.landed(found, base, merged_tree)
    if why:
        raise EvidenceCorrupt(commit, f"is not what was judged: {why}", "judge what landed, or land what was judged")


def named(name: str, refs: Mapping[str, str], where: str) -> str:
    """The commit that a name means: a full ref, HEAD, a branch, a remote's branch, a tag, or an abbreviated hash of a tip.

    A branch goes before a tag of the same name. A name that two branches carry with different commits is refused.
    """
    if name == "HEAD" or name.startswith("refs/"):
        if name in refs:
            return refs[name]
    else:
        branches = {refs[full] for full in (f"refs/heads/{name}", f"refs/remotes/{name}") if full in refs}
        if len(branches) > 1:
            raise UsageError(
                where, f"{name!r} is a branch here and at a remote", f"say refs/heads/{name} or refs/remotes/{name}"
            )
        if branches:
            return branches.pop()
        if f"refs/tags/{name}" in refs:
            return refs[f"refs/tags/{name}"]
        if re.fullmatch(r"[0-9a-f]{7,64}", name):
            found = {oid for oid in refs.values() if oid.startswith(name)}
            if len(found) == 1:
                return found.pop()
    if not refs:
        raise UsageError(where, f"no commit in it, so no {name!r}", "commit something first")
    raise UsageError(
        where, f"unknown revision {name!r}", "give a branch, a full ref name or a full hash that the repository has"
    )
