"""Real replays: a real index, a real sandbox, and what each of them leaves behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import package_index
import toy
from probatum.core import canonical, evidence, replay_ledger
from probatum.core.replay import Admission
from probatum.core.stage import Engine, Outcome, Stage
from probatum.errors import EngineUnavailable, EvidenceCorrupt, UsageError
from probatum.host import replay, replay_files
from probatum.host.git import cache_folder

POLICY = """version: 1
checks:
  oracle_integrity: {}
  src_score: {twins: {share: 0}}
  flake_lease: {}
  cold_replay: {hook_version: 3}
"""


@pytest.fixture(autouse=True, scope="module")
def _index() -> None:
    why = package_index.unreachable()
    if why:
        pytest.skip(why)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    """main and a mending branch ``agent``; policy requires a cold replay."""
    at = tmp_path / "repo"
    toy.strict(at, {"ci/gate.yaml": POLICY})
    toy.patch(at, {"src/thing.py": toy.MENDED})
    return at


def order(repo: Path, out: Path, **more: Any) -> replay.Order:
    return replay.Order(repo=repo, out=out, base="main", head="agent", **more)


def quiet(line: str) -> None:
    pass


def ledger(out: Path) -> list[replay_ledger.Line]:
    return list(replay_ledger.parse(replay_files.beside(out).read_bytes()))


def reasons(out: Path, repo: Path, base: str = "main", head: str = "agent") -> list[str]:
    return [one.id.partition("/")[2] for one in replay.admit(out, repo, base, head, None)]


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    given = [*toy.PROBATUM, "replay", *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_a_cold_replay_admits_until_something_moves(repo: Path, tmp_path: Path) -> None:
    out = tmp_path / "evidence" / "admission.json"
    done = command("run", "--repo", repo, "--base", "main", "--head", "agent", "--change", "7", "--out", out)
    assert done.returncode == 0 and done.stdout.startswith("REPLAY_PASSED: cold, 2 tests, seed "), done.stderr
    record, _ = replay.shown(out)
    body, measured = record.body, record.body.measured
    assert (body.schema, body.cache, body.result, body.hook_version, body.change) == ("admission/v1", "cold", "pass", 3, "7")
    assert body.tree_sha == toy.git(repo, "rev-parse", "agent^{tree}") and body.base_sha == toy.git(repo, "rev-parse", "main")
    assert measured.started_us <= measured.mtime_us and measured.started_us <= measured.first_process_us
    assert measured.nonce == measured.launcher_nonce == record.nonce and set(measured.caches.values()) == {0}
    assert [line.what for line in ledger(out)] == ["began", "passed"]

    admitted = command("admit", out, "--repo", repo, "--base", "main", "--head", "agent")
    assert admitted.returncode == 0 and admitted.stdout.count("\n") == 1, admitted.stdout + admitted.stderr
    code, decision, said = toy.gate(repo, tmp_path / "ci_out", "--evidence", str(out.parent))
    assert code == 0 and decision["decision"] == "MERGE_OK", said
    assert (tmp_path / "ci_out" / "admission.json").read_bytes() == out.read_bytes()
    code, decision, said = toy.gate(repo, tmp_path / "without")
    assert code == 1 and toy.ids(decision, "cold_replay") == {"cold_replay/missing"}, said

    toy.git(repo, "checkout", "-q", "agent")
    same_tree = toy.commit(repo, {}, "same tree")
    assert reasons(out, repo, head=same_tree) == ["tree-changed"]
    other = toy.commit(repo, {"src/more.py": "X = 1\n"})
    assert reasons(out, repo, head=other) == ["tree-changed"]
    toy.git(repo, "checkout", "-q", "main")
    hooked = toy.commit(repo, {"ci/gate.yaml": POLICY.replace("hook_version: 3", "hook_version: 4")})
    assert reasons(out, repo, base="main~1", head=hooked)[0] == "hook-changed"
    assert reasons(out, repo) == ["base-moved", "hook-version"]

    data = out.read_bytes()
    out.write_bytes(data.replace(b'"tests":2', b'"tests":3'))
    edited = command("admit", out, "--repo", repo, "--base", "main~1", "--head", "agent~2")
    assert edited.returncode == 1 and edited.stdout.startswith("cold_replay/edited: "), edited.stdout
    out.write_bytes(data[:-2])
    corrupt = command("admit", out, "--repo", repo, "--base", "main~1", "--head", "agent~2")
    assert corrupt.returncode == 1 and corrupt.stdout.startswith("cold_replay/corrupt: ") and corrupt.stdout.count("\n") == 1
    out.unlink()
    gone = command("admit", out, "--repo", repo, "--base", "main~1", "--head", "agent~2")
    assert gone.returncode == 1 and gone.stdout.startswith("cold_replay/missing: ")


def unreachable(engine: str) -> str:
    """Why the engine cannot be tried here, "" where it can."""
    if engine == "bubblewrap":
        return ""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "engines"))
    from dagger_kit import missing

    return missing()


@pytest.mark.parametrize("engine", ["bubblewrap", "dagger"])
def test_coldness_is_measured_on_every_engine(engine: str, repo: Path, tmp_path: Path) -> None:
    why = unreachable(engine)
    if why:
        pytest.skip(why)
    out = tmp_path / "admission.json"
    done = command("run", "--repo", repo, "--base", "main", "--head", "agent", "--engine", engine, "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    record, _ = replay.shown(out)
    measured = record.body.measured
    assert record.engine.name == engine and record.engine.cache == "none" and record.body.cache == "cold"
    assert measured.nonce == measured.launcher_nonce == record.nonce and not measured.junk
    assert measured.files > 100 and min(measured.mtime_us, measured.ctime_us) >= measured.started_us
    assert min(measured.first_process_us, measured.inside_us) >= measured.started_us
    assert "/tmp" in measured.spaces and set(measured.spaces.values()) == {0} and measured.bytecode == 0
    assert (record.body.runner_image == record.body.environment) == (not record.engine.image)
    assert reasons(out, repo) == ["admitted"]


def test_a_warm_run_says_so_and_cannot_be_dressed_up(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "admission.json"
    warm = tmp_path / "warm"
    monkeypatch.setattr(replay, "cold_folder", lambda work: warm)
    first, _ = replay.run(order(repo, out), quiet)
    assert first.cache == "cold"  # the folder was new
    second, _ = replay.run(order(repo, out), quiet)
    assert (second.cache, second.result) == ("warm", "fail") and "held 2 entries at the start" in second.reason
    assert [line.what for line in ledger(out)] == ["began", "passed", "began", "infrastructure"]
    assert reasons(out, repo)[0] == "warm"

    record, _ = replay.shown(out)
    claimed = replace(record.body, cache="cold", result="pass", reason="")
    _forge(out, replace(record, body=claimed))
    assert reasons(out, repo) == ["not-cold"]
    emptied = replace(claimed.measured, caches=dict.fromkeys(claimed.measured.caches, 0))
    _forge(out, replace(record, body=replace(claimed, measured=emptied)))
    found = replay.admit(out, repo, "main", "agent", None)
    assert [one.id for one in found] == ["cold_replay/not-cold"] and "installed file" in found[0].reason


def _forge(out: Path, record: evidence.Predicate[Admission]) -> None:
    """Somebody who writes both files makes the record say what it likes, and the ledger's last line with it."""
    data = evidence.seal(record)
    lines = ledger(out)
    fields = {key: value for key, value in msgspec.to_builtins(lines[-1]).items() if key not in ("seq", "previous")}
    fields |= {"what": "passed", "record": canonical.digest(data), "why": ""}
    _, last = replay_ledger.line_after(lines[:-1], **fields)
    replay_files.beside(out).write_bytes(b"".join([*(canonical.encode(line) for line in lines[:-1]), last]))
    out.write_bytes(data)


