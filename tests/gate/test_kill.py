"""kill -9 of the gate, at every step boundary: no PASS that was not earned, and no process left."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

import toy

BOUNDARIES = (
    "start",
    "plan.json",
    "patch.json",
    "skips.json",
    "suite.base.json",
    "suite.run.json",
    "suite.twins.json",
    "verdict.oracle_integrity.json",
    "verdict.src_score.json",
    "verdict.flake_lease.json",
    "decision.json",
)
PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill") / "repo"
    toy.strict(folder)
    toy.patch(folder, {"src/thing.py": toy.MENDED})
    code, _, said = toy.gate(folder, folder.parent / "warm")
    assert code == 0, said
    return folder


@pytest.fixture(autouse=True)
def subreaper() -> None:
    """Orphans of a killed gate come to this process, where they can be seen."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_killed_at(repo: Path, tmp_path: Path, boundary: str) -> None:
    out = tmp_path / "out"
    command = [*toy.PROBATUM, "gate", "--repo", str(repo), "--base", "main", "--head", "agent", "--out", str(out)]
    gate = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wanted = out if boundary == "start" else out / boundary
    while not wanted.exists() and gate.poll() is None:
        pass
    gate.send_signal(signal.SIGKILL)
    gate.wait()
    passes = [path.name for path in out.glob("*.txt") if path.read_text() == "PASS"]
    assert not passes or (out / "decision.json").exists()
    assert left_after(gate.pid) == []


def test_an_old_pass_does_not_survive_a_crash(repo: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, _, said = toy.gate(repo, out)
    assert code == 0, said
    assert (out / "src_score.txt").read_text() == "PASS"
    command = [*toy.PROBATUM, "gate", "--repo", str(repo), "--base", "main", "--head", "agent", "--out", str(out)]
    gate = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while (out / "decision.json").exists() and gate.poll() is None:
        pass
    gate.kill()
    gate.wait()
    assert not list(out.glob("*.txt"))
    assert left_after(gate.pid) == []


def left_after(gate: int, patience: float = 10.0) -> list[str]:
    """Command lines of children of this process (adopted orphans) that are still there when patience ends."""
    end = time.monotonic() + patience
    while True:
        reap()
        living = [text for pid, text in children() if pid != gate]
        if not living or time.monotonic() > end:
            return living
        time.sleep(0.02)


def reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def children() -> list[tuple[int, str]]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
                if int(stat.rpartition(")")[2].split()[1]) == os.getpid():
                    line = Path(f"/proc/{entry}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                    found.append((int(entry), line))
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found
