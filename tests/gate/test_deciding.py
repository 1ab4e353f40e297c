"""The deciding door: an installed probatum, outside any checkout, isolated, in an empty folder, with a full hash."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import package_index
import toy
from probatum.host.env_python import find_uv

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that holds probatum as a wheel."""
    why = package_index.unreachable() or ("" if find_uv() else "no uv to build a wheel with")
    if why:
        pytest.skip(why)
    folder = tmp_path_factory.mktemp("installed")
    uv = str(find_uv())
    subprocess.run([uv, "build", "--quiet", "--wheel", "--out-dir", str(folder / "dist"), str(ROOT)], check=True)
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, str(folder / "venv")], check=True)
    python = folder / "venv/bin/python"
    wheel = next((folder / "dist").glob("*.whl"))
    subprocess.run([uv, "pip", "install", "--quiet", "--python", str(python), str(wheel)], check=True)
    return python


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    toy.strict(tmp_path / "repo")
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    return tmp_path / "repo"


def decide(python: Path, repo: Path, work: Path, *flags: str, base: str = "") -> subprocess.CompletedProcess[str]:
    work.mkdir(exist_ok=True)
    base = base or toy.git(repo, "rev-parse", "main")
    command = [str(python), *flags, "-m", "probatum", "gate", "--deciding", "--repo", str(repo), "--base", base]
    command += ["--head", toy.git(repo, "rev-parse", "agent"), "--out", str(work.parent / "out")]
    return subprocess.run(command, cwd=work, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_an_installed_gate_decides(installed: Path, repo: Path, tmp_path: Path) -> None:
    done = decide(installed, repo, tmp_path / "work", "-I")
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "out/decision.json").read_text())["authority"] == "deciding"


def test_what_makes_an_answer_advisory_is_refused(installed: Path, repo: Path, tmp_path: Path) -> None:
    assert "python -I" in decide(installed, repo, tmp_path / "work").stderr
    assert "full hash" in decide(installed, repo, tmp_path / "work", "-I", base="main").stderr
    (tmp_path / "full").mkdir()
    (tmp_path / "full/sitecustomize.py").write_text("")
    done = decide(installed, repo, tmp_path / "full", "-I")
    assert done.returncode == 2 and "not empty" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_wheel_ships_only_probatum(installed: Path) -> None:
    wheel = next((installed.parents[2] / "dist").glob("*.whl"))
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"probatum"}
    pages = {"probatum/checks/src_score.md", "probatum/probe/launcher.py"}
    assert pages <= set(names)