def test_a_red_replay_is_recorded_and_never_run_again(repo: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "-b", "wrong", "main")
    toy.commit(repo, {"src/thing.py": "def double(n):\n    return 0\n"})
    out = tmp_path / "admission.json"
    given = ("run", "--repo", repo, "--base", "main", "--head", "wrong", "--out", out)
    done = command(*given)
    assert done.returncode == 1 and done.stdout.startswith("REPLAY_FAILED: cold, 2 tests"), done.stdout + done.stderr
    record, _ = replay.shown(out)
    assert record.body.result == "fail" and len(record.body.failed) == 2
    again = command(*given, "--change", "another name")
    assert (
        again.returncode == 1 and again.stderr.startswith("probatum: cold_replay/product: ") and again.stderr.count("\n") == 1
    )
    assert out.exists()  # what was not begun voids nothing
    assert reasons(out, repo, head="wrong") == ["failed"]


class Bent:
    """A real engine whose answers pass through somebody's hands."""

    def __init__(self, inner: Engine, bend: Any) -> None:
        self.inner, self.bend = inner, bend

    async def open(self) -> Any:
        return await self.inner.open()

    async def close(self) -> None:
        await self.inner.close()

    async def run(self, stage: Stage, nonce: str) -> Outcome:
        bent: Outcome = self.bend(await self.inner.run(stage, nonce))
        return bent


