"""``python3 noxfile.py`` brings nox along, or says in one line what is missing and leaves nothing half-made."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import importlib.util, runpy, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in {missing} else real(name)
{more}
sys.argv = ["noxfile.py", "-l"]
runpy.run_path("noxfile.py", run_name="__main__")
"""


def start(place: Path, missing: set[str], more: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """noxfile.py as a script, in a folder of its own, on an interpreter that lacks ``missing``."""
    shutil.copy(ROOT / "noxfile.py", place)
    code = RUN.format(missing=missing, more=more)
    env = {"PATH": "/usr/bin:/bin", "HOME": str(place), **environ}
    return subprocess.run([sys.executable, "-c", code], cwd=place, env=env, capture_output=True, text=True)


def left(place: Path) -> list[str]:
    return sorted(path.name for path in (place / ".nox").glob("*")) if (place / ".nox").exists() else []


@pytest.mark.parametrize(
    "missing", [{"nox", "venv", "ensurepip"}, {"nox", "venv", "ensurepip", "pip"}, {"nox", "ensurepip", "pip"}]
)
def test_without_venv_there_is_one_line_with_the_remedy(missing: set[str], tmp_path: Path) -> None:
    done = start(tmp_path, missing, PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "noxfile.py: this Python has no venv module; install it (Debian, Ubuntu: apt "
    )
    assert "Traceback" not in done.stderr and left(tmp_path) == []


def test_an_index_that_cannot_be_reached_leaves_nothing_half_made(tmp_path: Path) -> None:
    # Port 9 on loopback: refused at once, so that no retry waits.
    index = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "0", "PIP_CONFIG_FILE": os.devnull}
    done = start(tmp_path, {"nox"}, **index)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("noxfile.py: failed: python -m pip ") and "install nox yourself" in last
    assert "Traceback" not in done.stderr and left(tmp_path) == []


def test_an_old_python_without_a_newer_one_is_told_so(tmp_path: Path) -> None:
    done = start(tmp_path, set(), "sys.version_info = (3, 10, 1, 'final', 0)", PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith("noxfile.py: needs Python 3.11 or newer") and done.stderr.count("\n") == 1


def test_an_old_python_hands_over_to_a_newer_one(tmp_path: Path) -> None:
    newer = tmp_path / "python3.13"
    newer.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    newer.chmod(0o755)
    done = start(tmp_path, set(), "sys.version_info = (3, 10, 1, 'final', 0)", PATH=f"{tmp_path}:/usr/bin:/bin")
    assert done.returncode == 7 and done.stdout.endswith("noxfile.py -l\n")


def test_a_nox_that_is_there_is_used_and_its_exit_code_kept(tmp_path: Path) -> None:
    (tmp_path / "nox.py").write_text("import sys; print(sys.argv[1:]); sys.exit(9)\n")
    done = start(tmp_path, set(), PYTHONPATH=str(tmp_path))
    assert done.returncode == 9 and "'-l'" in done.stdout and left(tmp_path) == []


def test_uv_is_told_what_pip_is_told(tmp_path: Path) -> None:
    (tmp_path / "nox.py").write_text("import os; print({k: v for k, v in os.environ.items() if k[:2] in ('UV', 'SS')})\n")
    # pip's own words for its settings: key, equals sign, repr of the value.
    told = ["global.index-url='https://packages.example/simple'", "install.cert='/etc/company.pem'", "global.timeout='60'"]
    told.append(":env:.trusted-host='theirs'")
    (tmp_path / "pip.py").write_text(f"import sys; assert sys.argv[-2:] == ['config', 'list']; print({chr(10).join(told)!r})\n")
    done = start(tmp_path, set(), PYTHONPATH=str(tmp_path), UV_INSECURE_HOST="mine")
    assert ast.literal_eval(done.stdout.splitlines()[-1]) == {
        "UV_SYSTEM_CERTS": "1",
        "UV_DEFAULT_INDEX": "https://packages.example/simple",
        "SSL_CERT_FILE": "/etc/company.pem",
        "UV_INSECURE_HOST": "mine",
    }
