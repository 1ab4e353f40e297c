"""What the gate costs: its wall clock beside plain pytest's on the same tree, in pairs, in one run.

    python tests/bench/gate.py [--runs N]

Prints medians: the gate's and pytest's wall, their ratio and difference, the first gate's cost, the breakdown per step;
``probatum --help``; and classifying 50,000 changed paths beside ``git diff-tree``.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PIPELINE = Path(__file__).resolve().parents[2] / "pipeline"
GIT = {
    **os.environ,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.com",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.com",
}
QUICK = (
    "import pytest\nfrom src.thing import double\n\n@pytest.mark.parametrize('n', range({count}))\n"
    "def test_double(n):\n    assert double(n) == 2 * n\n"
)
SLOW = (
    "import pytest\nfrom src.thing import spend\n\n@pytest.mark.parametrize('n', range({count}))\n"
    "def test_spend(n):\n    assert spend(n) == n\n"
)
THING = """def double(n):
    return n + n


def spend(n):
    total = 0
    for i in range({work}):
        total += i
    return n if total else -1
"""


def repository(at: Path, tests: str, work: int) -> None:
    """Branch main, and a branch patch that changes product only."""
    (at / "src").mkdir(parents=True)
    (at / "tests/sealed").mkdir(parents=True)
    (at / "ci").mkdir()
    (at / "src/__init__.py").write_text("")
    (at / "src/thing.py").write_text(THING.format(work=work))
    (at / "tests/sealed/test_thing.py").write_text(tests)
    (at / "tests/sealed/MANIFEST.txt").write_text("tests/sealed/test_thing.py\n")
    (at / "ci/flake_leases.json").write_text('{"leases": []}\n')
    git(at, "init", "-q", "-b", "main")
    commit(at, "base")
    git(at, "checkout", "-q", "-b", "patch")
    (at / "src/thing.py").write_text(THING.format(work=work).replace("n + n", "2 * n"))
    commit(at, "patch")


def git(at: Path, *args: str) -> str:
    return subprocess.run(["git", *args], cwd=at, env=GIT, check=True, capture_output=True, text=True).stdout


def commit(at: Path, message: str) -> None:
    git(at, "add", "-A")
    git(at, "commit", "-q", "-m", message)


def timed(command: list[str], cwd: Path, env: dict[str, str] | None = None) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True)
    wall = time.perf_counter() - began
    if done.returncode:
        raise SystemExit(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return wall


def gate_against_pytest(name: str, tests: str, work: int, runs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder)
        repo, cache = top / "repo", top / "cache"
        repository(repo, tests, work)
        env = {**os.environ, "PROBATUM_CACHE": str(cache)}
        gate = [
            sys.executable,
            str(PIPELINE),
            "gate",
            "--repo",
            str(repo),
            "--base",
            "main",
            "--head",
            "patch",
            "--out",
            str(top / "out"),
        ]
        python = [sys.executable, "-m", "pytest", "-q", "tests"]
        plain = {**os.environ, "PYTHONPATH": ".", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # as in the gate: no plugins
        first = timed(gate, top, env)
        second = timed(gate, top, env)
        timed(python, repo, plain)
        pairs = [(timed(gate, top, env), timed(python, repo, plain)) for _ in range(runs)]
        ours, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(a / b for a, b in pairs)
        added = statistics.median(a - b for a, b in pairs)
        print(f"{name}: gate {ours:.2f} s, pytest -q {theirs:.2f} s, ratio {ratio:.2f}, added {added:.2f} s  ({runs} pairs)")
        print(f"  first gate (empty cache) {first:.2f} s, second {second:.2f} s")
        steps(top / "out")


def steps(out: Path) -> None:
    """When each record was begun and finished, from the records themselves."""
    rows = []
    for path in out.glob("*.json"):
        if path.name != "decision.json":
            said = json.loads(path.read_text())["predicate"]
            rows.append((said["started"], said["finished"], path.stem))
    for started, finished, name in sorted(rows):
        print(f"  {started[17:]} {finished[17:]} {name}")


def help_text(runs: int) -> None:
    walls = [timed([sys.executable, str(PIPELINE), "--help"], PIPELINE) for _ in range(max(runs, 5))]
    bare = [timed([sys.executable, "-c", "pass"], PIPELINE) for _ in range(max(runs, 5))]
    print(
        f"probatum --help: {statistics.median(walls) * 1000:.0f} ms (python -c pass: {statistics.median(bare) * 1000:.0f} ms)"
    )


def classify(runs: int, count: int = 50_000) -> None:
    sys.path.insert(0, str(PIPELINE))
    from probatum.core.check import Change, Entry
    from probatum.core.classes import Rules, classify_change
    from probatum.core.policy import STRICT

    with tempfile.TemporaryDirectory() as folder:
        repo = Path(folder)
        git(repo, "init", "-q", "-b", "main")
        blob = subprocess.run(
            ["git", "hash-object", "-w", "--stdin"], cwd=repo, input="x", capture_output=True, text=True
        ).stdout.strip()
        git(repo, "commit", "-q", "--allow-empty", "-m", "base")
        lines = "".join(f"100644 {blob}\tsrc/p{i % 97}/q{i % 89}/f{i}.py\n" for i in range(count))
        subprocess.run(["git", "update-index", "--index-info"], cwd=repo, input=lines, text=True, check=True)
        git(repo, "commit", "-q", "-m", "head")
        diff = ["git", "diff-tree", "-r", "-z", "--raw", "--no-renames", "HEAD~1", "HEAD"]
        theirs = statistics.median(timed(diff, repo) for _ in range(runs))
        changes = [
            Change(status="A", old=None, new=Entry(0o100644, blob, b"src/p%d/q%d/f%d.py" % (i % 97, i % 89, i)))
            for i in range(count)
        ]
        ours = []
        for _ in range(runs):
            rules = Rules.of(STRICT, frozenset(), frozenset())
            began = time.perf_counter()
            for change in changes:
                classify_change(change, rules, lambda oid: b"")
            ours.append(time.perf_counter() - began)
        mine = statistics.median(ours)
        print(f"classify {count} paths: {mine:.3f} s, git diff-tree {theirs:.3f} s, ratio {mine / theirs:.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    help_text(runs)
    gate_against_pytest("20 tests", QUICK.format(count=20), 1, runs)
    gate_against_pytest("a suite of 10 s", SLOW.format(count=200), 1_200_000, max(3, runs // 2))
    classify(runs)


if __name__ == "__main__":
    main()