def test_an_engine_that_answers_from_its_cache_is_not_cold(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, kept = tmp_path / "admission.json", []
    real = replay.choose_engine

    def first_answer(outcome: Outcome) -> Outcome:
        kept.append(outcome)
        return kept[0]

    monkeypatch.setattr(replay, "choose_engine", lambda *given: Bent(real(*given), first_answer))
    assert replay.run(order(repo, out), quiet)[0].cache == "cold"
    body, _ = replay.run(order(repo, out), quiet)  # the answer of the run before it, nonce and all
    assert (body.cache, body.result) == ("warm", "fail") and "nonce" in body.reason
    assert reasons(out, repo)[0] == "warm"
    kept[:] = [replace(kept[-1], facts=replace(kept[-1].facts, cache="reused"))]
    body, _ = replay.run(order(repo, out), quiet)
    assert body.cache == "warm" and body.reason == "the engine answered from its cache"
    assert {"warm", "cached-answer"} <= set(reasons(out, repo))


def test_an_engine_that_is_lost_leaves_no_record_and_may_be_tried_again(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "admission.json"
    out_before = replay.run(order(repo, out), quiet)
    assert out_before[0].result == "pass"
    real = replay.choose_engine

    def lost(outcome: Outcome) -> Outcome:
        raise EngineUnavailable("suite.replay", "the launcher said nothing")

    with monkeypatch.context() as patched:
        patched.setattr(replay, "choose_engine", lambda *given: Bent(real(*given), lost))
        with pytest.raises(EngineUnavailable):
            replay.run(order(repo, out), quiet)
    assert not out.exists()  # the record before it is void
    assert [line.what for line in ledger(out)] == ["began", "passed", "began", "infrastructure"]
    assert reasons(out, repo) == ["missing"]
    assert replay.run(order(repo, out), quiet)[0].cache == "cold"
    assert reasons(out, repo) == ["admitted"]
    seeds = [line.seed for line in ledger(out) if line.what == "began"]
    assert len(set(seeds)) == 3
    with pytest.raises(replay.NotReplayed, match="2 replays of this change are spent"):
        replay.run(order(repo, out), quiet)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_cancelled_replay_writes_no_record(repo: Path, tmp_path: Path, number: int) -> None:
    toy.git(repo, "checkout", "-q", "-b", "slow", "main")
    toy.commit(repo, {"src/thing.py": "import time\n\n\ndef double(n):\n    time.sleep(600)\n"})
    out = tmp_path / "admission.json"
    given = [*toy.PROBATUM, "replay", "run", "--repo", str(repo), "--base", "main", "--head", "slow", "--out", str(out)]
    # A shell makes its background jobs ignore SIGINT; SIGTERM must end those too.
    meant = signal.SIG_DFL if number == signal.SIGINT else signal.SIG_IGN
    process = subprocess.Popen(
        given,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, meant),
    )
    try:
        beside = replay_files.beside(out)
        while process.poll() is None and not (beside.exists() and beside.stat().st_size):
            time.sleep(0.02)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert sorted(os.listdir(tmp_path)) == ["admission.json.ledger", "repo"]
    assert [line.what for line in ledger(out)] == ["began"]  # it counts
    assert reasons(out, repo, head="slow") == ["missing"]


def test_an_index_that_is_gone_is_infrastructure(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    out = tmp_path / "admission.json"
    with pytest.raises(EngineUnavailable):
        replay.run(order(repo, out), quiet)
    assert [line.what for line in ledger(out)] == ["began", "infrastructure"] and not out.exists()


def test_a_file_that_is_no_record_is_never_removed(repo: Path, tmp_path: Path) -> None:
    out = tmp_path / "notes.txt"
    out.write_text("mine")
    with pytest.raises(UsageError, match="no admission record"):
        replay.run(order(repo, out), quiet)
    assert out.read_text() == "mine" and not replay_files.beside(out).exists()


def test_a_broken_ledger_takes_no_more_lines(repo: Path, tmp_path: Path) -> None:
    kept = tmp_path / "replays.ledger"
    kept.write_bytes(b'{"seq":1}\n')
    with pytest.raises(EvidenceCorrupt):
        replay.run(order(repo, tmp_path / "admission.json", ledger=kept), quiet)
    assert kept.read_bytes() == b'{"seq":1}\n'


def test_the_gate_s_own_cache_is_not_touched(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBATUM_CACHE", str(tmp_path / "cache"))
    for name in ("XDG_CACHE_HOME", "HOME", "UV_CACHE_DIR", "PIP_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "home"))
    replay.run(order(repo, tmp_path / "admission.json", ledger=tmp_path / "l"), quiet)
    assert [path.name for path in cache_folder().iterdir()] == ["git"]
    assert not (tmp_path / "home").exists()
    assert replay_files.beside(tmp_path / "admission.json").read_bytes() == (tmp_path / "l").read_bytes()
