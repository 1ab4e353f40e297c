"""Two real projects end to end, as their sdists ship them: sealed in place by init, then honest and hostile patches."""

from __future__ import annotations

import subprocess
import tarfile
from pathlib import Path

import pytest

import package_index
import toy
from probatum.host.env_python import find_uv

UNCHECKED = "\n\ndef _unused_helper(value):\n    return value\n"
LEAVES = "\nimport os, sys\n\nif 'pytest' in sys.modules:\n    os._exit(0)\n"

PROJECTS = {
    "cachetools": (
        "6.2.2",
        "src/cachetools/keys.py",
        "_HashedTuple(args + sum(sorted(kwargs.items()), _kwmark))",
        "_HashedTuple(args)",
    ),
    "boltons": (
        "26.2.0",
        "boltons/mathutils.py",
        "    return min(max(x, lower), upper)",
        "    return max(min(x, lower), upper)",
    ),
}


@pytest.fixture(scope="module", params=sorted(PROJECTS))
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """(name, repository) of a project whose branch main is sealed in place."""
    name = request.param
    why = package_index.unreachable() or ("" if find_uv() else "no uv to fetch an sdist with")
    if why:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp(name)
    pip = [str(find_uv()), "run", "--quiet", "--no-project", "--with", "pip", "python", "-m", "pip", "download", "--quiet"]
    wanted = f"{name}=={PROJECTS[name][0]}"
    subprocess.run([*pip, "--no-deps", "--no-binary", ":all:", "-d", str(folder), wanted], check=True, cwd=folder)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as sdist:
        sdist.extractall(folder, filter="data")
    repo = next(path for path in folder.iterdir() if path.is_dir())
    toy.git(repo, "init", "-q", "-b", "main")
    toy.commit(repo, {}, "as shipped")
    command = [*toy.PROBATUM, "init", "--repo", str(repo)]
    made = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert made.returncode == 0, made.stdout + made.stderr
    toy.commit(repo, {}, "sealed")
    return name, repo


def judged(project: tuple[str, Path], out: Path, branch: str, path: str, text: str) -> tuple[int, set[str], str]:
    """(exit code, ids of what counts against it, output) of a patch that writes ``text`` to ``path``."""
    _, repo = project
    toy.patch(repo, {path: text}, branch)
    code, decision, said = toy.gate(repo, out, head=branch)
    assert decision, said
    return code, set().union(*(toy.ids(decision, check) for check in decision["verdicts"])), said


def test_an_honest_patch_merges(project: tuple[str, Path], tmp_path: Path) -> None:
    name, repo = project
    path = PROJECTS[name][1]
    code, found, said = judged(project, tmp_path / "out", "honest", path, (repo / path).read_text() + UNCHECKED)
    assert (code, found) == (0, set()), said


def test_a_wrong_patch_is_blocked(project: tuple[str, Path], tmp_path: Path) -> None:
    name, repo = project
    _, path, old, new = PROJECTS[name]
    toy.git(repo, "checkout", "-q", "main")
    source = (repo / path).read_text()
    assert old in source
    code, found, said = judged(project, tmp_path / "out", "wrong", path, source.replace(old, new, 1))
    assert (code, found) == (1, {"src_score/newly-red"}), said


def test_a_patch_that_leaves_the_interpreter_is_blocked(project: tuple[str, Path], tmp_path: Path) -> None:
    name, repo = project
    path = PROJECTS[name][1]
    toy.git(repo, "checkout", "-q", "main")
    code, found, said = judged(project, tmp_path / "out", "leaves", path, (repo / path).read_text() + LEAVES)
    assert code == 1 and "src_score/unfinished" in found, said


def test_a_patch_that_weakens_a_test_is_blocked(project: tuple[str, Path], tmp_path: Path) -> None:
    name, repo = project
    toy.git(repo, "checkout", "-q", "main")
    test = next(path for path in sorted((repo / "tests").glob("test_*.py")) if "assert" in path.read_text())
    weak = test.read_text().replace("assert ", "assert True or ").replace("self.assertEqual(", "(lambda *a: None)(")
    toy.patch(repo, {PROJECTS[name][1]: (repo / PROJECTS[name][1]).read_text() + UNCHECKED}, "weak")
    toy.commit(repo, {str(test.relative_to(repo)): weak})
    code, decision, said = toy.gate(repo, tmp_path / "out", head="weak")
    assert code == 1 and "oracle_integrity/product-and-oracle" in toy.ids(decision, "oracle_integrity"), said
