"""A hostile workspace runs nothing: each trap is first seen to work on a plain git call, then not on ours."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import toy
from probatum.errors import UsageError
from probatum.host.workspace import Workspace

Trap = Callable[[Path, str], list[list[str]]]
"""Sets a trap in a repository; ``command`` leaves a mark. Returns plain git commands that should fall into it."""


def config(repo: Path, text: str) -> None:
    with (repo / ".git/config").open("a") as file:
        file.write(text)


def hook(repo: Path, name: str, command: str, folder: str = ".git/hooks") -> None:
    path = repo / folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\nexit 0\n")
    path.chmod(0o755)


def fsmonitor(repo: Path, command: str) -> list[list[str]]:
    config(repo, f'[core]\n\tfsmonitor = "{command}; false"\n')
    return [["status"]]


def pack_objects_hook(repo: Path, command: str) -> list[list[str]]:
    # Only protected configuration may name it, so the trap is a HOME that git would take for the user's.
    (repo / ".gitconfig").write_text(f'[uploadpack]\n\tpackObjectsHook = "{command}; exec"\n')
    return [["clone", "-q", "--no-local", ".", "../cloned"]]


def hooks(repo: Path, command: str) -> list[list[str]]:
    for name in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc", "post-merge"):
        hook(repo, name, command)
    return [["checkout", "-q", "-B", "elsewhere"]]


def hooks_path(repo: Path, command: str) -> list[list[str]]:
    hook(repo, "reference-transaction", command, "nested")
    config(repo, f'[core]\n\thooksPath = "{repo}/nested"\n')
    return [["update-ref", "refs/heads/moved", "HEAD"]]


def included(repo: Path, command: str) -> list[list[str]]:
    (repo / "more.cfg").write_text(f'[core]\n\tfsmonitor = "{command}; false"\n')
    config(repo, f'[include]\n\tpath = "{repo}/more.cfg"\n')
    return [["status"]]


def filters(repo: Path, command: str) -> list[list[str]]:
    (repo / ".gitattributes").write_text("* filter=trap diff=trap merge=trap\n")
    config(repo, f'[filter "trap"]\n\tsmudge = "{command}; cat"\n\tclean = "{command}; cat"\n\trequired = true\n')
    config(
        repo, f'[diff "trap"]\n\ttextconv = "{command}; cat"\n\tcommand = "{command}"\n[merge "trap"]\n\tdriver = "{command}"\n'
    )
    (repo / "src/thing.py").unlink()
    return [["checkout", "--", "src/thing.py"]]


def alternate_refs(repo: Path, command: str) -> list[list[str]]:
    other = repo.parent / "alternate"
    subprocess.run(["git", "clone", "-q", "--bare", str(repo), str(other)], check=True, env=toy.GIT_ENV)
    (repo / ".git/objects/info/alternates").write_text(f"{other}/objects\n")
    config(repo, f'[core]\n\talternateRefsCommand = "{command}; true"\n')
    return [["fetch", "-q", ".", "refs/heads/*:refs/copies/*"]]


def remote_program(repo: Path, command: str) -> list[list[str]]:
    config(
        repo,
        f'[remote "origin"]\n\turl = {repo}\n\tuploadpack = "{command}; git-upload-pack"\n'
        "\tfetch = +refs/heads/*:refs/remotes/origin/*\n",
    )
    return [["fetch", "-q", "origin"]]


def instead_of(repo: Path, command: str) -> list[list[str]]:
    config(
        repo,
        f'[protocol "ext"]\n\tallow = always\n[url "ext::sh -c {command.replace(" ", "% ")} "]\n\tinsteadOf = {repo.parent}\n',
    )
    return [["ls-remote", str(repo)]]


def ssh_command(repo: Path, command: str) -> list[list[str]]:
    config(repo, f'[core]\n\tsshCommand = "{command}; false"\n[remote "origin"]\n\turl = ssh://nowhere.invalid/x\n')
    return [["ls-remote", "origin"]]


def lazy_fetch(repo: Path, command: str) -> list[list[str]]:
    """A partial clone that misses a blob, whose promisor is a command."""
    blob = toy.git(repo, "rev-parse", "agent:src/thing.py")
    (repo / ".git/objects" / blob[:2] / blob[2:]).unlink()
    config(
        repo, f'[core]\n\trepositoryformatversion = 1\n\tsshCommand = "{command}; false"\n[extensions]\n\tpartialClone = trap\n'
    )
    config(repo, '[remote "trap"]\n\turl = ssh://nowhere.invalid/x\n\tpromisor = true\n')
    return [["cat-file", "-p", blob]]


def pager_and_aliases(repo: Path, command: str) -> list[list[str]]:
    config(repo, f'[alias]\n\twhoami = "!{command}"\n[core]\n\tpager = "{command}"\n\teditor = "{command}"\n')
    return [["whoami"]]


TRAPS: dict[str, Trap] = {
    trap.__name__: trap
    for trap in (
        fsmonitor,
        pack_objects_hook,
        hooks,
        hooks_path,
        included,
        filters,
        alternate_refs,
        remote_program,
        instead_of,
        ssh_command,
        lazy_fetch,
        pager_and_aliases,
    )
}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "agents workspace"
    toy.strict(folder)
    toy.patch(folder, {"src/thing.py": toy.MENDED})
    return folder


@pytest.mark.parametrize("name", TRAPS)
def test_trap(name: str, repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    copy = tmp_path / "naive" / "agents workspace"
    copy.parent.mkdir()
    shutil.copytree(repo, copy, symlinks=True)
    for command in TRAPS[name](copy, f"touch {mark}"):
        naive = {"PATH": os.environ["PATH"], "HOME": str(copy)}
        subprocess.run(["git", *command], cwd=copy, env=naive, capture_output=True)
    assert mark.exists(), "the trap does not work on a plain git call, so it shows nothing"
    mark.unlink()

    TRAPS[name](repo, f"touch {mark}")
    base, head = toy.git(repo, "rev-parse", "main"), toy.git(repo, "rev-parse", "agent")
    mark.unlink(missing_ok=True)
    monkeypatch.setenv("HOME", str(repo))  # whoever may write there would be the user to a naive call
    with Workspace(repo, tmp_path / "cache") as workspace:
        if name == "lazy_fetch":
            with pytest.raises(UsageError, match="partial clone"):
                workspace.subject("main", "agent")
        else:
            found, conflict, _ = workspace.subject("main", "agent")
            assert (found.base, found.head, conflict) == (base, head, ())
            workspace.objects.tree(found.merged_tree)
    assert not mark.exists()


def test_the_gates_own_environment_and_folder_do_not_reach_git(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    (tmp_path / "evil.cfg").write_text(
        f'[core]\n\tfsmonitor = "touch {mark}"\n[uploadpack]\n\tpackObjectsHook = "touch {mark}; exec"\n'
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "evil.cfg"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "uploadpack.packObjectsHook")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", f"touch {mark}; exec")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", f"touch {mark}")
    monkeypatch.setenv("GIT_TRACE", str(tmp_path / "trace"))
    monkeypatch.chdir(repo)
    with Workspace(Path(), tmp_path / "cache") as workspace:
        workspace.subject("main", "agent")
    assert not mark.exists() and not (tmp_path / "trace").exists()


def test_a_git_in_the_checkout_is_not_run(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = tmp_path / "mark"
    fake = repo / "git"
    fake.write_text(f"#!/bin/sh\ntouch {mark}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f".:{os.environ['PATH']}")
    monkeypatch.chdir(repo)
    with Workspace(Path(), tmp_path / "cache") as workspace:
        workspace.subject("main", "agent")
    assert not mark.exists()


def test_replace_refs_and_grafts_change_nothing(repo: Path, tmp_path: Path) -> None:
    base, middle = toy.git(repo, "rev-parse", "main"), toy.git(repo, "rev-parse", "agent")
    head = toy.commit(repo, {"src/more.py": "x = 1\n"})
    toy.git(repo, "checkout", "-q", "-b", "other", "main")
    other = toy.commit(repo, {"src/other.py": "x = 1\n"})
    toy.git(repo, "replace", head, other)
    (repo / ".git/info").mkdir(exist_ok=True)
    (repo / ".git/info/grafts").write_text(f"{head} {base}\n")
    assert toy.git(repo, "--no-replace-objects", "rev-list", "--count", head) == "2", "the naive call believes the graft"
    with Workspace(repo, tmp_path / "cache") as workspace:
        found, _, _ = workspace.subject("main", head)
        assert (found.merge_base, workspace.objects.commit(head).parents) == (base, (middle,))
        names = workspace.objects.tree(found.merged_tree).files
    assert b"src/other.py" not in names and b"src/more.py" in names


def test_hidden_refs_are_seen(repo: Path, tmp_path: Path) -> None:
    head = toy.git(repo, "rev-parse", "agent")
    config(repo, "[transfer]\n\thideRefs = refs\n[uploadpack]\n\thideRefs = refs/heads\n")
    with Workspace(repo, tmp_path / "cache") as workspace:
        assert workspace.commits(["agent"]) == [head]


def test_a_workspace_named_like_an_address_or_an_option_is_a_folder(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    for name in ("ext::sh -c touch% mark", "host:path", "-c", "'; touch mark; '", "line\nbreak", "$(touch mark)"):
        folder = tmp_path / name
        toy.strict(folder)
        with Workspace(folder, tmp_path / "cache") as workspace:
            assert workspace.commits(["main"]) == [toy.git(folder, "rev-parse", "main")]
    assert not mark.exists() and not Path("mark").exists()
