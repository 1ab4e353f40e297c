"""Tries what ``init`` wrote: a throw-away commit with it is base, a comment in one product file is the patch."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import ProbatumError, UsageError

if TYPE_CHECKING:
    from ..core.leases import Ledger
    from ..core.policy import Policy
    from ..core.records import Decision
    from ..host.git import Git
    from ..host.workspace import Workspace

COMMENT = b"\n# probatum init tried this line.\n"


def trial(
    workspace: Workspace, files: dict[str, bytes], policy: Policy, offer: Callable[[Path], Ledger | None]
) -> tuple[list[str], Ledger | None]:
    """What is missing before an honest patch merges, one line each, [] when it would merge; and a ledger to offer.

    ``files`` are those that init wrote or kept: path to bytes. The repository itself gets no object and no ref. ``offer``
    makes the ledger from the folder of records.
    """
    from ..gate import Request
    from ..host.cache import cache_key
    from ..host.drive import gate
    from ..host.git import cache_folder
    from ..report.terminal import Progress

    work = Path(tempfile.mkdtemp(prefix="probatum-init-"))
    try:
        base, head = throw_away(workspace, work / "repo", files, policy)
        request = Request(
            repo=work / "repo", base=base, head=head, out=work / "out" / "ci_out", why_advisory="init tries its own work"
        )
        (work / "out").mkdir()
        with Progress() as progress:
            decision = gate(request, progress)
        return said(decision), offer(request.out)
    except ProbatumError as error:
        return [f"missing: {error.line()}"], None
    finally:
        for left in (cache_folder() / "git").glob(cache_key((work / "repo").resolve()) + "*"):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)
        shutil.rmtree(work, ignore_errors=True)


def throw_away(workspace: Workspace, repo: Path, files: dict[str, bytes], policy: Policy) -> tuple[str, str]:
    """(base, head) in a new bare repository: HEAD's tree with ``files``, and a patch that changes nothing that matters."""
    from .seal import head_tree

    objects, tree = head_tree(workspace)
    (tip,) = workspace.commits(["HEAD"])
    git = workspace.git
    _good(git, "init", "--quiet", "--bare", f"--object-format={'sha256' if len(tip) == 64 else 'sha1'}", str(repo))
    serving = f"--upload-pack={git.serving()}"
    _good(git, "fetch", "--quiet", "--no-tags", serving, "--", str(workspace.source), f"{tip}:refs/heads/start", at=repo)
    _good(git, "read-tree", tip, at=repo)
    base = _commit(git, repo, files, [])
    product = product_file(policy, tree.files)
    data = objects.read(tree.files[product].oid)
    head = _commit(git, repo, {product.decode("utf-8", "surrogateescape"): data + COMMENT}, [base])
    return base, head


def product_file(policy: Policy, paths: Iterable[bytes]) -> bytes:
    """The Python file of the product whose path is the shortest. Raises UsageError where there is none."""
    from ..core.globs import compiled, text

    claimed, sealed = compiled(policy.paths.product), compiled(policy.paths.sealed)
    found = [p for p in paths if p.endswith(b".py") and claimed.fullmatch(text(p)) and not sealed.fullmatch(text(p))]
    if not found:
        raise UsageError(
            "ci/gate.yaml", f"paths.product {list(policy.paths.product)} claims no Python file", "name your code there"
        )
    return min(found, key=lambda path: (path.count(b"/"), len(path), path))


def said(decision: Decision) -> list[str]:
    """The findings that would keep an honest patch out, with their remedies."""
    from ..errors import one_line

    lines = []
    for named in decision.verdicts.values():
        for finding in named.findings:
            if finding.verdict.value != "PASS":
                where = f" {finding.subject}" if finding.subject else ""
                remedy = f"; {finding.remedy}" if finding.remedy else ""
                lines.append(one_line(f"missing: {finding.id}{where}: {finding.reason}{remedy}"))
    return lines


def _commit(git: Git, repo: Path, files: dict[str, bytes], parents: list[str]) -> str:
    """The index with ``files`` in it, as a commit."""
    for name, data in files.items():
        aside = repo / "new-blob"
        aside.write_bytes(data)
        oid = _good(git, "hash-object", "-w", "--no-filters", "--", str(aside), at=repo)
        _good(git, "update-index", "--add", "--cacheinfo", f"100644,{oid},{name}", at=repo)
    tree = _good(git, "write-tree", at=repo)
    who = ["-c", "user.name=probatum init", "-c", "user.email=init@probatum.invalid"]
    options = [word for parent in parents for word in ("-p", parent)]
    commit = _good(git, *who, "commit-tree", tree, *options, "-m", "tried by probatum init", at=repo)
    _good(git, "update-ref", "refs/heads/main", commit, at=repo)
    return commit


def _good(git: Git, *arguments: str, at: Path | None = None) -> str:
    ended = git.run(arguments, at=at)
    if ended.code:
        raise UsageError("git", f"{arguments[0]} failed: {ended.reason}", "check the repository with git fsck")
    return ended.out.decode("utf-8", "surrogateescape").strip()
