"""``probatum seal`` reads HEAD's objects and writes one file of the work tree, whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PIPELINE = Path(__file__).resolve().parents[2] / "pipeline"
WHO = {
    f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in (("NAME", "A"), ("EMAIL", "a@b.invalid"))
}
ENV = {**os.environ, **WHO, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
POLICY = "version: 1\nlayout: in-place\npaths: {product: [src/**], sealed: [tests/**]}\n"


def git(repo: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=repo, env=ENV, check=True, capture_output=True, text=True).stdout.strip()


def commit(repo: Path, texts: dict[str, str | None]) -> None:
    for name, text in texts.items():
        path = repo / name
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "x")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(
        folder, {"ci/gate.yaml": POLICY, "src/a.py": "", "tests/test_a.py": "def test_a():\n    pass\n", "tests/x.csv": "1\n"}
    )
    return folder


def probatum(repo: Path, *words: str) -> subprocess.CompletedProcess[str]:
    env = {**ENV, "PROBATUM_CACHE": str(repo.parent / "cache")}
    return subprocess.run(
        [sys.executable, str(PIPELINE), *words, "--repo", str(repo)],
        env=env,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
    )


def pins(repo: Path) -> dict[str, dict[str, object]]:
    return json.loads((repo / "ci/seal.lock").read_text())["paths"]


def test_the_first_seal_names_every_file_as_new(repo):
    done = probatum(repo, "seal")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["new       tests/test_a.py (1 tests)", "new       tests/x.csv"]
    assert pins(repo)["tests/test_a.py"]["blob"] == git(repo, "rev-parse", "HEAD:tests/test_a.py")
    assert probatum(repo, "seal", "--check").returncode == 0


def test_what_changed_since_is_shown_and_check_writes_nothing(repo):
    probatum(repo, "seal")
    before = (repo / "ci/seal.lock").read_bytes()
    commit(
        repo, {"tests/test_a.py": "def test_b():\n    pass\n", "tests/x.csv": None, "tests/test_c.py": "def test_c(): pass\n"}
    )
    done = probatum(repo, "seal", "--check")
    assert done.returncode == 1 and (repo / "ci/seal.lock").read_bytes() == before
    assert "changed   tests/test_a.py (+ test_b, - test_a)" in done.stdout
    assert "gone      tests/x.csv" in done.stdout and "new       tests/test_c.py (1 tests)" in done.stdout


def test_the_work_tree_and_its_filters_are_not_read(repo):
    commit(repo, {".gitattributes": "*.py filter=evil text eol=crlf\n"})
    mark = repo.parent / "ran"
    git(repo, "config", "filter.evil.smudge", f"touch {mark}")
    git(repo, "config", "filter.evil.clean", f"touch {mark}")
    (repo / "tests/test_a.py").write_text("def test_not_committed(): pass\n")
    (repo / "tests/test_untracked.py").write_text("def test_x(): pass\n")
    assert probatum(repo, "seal").returncode == 0
    assert (
        not mark.exists()
        and pins(repo)["tests/test_a.py"]["tests"] == ["test_a"]
        and "tests/test_untracked.py" not in pins(repo)
    )


@pytest.mark.parametrize("where", ["ci", "ci/seal.lock"])
def test_no_link_is_written_through(repo, tmp_path, where):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "gate.yaml").write_text(POLICY)
    (outside / "seal.lock").write_text("mine")
    if where == "ci":
        (repo / "ci/gate.yaml").unlink()
        (repo / "ci").rmdir()
        (repo / "ci").symlink_to(outside)
    else:
        (repo / "ci/seal.lock").symlink_to(outside / "seal.lock")
    done = probatum(repo, "seal")
    assert done.returncode == 2 and (outside / "seal.lock").read_text() == "mine"
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_damaged_seal_is_named_and_replaced(repo):
    (repo / "ci/seal.lock").write_text("{}")
    done = probatum(repo, "seal")
    assert done.returncode == 0 and "must hold exactly" in done.stderr
    assert probatum(repo, "seal", "--check").returncode == 0


def test_globs_that_claim_no_test_are_exit_2_and_write_nothing(repo):
    commit(repo, {"ci/gate.yaml": POLICY.replace("tests/**", "spec/**")})
    done = probatum(repo, "seal")
    assert done.returncode == 2 and "claims no test module" in done.stderr and not (repo / "ci/seal.lock").exists()


def test_the_strict_layouts_seal_is_its_manifest(tmp_path):
    repo = tmp_path / "repo"
    repo.mkdir()
    git(repo, "init", "-q", "-b", "main")
    commit(
        repo,
        {
            "tests/sealed/MANIFEST.txt": "tests/sealed/test_gone.py\n",
            "tests/sealed/test_b.py": "",
            "tests/sealed/a_test.py": "",
        },
    )
    assert probatum(repo, "seal", "--check").returncode == 1
    done = probatum(repo, "seal")
    assert done.returncode == 0 and "gone      tests/sealed/test_gone.py" in done.stdout
    assert (repo / "tests/sealed/MANIFEST.txt").read_text() == "tests/sealed/a_test.py\ntests/sealed/test_b.py\n"


def test_without_a_repository_or_a_commit_it_is_one_line_and_exit_2(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    done = probatum(empty, "seal")
    assert done.returncode == 2 and "not a git repository" in done.stderr
    git(empty, "init", "-q")
    done = probatum(empty, "seal")
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1
