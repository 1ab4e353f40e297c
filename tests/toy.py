"""Toy repositories for tests: real git, strict layout, one red sealed test at base unless told otherwise."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

PIPELINE = Path(__file__).resolve().parents[1] / "pipeline"
PROBATUM = (sys.executable, str(PIPELINE))

PRODUCT = "def double(n):\n    return n + 1\n"
MENDED = "def double(n):\n    return n * 2\n"
TESTS = """from src.thing import double


def test_double():
    assert double(3) == 6


def test_one():
    assert double(1) == 2
"""

GIT_ENV = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A Person",
    "GIT_AUTHOR_EMAIL": "person@example.com",
    "GIT_COMMITTER_NAME": "A Person",
    "GIT_COMMITTER_EMAIL": "person@example.com",
}


def git(repo: Path, *args: str) -> str:
    """Output of one git command in ``repo``, stripped."""
    done = subprocess.run(["git", *args], cwd=repo, env=GIT_ENV, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(repo: Path, files: dict[str, str | bytes | None], message: str = "change") -> str:
    """Writes ``files`` (None deletes), commits everything and gives the hash."""
    for name, content in files.items():
        path = repo / name
        if content is None:
            path.unlink()
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    git(repo, "add", "-A", "-f")
    git(repo, "commit", "-q", "--allow-empty", "-m", message)
    return git(repo, "rev-parse", "HEAD")


def strict(repo: Path, extra: dict[str, str | bytes | None] | None = None) -> str:
    """A repository in the strict layout with branch main; its base commit."""
    repo.mkdir(parents=True, exist_ok=True)
    git(repo, "init", "-q", "-b", "main")
    files: dict[str, str | bytes | None] = {
        "src/__init__.py": "",
        "src/thing.py": PRODUCT,
        "tests/sealed/test_thing.py": TESTS,
        "tests/sealed/MANIFEST.txt": "tests/sealed/test_thing.py\n",
        "ci/flake_leases.json": '{"leases": []}\n',
    }
    return commit(repo, {**files, **(extra or {})}, "base")


def patch(repo: Path, files: dict[str, str | bytes | None], branch: str = "agent") -> str:
    """A branch off main with one commit; its hash."""
    git(repo, "checkout", "-q", "-b", branch, "main")
    return commit(repo, files, branch)


def gate(
    repo: Path, out: Path, *args: str, base: str = "main", head: str = "agent", **kwargs: Any
) -> tuple[int, dict[str, Any], str]:
    """(exit code, decision or {}, stdout and stderr) of a real gate."""
    command = [*PROBATUM, "gate", "--repo", str(repo), "--base", base, "--head", head, "--out", str(out), *args]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **kwargs)
    file = out / "decision.json"
    return done.returncode, json.loads(file.read_text()) if file.exists() else {}, done.stdout + done.stderr


def ids(decision: dict[str, Any], check: str) -> set[str]:
    """The finding ids of one check's verdict, remarks left out."""
    return {finding["id"] for finding in decision["verdicts"][check]["findings"] if finding["verdict"] != "PASS"}
