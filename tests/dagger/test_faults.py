"""Whatever happens to engine, registry, image or client: the right exit code, no verdict, nothing left, the next gate works.

These tests need an engine; those that harm it need commands, in PROBATUM_TEST_ENGINE_KILL and PROBATUM_TEST_ENGINE_START.
Where there is none they are skipped, with the reason.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import toy
from probatum.engines.dagger import VARIABLE

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent / "engines"))
from dagger_kit import missing  # noqa: E402

KILL, START = os.environ.get("PROBATUM_TEST_ENGINE_KILL", ""), os.environ.get("PROBATUM_TEST_ENGINE_START", "")
ANSWERS = ("decision.json", "src_score.txt", "oracle_integrity.txt", "flake_lease.txt")
POINTS = 10
SLEEPS = "import subprocess\n\n\ndef double(n):\n    subprocess.run(['sleep', '{}'])\n    return n * 2\n"


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    if reason := missing():
        pytest.skip(reason)
    toy.strict(tmp_path / "repo")
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    return tmp_path / "repo"


@pytest.fixture
def harmed(repo: Path) -> Iterator[Path]:
    if not KILL or not START:
        pytest.skip("Dagger: no commands to kill and start its engine")
    yield repo
    subprocess.run(shlex.split(START), check=True, stdout=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cache(environments: Path) -> Path:
    """A cache with environments and without outcomes, so that every stage runs."""
    shutil.rmtree(environments / "stages", ignore_errors=True)
    return environments


def no_answer(out: Path) -> bool:
    return not any((out / name).exists() for name in ANSWERS)


def clients() -> set[str]:
    """Client processes of sessions that no caller gave us."""
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", pid, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"session" in words and words[0].endswith(b"dagger"):
            found.add(pid)
    return found


def alive(marker: str) -> list[str]:
    """Commands of a candidate that carry ``marker``."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker.encode() in Path("/proc", pid, "cmdline").read_bytes().split(b"\0"):
                found.append(pid)
        except OSError:
            continue
    return found


def until(condition: object, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def fine(repo: Path, out: Path) -> bool:
    code, decision, said = toy.gate(repo, out, "--engine", "dagger")
    assert code == 0, said
    return decision["decision"] == "MERGE_OK"


@pytest.mark.parametrize("point", range(POINTS))
def test_the_engine_dies(harmed: Path, tmp_path: Path, cache: Path, point: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At any start or end of a stage: exit 5, one line, no answer, gone within 20 seconds of noticing."""
    monkeypatch.setenv("PROBATUM_CACHE", str(cache))
    before, out = clients(), tmp_path / "out"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(toy.PIPELINE), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HERE / "fault_driver.py"), str(point), KILL, str(harmed), str(out)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 5, done.stdout + done.stderr
    assert no_answer(out)
    print(done.stdout)
    lived = float(re.search(r"lived ([\d.]+)", done.stdout)[1])  # type: ignore[index]
    assert lived < 35, "15 seconds until the client notices, 20 until it is gone"
    assert clients() <= before
    subprocess.run(shlex.split(START), check=True, stdout=subprocess.DEVNULL)
    assert fine(harmed, out)


def test_no_engine_is_reachable(repo: Path, tmp_path: Path) -> None:
    nowhere = {**os.environ, "_EXPERIMENTAL_DAGGER_RUNNER_HOST": f"unix://{tmp_path}/nothing.sock"}
    began = time.monotonic()
    code, decision, said = toy.gate(repo, tmp_path / "out", "--engine", "dagger", env=nowhere)
    assert (code, decision) == (5, {}) and "no engine reachable" in said and "--engine bubblewrap" in said
    assert time.monotonic() - began < 20, "15 seconds, and what the gate does before it needs an engine"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda ref: "127.0.0.1:1/gone@" + ref.partition("@")[2], 5),
        (lambda ref: ref[:-64] + "0" * 64, 5),
        (lambda ref: ref.partition("@")[0] + ":latest", 2),
        (lambda ref: ref[:-1], 2),
        (lambda ref: ref + "\nRUN true", 2),
    ],
    ids=["registry-gone", "image-missing", "a-tag", "short-digest", "more-than-a-name"],
)
def test_no_such_image(repo: Path, tmp_path: Path, change: object, code: int) -> None:
    env = {**os.environ, VARIABLE: change(os.environ[VARIABLE])}  # type: ignore[operator]
    got, decision, said = toy.gate(repo, tmp_path / "out", "--engine", "dagger", env=env)
    assert (got, decision) == (code, {}), said
    assert len([line for line in said.splitlines() if line.startswith("probatum: ")]) == 1


def test_two_gates_at_once(repo: Path, tmp_path: Path) -> None:
    commands = [
        [*toy.PROBATUM, "gate", "--repo", str(repo), "--base", "main", "--head", "agent", "--engine", "dagger", "--out", out]
        for out in (str(tmp_path / "one"), str(tmp_path / "two"))
    ]
    gates = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for command in commands]
    said = [gate.communicate(timeout=300)[0] for gate in gates]
    assert [gate.returncode for gate in gates] == [0, 0], said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)])
def test_the_client_ends(repo: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    """In the middle of a candidate's stage: nothing of it lives on, not even after -9."""
    marker = f"77.{secrets.randbelow(10**9):09d}"
    toy.git(repo, "checkout", "-q", "agent")
    toy.commit(repo, {"src/thing.py": SLEEPS.format(marker)})
    before, out = clients(), tmp_path / "out"
    command = [*toy.PROBATUM, "gate", "--repo", str(repo), "--base", "main", "--head", "agent", "--engine", "dagger"]
    gate = subprocess.Popen([*command, "--out", str(out)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert until(lambda: alive(marker), 90)
    gate.send_signal(number)
    gate.communicate(timeout=20)
    assert gate.returncode == code
    assert until(lambda: not alive(marker), 5)
    assert until(lambda: clients() <= before, 10)
    assert no_answer(out)
    toy.git(repo, "reset", "-q", "--hard", "HEAD~1")
    assert fine(repo, out)
