"""``probatum demo`` runs the real gate; its hostile patches fool a plain test run, and a broken promise is exit 1."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from probatum import cli
from probatum.cli import demo
from probatum.core.records import Decision, Named
from probatum.core.verdict import Verdict

README = Path(__file__).resolve().parents[2] / "README.md"


def plain_pytest(repo: Path, branch: str) -> int:
    """What a plain test run on the branch says."""
    demo.git(repo, "checkout", "-q", branch)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")} | {"PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=repo, capture_output=True, env=env).returncode


def decision(word: str, **verdicts: Verdict) -> Decision:
    return Decision(
        decision=word, line=word, authority="advisory", base="", head="", merged_tree="",
        verdicts={name: Named(verdict, ()) for name, verdict in verdicts.items()}, off={}, attempt=1, nonce="",
        plan_digest="", policy_digest="", tool="",
    )  # type: ignore[arg-type]  # fmt: skip


def test_the_demo_keeps_its_promises_and_its_hostile_patches_fool_plain_pytest(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    assert cli.main(["demo", "--keep", str(kept)]) == 0
    said = capfd.readouterr().out
    assert said.splitlines()[-1] == "demo: 3 of 3 decisions as promised"
    assert said.count("\nMERGE_OK\n") == 1 and said.count("\nMERGE_BLOCKED: ") == 2
    blocked = said.split("=== hostile-equal")[1]
    for line in re.search(r"<!-- example -->\n```\n(.*?)```", README.read_text(encoding="utf-8"), re.S)[1].splitlines():
        shown = " ".join(line.split()[:2])
        assert shown in " ".join(blocked.split()), f"the README's example is not what the demo says: {line}"
    found = {
        promise.name: json.loads((kept / "evidence" / promise.name / "decision.json").read_bytes()) for promise in demo.PROMISES
    }
    assert {name: value["decision"] for name, value in found.items()} == {p.name: p.decision for p in demo.PROMISES}
    assert found["hostile-equal"]["verdicts"]["oracle_integrity"]["verdict"] == "PASS"
    assert all(value["authority"] == "advisory" for value in found.values())
    assert cli.main(["verify", "--evidence", str(kept / "evidence" / "hostile-equal")]) == 0
    results = {branch: plain_pytest(kept / "repo", branch) for branch in ("main", "honest", "hostile-tests", "hostile-equal")}
    assert results == {"main": 1, "honest": 0, "hostile-tests": 0, "hostile-equal": 0}


def test_a_broken_promise_is_exit_1(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    wrong = demo.PROMISES[0]._replace(decision="MERGE_BLOCKED", stopped_by=("src_score",))
    monkeypatch.setattr(demo, "PROMISES", (wrong,))
    assert cli.main(["demo"]) == 1
    said = capfd.readouterr()
    assert "NOT AS PROMISED: wanted MERGE_BLOCKED, got MERGE_OK" in said.err
    assert said.out.splitlines()[-1] == "demo: 0 of 1 decisions as promised"


def test_a_block_by_the_wrong_check_is_no_success() -> None:
    promise = demo.PROMISES[2]
    right = decision("MERGE_BLOCKED", src_score=Verdict.BLOCK, oracle_integrity=Verdict.PASS)
    wrong = decision("MERGE_BLOCKED", src_score=Verdict.PASS, oracle_integrity=Verdict.BLOCK)
    assert demo.as_promised(promise, right) == ""
    assert demo.as_promised(promise, wrong) == "blocked, but src_score passed"
    assert "wanted MERGE_BLOCKED" in demo.as_promised(promise, decision("MERGE_OK", src_score=Verdict.PASS))


def test_a_folder_with_something_in_it_is_left_alone(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("x")
    assert cli.main(["demo", "--keep", str(tmp_path)]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"] and "is not an empty folder" in capfd.readouterr().err


def test_the_toy_vanishes_also_when_git_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(demo.tempfile, "tempdir", None)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert cli.main(["demo"]) == 2
    assert list(tmp_path.iterdir()) == []
