"""Which commits a gate judges, what it says when it cannot, and what is left in its cache."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toy
from probatum.core.stage import Blob
from probatum.errors import EngineUnavailable, EvidenceCorrupt, Exit, ProbatumError, UsageError
from probatum.host import cache as cache_module
from probatum.host import git as git_module
from probatum.host.cache import Cache, cache_key
from probatum.host.git import Git
from probatum.host.objects import parse_tree
from probatum.host.workspace import Workspace, named, verify_landed


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    toy.strict(folder)
    toy.patch(folder, {"src/thing.py": toy.MENDED})
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def subject(repo: Path, cache: Path, base: str | None = "main", head: str | None = "agent") -> tuple[str, str, str]:
    with Workspace(repo, cache) as workspace:
        found, _, chosen = workspace.subject(base, head)
        return found.base, found.head, chosen


def refused(repo: Path, cache: Path, base: str | None = "main", head: str | None = "agent") -> ProbatumError:
    with pytest.raises(ProbatumError) as caught, Workspace(repo, cache) as workspace:
        workspace.subject(base, head)
    assert "\n" not in caught.value.line()
    return caught.value


# -- which commits ------------------------------------------------------------------------------------------------------
def test_head_defaults_to_HEAD_and_base_to_local_main(repo: Path, cache: Path) -> None:
    base, head = toy.git(repo, "rev-parse", "main"), toy.git(repo, "rev-parse", "agent")
    assert subject(repo, cache, None, None) == (base, head, "refs/heads/main")


def test_master_where_there_is_no_main(repo: Path, cache: Path) -> None:
    toy.git(repo, "branch", "-m", "main", "master")
    assert subject(repo, cache, None)[2] == "refs/heads/master"


def test_the_remotes_default_branch_goes_before_local_main(repo: Path, cache: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "-b", "trunk", "main")
    trunk = toy.commit(repo, {"docs/a.md": "a\n"})
    clone = tmp_path / "clone"
    toy.git(tmp_path, "clone", "-q", str(repo), str(clone))
    toy.git(clone, "branch", "main", "origin/main")
    assert subject(clone, cache, None, "refs/remotes/origin/agent")[::2] == (trunk, "refs/remotes/origin/trunk")


def test_a_tag_called_main_never_wins(repo: Path, cache: Path) -> None:
    base = toy.git(repo, "rev-parse", "main")
    toy.git(repo, "tag", "main", "agent")
    assert toy.git(repo, "rev-parse", "main") != base, "plain git takes the tag"
    assert subject(repo, cache, None)[0] == subject(repo, cache, "main")[0] == base
    toy.git(repo, "branch", "-m", "main", "kept")
    assert "no main" in refused(repo, cache, None).line()


def test_no_default_branch_is_a_usage_error(repo: Path, cache: Path) -> None:
    toy.git(repo, "branch", "-m", "main", "develop")
    error = refused(repo, cache, None)
    assert error.exit == Exit.USAGE and "--base" in error.remedy


@pytest.mark.parametrize(
    ("name", "means"),
    [
        ("agent~1", "main"),
        ("agent^", "main"),
        ("HEAD", "agent"),
        ("@", "agent"),
        ("@~1", "main"),
        ("refs/heads/agent", "agent"),
        ("light", "main"),
        ("heavy", "main"),
        ("heavy^0", "main"),
        ("refs/tags/heavy", "main"),
    ],
)
def test_names(name: str, means: str, repo: Path, cache: Path) -> None:
    toy.git(repo, "tag", "light", "main")
    toy.git(repo, "tag", "-a", "heavy", "-m", "x", "main")
    with Workspace(repo, cache) as workspace:
        assert workspace.commits([name]) == [toy.git(repo, "rev-parse", means)]


def test_hashes_whole_and_short(repo: Path, cache: Path) -> None:
    base, head = toy.git(repo, "rev-parse", "main"), toy.git(repo, "rev-parse", "agent")
    assert subject(repo, cache, base, head)[:2] == (base, head)
    assert subject(repo, cache, base[:9], head[:9])[:2] == (base, head)


@pytest.mark.parametrize(
    "name", ["nowhere", "refs/heads/nowhere", "agent~9", "agent^2", "--all", "main:src", "", "1" * 40, "main..agent"]
)
def test_an_unknown_revision_is_a_usage_error(name: str, repo: Path, cache: Path) -> None:
    error = refused(repo, cache, "main", name) if name else refused(repo, cache, name)
    assert error.exit == Exit.USAGE and ("unknown revision" in error.line() or name == "")


def test_a_tree_is_no_commit(repo: Path, cache: Path) -> None:
    error = refused(repo, cache, toy.git(repo, "rev-parse", "main^{tree}"))
    assert error.exit == Exit.USAGE and "is a tree" in error.line()


def test_a_name_that_two_branches_carry_is_refused() -> None:
    refs = {"refs/heads/origin/main": "a" * 40, "refs/remotes/origin/main": "b" * 40}
    with pytest.raises(UsageError, match="here and at a remote"):
        named("origin/main", refs, "x")
    assert named("origin/main", {**refs, "refs/heads/origin/main": "b" * 40}, "x") == "b" * 40


# -- merges -------------------------------------------------------------------------------------------------------------
def test_a_stale_branch_is_judged_as_merged_on_the_targets_tip(repo: Path, cache: Path) -> None:
    toy.git(repo, "checkout", "-q", "main")
    old = toy.git(repo, "rev-parse", "main")
    tip = toy.commit(repo, {"docs/a.md": "a\n"})
    with Workspace(repo, cache) as workspace:
        found, conflict, _ = workspace.subject("main", "agent")
        files = workspace.objects.tree(found.merged_tree).files
        assert (found.base, found.merge_base, conflict) == (tip, old, ())
        assert b"docs/a.md" in files and workspace.objects.read(files[b"src/thing.py"].oid) == toy.MENDED.encode()


def test_a_conflict_names_its_paths(repo: Path, cache: Path) -> None:
    toy.git(repo, "checkout", "-q", "main")
    toy.commit(repo, {"src/thing.py": "def double(n):\n    return 7\n"})
    with Workspace(repo, cache) as workspace:
        found, conflict, _ = workspace.subject("main", "agent")
    assert (found.merged_tree, conflict) == ("", (b"src/thing.py",))


def test_unrelated_histories_are_a_usage_error(repo: Path, cache: Path) -> None:
    toy.git(repo, "checkout", "-q", "--orphan", "alien")
    toy.commit(repo, {"x": "y"})
    assert "share no history" in refused(repo, cache, "main", "alien").line()


def test_what_landed_is_compared_with_what_was_judged(repo: Path, cache: Path) -> None:
    with Workspace(repo, cache) as workspace:
        found, _, _ = workspace.subject("main", "agent")
    toy.git(repo, "checkout", "-q", "main")
    toy.git(repo, "merge", "-q", "--no-ff", "-m", "landed", "agent")
    landed = toy.git(repo, "rev-parse", "main")
    verify_landed(repo, landed, found.base, found.merged_tree, cache)
    with pytest.raises(EvidenceCorrupt, match="first parent"):
        verify_landed(repo, landed, found.head, found.merged_tree, cache)
    more = toy.commit(repo, {"src/more.py": ""})
    with pytest.raises(EvidenceCorrupt, match="its tree is"):
        verify_landed(repo, more, landed, found.merged_tree, cache)
    with pytest.raises(EvidenceCorrupt, match="conflict"):
        verify_landed(repo, landed, found.base, "", cache)


# -- kinds of repositories ----------------------------------------------------------------------------------------------
def test_worktree_bare_subfolder_and_sha256(repo: Path, cache: Path, tmp_path: Path) -> None:
    base, head = toy.git(repo, "rev-parse", "main"), toy.git(repo, "rev-parse", "agent")
    toy.git(repo, "worktree", "add", "-q", "--detach", str(tmp_path / "a work tree"), "agent")
    toy.git(tmp_path, "clone", "-q", "--bare", str(repo), "bare.git")
    assert subject(tmp_path / "a work tree", cache, base, None)[:2] == (base, head)
    assert subject(tmp_path / "bare.git", cache)[:2] == (base, head)
    assert subject(repo / "src", cache)[:2] == (base, head)
    other = tmp_path / "sha256"
    toy.git(tmp_path, "init", "-q", "-b", "main", "--object-format=sha256", str(other))
    first = toy.commit(other, {"a": "1\n"})
    toy.git(other, "checkout", "-q", "-b", "agent")
    second = toy.commit(other, {"a": "2\n"})
    assert len(first) == 64 and subject(other, cache)[:2] == (first, second)


def test_no_repository(tmp_path: Path, cache: Path) -> None:
    (tmp_path / "plain").mkdir()
    for folder, said in ((tmp_path / "plain", "not a git repository"), (tmp_path / "none", "no such folder")):
        error = refused(folder, cache)
        assert error.exit == Exit.USAGE and said in error.line()
    (tmp_path / "plain/.git").mkdir()
    assert "git cannot read it" in refused(tmp_path / "plain", cache).line()
    (tmp_path / "plain/.git").rmdir()
    (tmp_path / "plain/.git").write_text("gitdir: /nowhere\n")
    assert refused(tmp_path / "plain", cache).exit == Exit.USAGE


def test_an_empty_repository(tmp_path: Path, cache: Path) -> None:
    toy.git(tmp_path, "init", "-q", "-b", "main", "empty")
    assert "no main" in refused(tmp_path / "empty", cache, None).line()
    assert "no commit in it" in refused(tmp_path / "empty", cache, "main").line()


def test_shallow_clones(repo: Path, cache: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "agent")
    tip = toy.commit(repo, {"src/more.py": "x = 1\n"})
    base = toy.git(repo, "rev-parse", "main")
    before = toy.git(repo, "rev-parse", "agent~1")
    for depth in (1, 2):
        toy.git(tmp_path, "clone", "-q", "--depth", str(depth), "--branch", "agent", f"file://{repo}", f"depth{depth}")
    error = refused(tmp_path / "depth1", cache, base, None)
    assert error.exit == Exit.USAGE and "unshallow" in error.remedy and base in error.line()
    # The line from base to head is all there: what lies before it cannot change the judgement.
    assert subject(tmp_path / "depth2", cache, before, None)[:2] == (before, tip)
    assert subject(tmp_path / "depth2", cache, before, None)[:2] == (before, tip)


def test_a_shallow_clone_cannot_hide_where_two_lines_parted(repo: Path, cache: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "main")
    toy.commit(repo, {"docs/a.md": "a\n"})
    toy.git(tmp_path, "clone", "-q", "--depth", "1", "--no-single-branch", f"file://{repo}", "cut")
    error = refused(tmp_path / "cut", cache, "refs/remotes/origin/main", "refs/remotes/origin/agent")
    assert error.exit == Exit.USAGE and "unshallow" in error.remedy


def test_a_partial_clone_says_so(repo: Path, cache: Path, tmp_path: Path) -> None:
    toy.git(repo, "config", "uploadpack.allowFilter", "true")
    toy.git(tmp_path, "clone", "-q", "--filter=blob:none", "--no-checkout", f"file://{repo}", "partial")
    error = refused(tmp_path / "partial", cache, "refs/remotes/origin/main", "HEAD")
    assert error.exit == Exit.USAGE and "partial clone" in error.line()


def test_paths_that_are_no_text(repo: Path, cache: Path) -> None:
    names = [
        b"src/caf\xe9.py",
        "src/naïve.py".encode(),
        b"src/tab\there.py",
        b"src/line\nbreak.py",
        b'src/quo"te.py',
        b"src/ end ",
        b"-rf",
    ]
    for name in names:
        (Path(os.fsdecode(os.fsencode(repo) + b"/" + name))).write_bytes(b"x")
    toy.commit(repo, {})
    with Workspace(repo, cache) as workspace:
        found, _, _ = workspace.subject("main", "agent")
        objects = workspace.objects
        before, after, changes = objects.compare(objects.commit(found.base).tree, found.merged_tree)
        assert sorted(change.path for change in changes) == sorted([*names, b"src/thing.py"])
        assert after.files == objects.tree(found.merged_tree).files and set(names).isdisjoint(before.files)


def test_an_old_git_is_refused(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\necho git version 2.39.3 '(Apple Git-145)'\n")
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UsageError, match=r"2\.39\.3.*too old.*2\.39\.4"):
        Git(cache)
    (tmp_path / "bin/git").unlink()
    with pytest.raises(UsageError, match="not found"):
        Git(cache)


# -- forged objects -----------------------------------------------------------------------------------------------------
def forge(repo: Path, entries: bytes) -> str:
    """A commit on main whose tree has exactly these bytes."""
    tree = subprocess.run(
        ["git", "hash-object", "-t", "tree", "-w", "--literally", "--stdin"],
        cwd=repo,
        env=toy.GIT_ENV,
        input=entries,
        capture_output=True,
        check=True,
    )
    return toy.git(repo, "commit-tree", "-p", "main", "-m", "forged", tree.stdout.decode().strip())


@pytest.mark.parametrize(
    "layout",
    [
        [b"100644 a", b"100644 a"],
        [b"100644 b", b"100644 a"],
        [b"40000 .git"],
        [b"40000 .GIT"],
        [b"40000 git~1"],
        [b"100644 .."],
        [b"100644 ."],
        [b"100644 src/evil.py"],
        [b"100644 "],
        [b"40000 .g\xe2\x80\x8cit"],
    ],
    ids=repr,
)
def test_a_tree_that_git_would_not_write_is_refused(layout: list[bytes], repo: Path, cache: Path) -> None:
    blob = bytes.fromhex(toy.git(repo, "rev-parse", "main:src/thing.py"))
    tree = bytes.fromhex(toy.git(repo, "rev-parse", "main:src"))
    forged = forge(repo, b"".join(entry + b"\0" + (tree if entry.startswith(b"4") else blob) for entry in layout))
    error = refused(repo, cache, "main", forged)
    assert "refused" in error.line() or "git would write" in error.line()


@pytest.mark.parametrize("paths", [b"a\0a", b"x/.git/y", b".GIT", b"a//b", b"../a", b"a/./b", b"/a", b"a/"])
def test_a_listing_of_such_a_tree_is_refused_as_well(paths: bytes) -> None:
    with pytest.raises(ProbatumError, match=r"git would|twice"):
        parse_tree(b"".join(b"100644 blob %s\t%s\0" % (b"1" * 40, path) for path in paths.split(b"\0")))


def test_old_flaws_of_honest_histories_are_not_refused(repo: Path, cache: Path) -> None:
    blob = bytes.fromhex(toy.git(repo, "rev-parse", "main:src/thing.py"))
    padded = forge(repo, b"100664 a\0" + blob)
    tree = toy.git(repo, "rev-parse", "main^{tree}")
    text = f"tree {tree}\nparent {padded}\nauthor A <a@b> 1 +51800\ncommitter A <a@b 1 +0000\n\nx\n"
    odd = (
        subprocess.run(
            ["git", "hash-object", "-t", "commit", "-w", "--literally", "--stdin"],
            cwd=repo,
            env=toy.GIT_ENV,
            input=text.encode(),
            capture_output=True,
            check=True,
        )
        .stdout.decode()
        .strip()
    )
    assert subject(repo, cache, "main", odd)[1] == odd


def test_a_corrupt_object_is_refused(repo: Path, cache: Path) -> None:
    blob = toy.git(repo, "rev-parse", "agent:src/thing.py")
    file = repo / ".git/objects" / blob[:2] / blob[2:]
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-3] + b"xxx")
    assert refused(repo, cache).exit in (Exit.USAGE, Exit.BUG)


# -- the cache ----------------------------------------------------------------------------------------------------------
def test_nothing_is_fetched_twice_and_full_hashes_ask_nobody(repo: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, head, _ = subject(repo, cache)
    asked: list[str] = []
    start = Git.start

    def noted(self: Git, arguments: list[str], **rest: object) -> object:
        asked.append(next(iter(arguments)))
        return start(self, arguments, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(Git, "start", noted)
    subject(repo, cache)
    assert asked == ["version", "ls-remote", "cat-file"]
    asked.clear()
    subject(repo, cache, base, head)
    assert asked == ["version", "cat-file"]


def test_the_cache_is_private_and_not_bent_by_what_was_put_in_it(repo: Path, cache: Path, tmp_path: Path) -> None:
    subject(repo, cache)
    folder = cache / "git" / cache_key(repo.resolve())
    for path in (cache / "git", folder, folder / "objects"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    mark = tmp_path / "mark"
    (folder / "config").write_text(f'[core]\n\tbare = true\n\tfsmonitor = "touch {mark}"\n\thooksPath = {tmp_path}\n')
    (folder / "objects/info/alternates").write_text(f"{repo}/.git/objects\n")
    toy.commit(repo, {"src/more.py": ""})
    subject(repo, cache)
    assert "hooksPath = /dev/null" in (folder / "config").read_text()
    assert not (folder / "objects/info/alternates").exists() and not mark.exists()


def test_a_link_in_place_of_the_cache_is_refused(repo: Path, cache: Path, tmp_path: Path) -> None:
    cache.mkdir()
    (tmp_path / "elsewhere").mkdir()
    (cache / "git").symlink_to(tmp_path / "elsewhere")
    assert refused(repo, cache).exit == Exit.USAGE
    assert not list((tmp_path / "elsewhere").iterdir())


def test_locks_and_half_packs_of_a_killed_git_are_in_nobodys_way(repo: Path, cache: Path) -> None:
    subject(repo, cache)
    folder = cache / "git" / cache_key(repo.resolve())
    head = toy.commit(repo, {"src/more.py": ""})
    for name in (
        f"refs/kept/{head}.lock",
        "config.lock",
        "shallow.lock",
        "packed-refs.lock",
        "HEAD.lock",
        "objects/pack/tmp_pack_x",
    ):
        (folder / name).touch()
    assert subject(repo, cache)[1] == head
    assert not [*folder.rglob("*.lock"), *folder.rglob("tmp_*")]


def test_a_commit_without_its_history_is_fetched_again(repo: Path, cache: Path) -> None:
    """Objects that a killed fetch left are not taken for a whole commit: only the ref that git wrote last says so."""
    subject(repo, cache)
    folder = cache / "git" / cache_key(repo.resolve())
    for ref in folder.glob("refs/kept/*"):
        ref.unlink()
    for pack in folder.glob("objects/pack/*"):
        pack.unlink()
    blob = toy.git(repo, "rev-parse", "agent")
    (folder / "objects" / blob[:2]).mkdir()
    (folder / "objects" / blob[:2] / blob[2:]).write_bytes((repo / ".git/objects" / blob[:2] / blob[2:]).read_bytes())
    with Workspace(repo, cache) as workspace:
        found, _, _ = workspace.subject("main", "agent")
        assert b"src/thing.py" in workspace.objects.tree(found.merged_tree).files


def test_old_refs_and_many_packs_are_tidied(repo: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "PACKS", 2)
    monkeypatch.setattr(cache_module, "KEPT", 3)
    for number in range(5):
        head = toy.commit(repo, {"src/more.py": f"x = {number}\n"})
        assert subject(repo, cache)[1] == head
    folder = cache / "git" / cache_key(repo.resolve())
    assert len(list(folder.glob("objects/pack/*.pack"))) <= 4
    assert len(list(folder.glob("refs/kept/*"))) <= 5
    assert subject(repo, cache)[1] == head


def test_two_gates_at_once(repo: Path, cache: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from probatum.host.workspace import Workspace\n"
        "with Workspace(Path(sys.argv[1]), Path(sys.argv[2])) as w:\n"
        "    s, _, _ = w.subject('main', 'agent'); print(len(w.objects.tree(s.merged_tree).files))\n"
    )
    command = [sys.executable, "-c", code, str(repo), str(cache)]
    env = {**os.environ, "PYTHONPATH": str(toy.PIPELINE)}
    gates = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    ended = [gate.communicate() for gate in gates]
    assert {out for out, _ in ended} == {"5\n"}, [err for _, err in ended]


def test_the_lock_is_held_while_a_killed_gates_git_lives(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = Git(cache)
    store = Cache(git, "k", "sha1")
    with store.locked() as handle:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(handle,))
    monkeypatch.setattr(cache_module, "WAIT", 0.05)
    with pytest.raises(EngineUnavailable, match="another gate"), store.locked():
        pass
    assert child.stdin is not None
    child.stdin.close()
    child.wait()
    with store.locked():
        pass


def test_a_named_pipe_in_git_does_not_hold_the_gate(repo: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (repo / ".git/refs/heads/agent").unlink()
    os.mkfifo(repo / ".git/refs/heads/agent")
    monkeypatch.setattr(git_module, "WAIT", 0.5)
    started = time.monotonic()
    error = refused(repo, cache)
    assert error.exit in (Exit.ENGINE, Exit.USAGE) and time.monotonic() - started < 60
    assert not _processes_about(repo)


def _processes_about(repo: Path) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if entry.name.isdigit() and os.fsencode(repo) in line and b"git" in line:
            found.append(line.decode("utf-8", "replace"))
    return found


def test_a_killed_gate_leaves_a_cache_that_works(repo: Path, cache: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from probatum.host.workspace import Workspace; import probatum.host.cache as c\n"
        "tidy = c.Cache.tidy\n"
        "def dead(self):\n"
        "    tidy(self); (self.path / 'refs/kept' / ('a' * 40 + '.lock')).touch(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "c.Cache.tidy = dead\n"
        "with Workspace(Path(sys.argv[1]), Path(sys.argv[2])) as w: w.subject('main', 'agent')\n"
    )
    env = {**os.environ, "PYTHONPATH": str(toy.PIPELINE)}
    ended = subprocess.run([sys.executable, "-c", code, str(repo), str(cache)], env=env, capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    assert subject(repo, cache)[0] == toy.git(repo, "rev-parse", "main")


def test_an_unwritable_cache_is_said_in_one_line(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    error = refused(repo, tmp_path / "file")
    assert error.exit in (Exit.ENGINE, Exit.USAGE) and "PROBATUM_CACHE" in error.line()


def test_a_full_disk_is_the_engines_failure_and_leaves_no_half_pack(repo: Path, tmp_path: Path) -> None:
    toy.commit(repo, {"src/noise": os.urandom(400_000)})
    small = tmp_path / "small"
    small.mkdir()
    code = (
        "import sys; from pathlib import Path; from probatum.errors import EngineUnavailable\n"
        "from probatum.host.workspace import Workspace\n"
        "try:\n"
        "    with Workspace(Path(sys.argv[1]), Path(sys.argv[2])) as w: w.subject('main', 'agent')\n"
        "except EngineUnavailable as error: print(error.line()); print(sorted(Path(sys.argv[2]).rglob('tmp_*')))\n"
    )
    script = 'mount -t tmpfs -o size=300k none "$2" || exit 77; exec "$0" -c "$3" "$1" "$2"'
    command = ["unshare", "--mount", "sh", "-c", script, sys.executable, str(repo), str(small), code]
    env = {**os.environ, "PYTHONPATH": str(toy.PIPELINE)}
    ended = subprocess.run(command, env=env, capture_output=True, text=True)
    if ended.returncode in (1, 77) and "Traceback" not in ended.stderr:
        pytest.skip(f"no small file system can be mounted here: {ended.stderr.strip()}")
    said, left = ended.stdout.splitlines()
    assert "no space left" in said and left == "[]"


def test_somebody_elses_repository_is_read(repo: Path, cache: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a repository to somebody else")
    for path in (repo, *repo.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    naive = subprocess.run(["git", "-C", str(repo), "rev-parse", "main"], env=toy.GIT_ENV, capture_output=True)
    assert b"dubious ownership" in naive.stderr
    assert subject(repo, cache)[2] == "main"


# -- the reader ---------------------------------------------------------------------------------------------------------
def test_blobs_one_by_one_and_many(repo: Path, cache: Path) -> None:
    contents = [b"", b"\n", b"x" * 300_000, *(b"%d" % number for number in range(900))]
    toy.commit(repo, {f"src/f{number}": data for number, data in enumerate(contents)})
    with Workspace(repo, cache) as workspace:
        found, _, _ = workspace.subject("main", "agent")
        objects = workspace.objects
        files = objects.tree(found.merged_tree).files
        oids = [files[b"src/f%d" % number].oid for number in range(len(contents))]
        assert list(objects.many(oids)) == contents == [objects.read(oid) for oid in oids]
        assert list(objects.sizes(oids)) == [len(data) for data in contents]
        assert objects.absent([oids[0], "1" * 40, found.head]) == {"1" * 40, found.head}
        with pytest.raises(ProbatumError, match="missing"):
            objects.read("1" * 40)
        with pytest.raises(ProbatumError, match="a commit where a blob"):
            objects.read(found.head)
        assert objects.read(oids[1]) == b"\n", "the reader is still in step"
        assert files[b"src/f0"] == Blob(0o100644, oids[0])


def test_the_reader_ends_with_the_workspace(repo: Path, cache: Path) -> None:
    with Workspace(repo, cache) as workspace:
        workspace.subject("main", "agent")
        reader = workspace.objects._reader
        assert reader is not None and reader.poll() is None
    assert reader.poll() is not None
