"""``probatum lease``: digests from plain files and from git, and a ledger that is written whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

import toy
from probatum.cli import main

TEST = "tests/sealed/test_a.py"
SOURCE = """\
import pytest

from src.thing import double


@pytest.mark.skip
def test_skipped():
    assert double(2) == 4


class TestMore:
    @pytest.mark.parametrize("n", [1, 2])
    def test_one(self, n):
        assert double(n)
"""
ADD = ("--owner", "me@example.com", "--reason", "why", "--signature", "AssertionError: assert 3")


@pytest.fixture
def top(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plain folder, no git, no policy; the current directory is elsewhere."""
    monkeypatch.setenv("PROBATUM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "a folder"
    for name, text in {TEST: SOURCE, "src/thing.py": toy.PRODUCT, "tests/sealed/MANIFEST.txt": f"{TEST}\n"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def lease(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str, str]:
    code = main(["lease", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


def ledger(top: Path) -> Any:
    return json.loads((top / "ci/flake_leases.json").read_text())


def test_digest_is_json_or_one_bare_value(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = lease(capsys, "digest", "--repo", top, f"{TEST}::test_skipped")
    both = json.loads(out)
    assert code == 0 and len(both["source_digest"]) == len(both["bytecode_hash"]) == 64
    for field in ("source_digest", "bytecode_hash"):
        assert lease(capsys, "digest", "--repo", top, f"{TEST}::test_skipped", "--field", field)[1] == both[field] + "\n"


def test_digest_leaves_parameters_out_and_takes_a_module(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = [
        lease(capsys, "digest", "--repo", top, f"{TEST}{name}", "--field", "source_digest")[1]
        for name in ("::TestMore::test_one", "::TestMore::test_one[1]", "::test_skipped", "")
    ]
    assert seen[0] == seen[1] and len(set(seen)) == 3 and all(len(each) == 65 for each in seen)


def test_digest_executes_nothing(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (top / TEST).write_text("open('/dev/full', 'w').write('x' * 10**6)\n" + SOURCE)
    (top / "tests/sealed/conftest.py").write_text("raise SystemExit(9)\n")
    assert lease(capsys, "digest", "--repo", top, f"{TEST}::test_skipped")[0] == 0


@pytest.mark.parametrize(
    ("test", "says"),
    [
        (f"{TEST}::test_none", "has no test"),
        ("tests/sealed/none.py::test_a", "is no sealed file"),
        ("src/thing.py::double", "is no sealed file"),
        ("../a folder/tests/sealed/test_a.py::test_skipped", "is no sealed file"),
        (f"{TEST}::TestNone::test_one", "has no class"),
    ],
)
def test_an_unknown_test_is_exit_2_and_one_line(top: Path, capsys: pytest.CaptureFixture[str], test: str, says: str) -> None:
    code, out, err = lease(capsys, "digest", "--repo", top, test)
    assert (code, out) == (2, "") and says in err and err.count("\n") == 1


def test_a_link_out_of_the_folder_is_not_followed(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (top / "outside.py").write_text(SOURCE)
    (top / "tests/sealed/test_link.py").symlink_to(top / "outside.py")
    assert lease(capsys, "digest", "--repo", top, "tests/sealed/test_link.py::test_skipped")[0] == 2


def test_plain_files_and_a_revision_agree(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    toy.git(top, "init", "-q", "-b", "main")
    first = toy.commit(top, {})
    name = f"{TEST}::test_skipped"
    plain = lease(capsys, "digest", "--repo", top, name)[1]
    (top / TEST).write_text(SOURCE.replace("== 4", "== 5"))
    moved = lease(capsys, "digest", "--repo", top, name)[1]
    assert lease(capsys, "digest", "--repo", top, "--rev", first, name)[1] == plain != moved
    assert lease(capsys, "digest", "--repo", top, "--rev", "none", name)[0] == 2


def test_the_policy_s_sealed_paths_are_read(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (top / "checks").mkdir()
    (top / "checks/test_b.py").write_text("def test_b(): pass\n")
    assert lease(capsys, "digest", "--repo", top, "checks/test_b.py::test_b")[0] == 2
    (top / "ci").mkdir()
    (top / "ci/gate.yaml").write_text("version: 1\npaths: {sealed: [checks/**]}\n")
    assert lease(capsys, "digest", "--repo", top, "checks/test_b.py::test_b")[0] == 0
    (top / "ci/gate.yaml").write_text("version: 1\nversion: 1\n")
    assert lease(capsys, "digest", "--repo", top, "checks/test_b.py::test_b")[0] == 2


def test_in_place_the_seal_says_what_is_sealed(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (top / "ci").mkdir()
    (top / "ci/gate.yaml").write_text("version: 1\nlayout: in-place\npaths: {sealed: [tests/**]}\n")
    toy.git(top, "init", "-q", "-b", "main")
    toy.commit(top, {})
    assert main(["seal", "--repo", str(top)]) == 0
    capsys.readouterr()
    code, _, err = lease(capsys, "digest", "--repo", top, f"{TEST}::test_skipped")
    assert (code, err) == (0, "")
    (top / "tests/test_new.py").write_text("def test_new(): pass\n")
    assert lease(capsys, "digest", "--repo", top, "tests/test_new.py::test_new")[0] == 2
    (top / TEST).write_text(SOURCE + "# more\n")
    code, _, err = lease(capsys, "digest", "--repo", top, f"{TEST}::test_skipped")
    assert code == 0 and "is not what ci/seal.lock pins" in err


def test_add_writes_a_row_that_check_accepts(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = lease(capsys, "check", "--repo", top)
    assert code == 1 and "flake_lease/no-lease" in out
    assert lease(capsys, "add", "--repo", top, f"{TEST}::test_skipped", *ADD, "--days", "7")[0] == 0
    (row,) = ledger(top)["leases"]
    assert row["expires_at"] - row["first_seen"] == 7 * 86_400
    assert (top / "ci/flake_leases.json").read_text() == json.dumps(ledger(top), indent=2) + "\n"
    assert lease(capsys, "check", "--repo", top)[0] == 0
    (top / TEST).write_text(SOURCE.replace("== 4", "== 5"))
    code, out, _ = lease(capsys, "check", "--repo", top)
    assert code == 1 and "flake_lease/drifted" in out


def test_add_a_standing_row(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ("--owner", "me", "--reason", "why", "--condition", "sys.platform == 'win32'")
    assert lease(capsys, "add", "--repo", top, f"{TEST}::test_skipped", *args)[0] == 0
    assert ledger(top)["leases"] == [] and ledger(top)["standing"][0]["condition"] == "sys.platform == 'win32'"


@pytest.mark.parametrize(
    "args",
    [
        (f"{TEST}::test_none", *ADD),
        (f"{TEST}::test_skipped", *ADD, "--days", "0"),
        (f"{TEST}::test_skipped", *ADD, "--days", "91"),
        (f"{TEST}::test_skipped", *ADD[:4]),
        (f"{TEST}::test_skipped", *ADD, "--condition", "x"),
        (f"{TEST}::test_skipped", *ADD[:4], "--signature", "AssertionError"),
        (f"{TEST}::test_skipped", "--owner", "", *ADD[2:]),
        (f"{TEST}::test_skipped", "--owner", "a\ud800", *ADD[2:]),
    ],
)
def test_add_refuses_what_the_gate_would(top: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]) -> None:
    code, _, err = lease(capsys, "add", "--repo", top, *args)
    assert code == 2 and err.count("\n") == 1
    assert not (top / "ci/flake_leases.json").exists()


def test_add_refuses_a_second_row(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lease(capsys, "add", "--repo", top, f"{TEST}::test_skipped", *ADD)[0] == 0
    before = (top / "ci/flake_leases.json").read_bytes()
    assert lease(capsys, "add", "--repo", top, f"{TEST}::test_skipped", *ADD)[0] == 2
    assert (top / "ci/flake_leases.json").read_bytes() == before


def test_a_malformed_ledger_is_never_overwritten(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (top / "ci").mkdir()
    (top / "ci/flake_leases.json").write_text('{"leases": [],}')
    for action in (("add", f"{TEST}::test_skipped", *ADD), ("renew", f"{TEST}::test_skipped"), ("list",)):
        code, _, err = lease(capsys, action[0], "--repo", top, *action[1:])
        assert code == 2 and "strict JSON" in err
    code, out, _ = lease(capsys, "check", "--repo", top)
    assert code == 1 and "flake_lease/malformed" in out
    assert (top / "ci/flake_leases.json").read_text() == '{"leases": [],}'


def test_a_linked_ledger_is_refused(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (top / "ci").mkdir()
    (top / "elsewhere.json").write_text('{"leases": []}')
    (top / "ci/flake_leases.json").symlink_to(top / "elsewhere.json")
    assert lease(capsys, "add", "--repo", top, f"{TEST}::test_skipped", *ADD)[0] == 2
    assert (top / "elsewhere.json").read_text() == '{"leases": []}'


def test_renew_rebinds_a_row_and_converts_the_article_s_form(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "qualname": "test_a.test_skipped",
        "bytecode_hash": "9c1e0a77ab12f0d1",
        "failure_signature": "AssertionError: expected TokenError at col 18",
        "expires_at": 1758614400,
        "owner": "maintainer@example",
        "reason": "repro only on glibc 2.39",
    }
    (top / "ci").mkdir()
    (top / "ci/flake_leases.json").write_text(json.dumps({"leases": [row]}))
    assert lease(capsys, "check", "--repo", top)[0] == 1
    assert lease(capsys, "renew", "--repo", top, f"{TEST}::test_skipped")[0] == 0
    (new,) = ledger(top)["leases"]
    assert new["qualname"] == row["qualname"] and new["failure_signature"] == row["failure_signature"]
    assert len(new["source_digest"]) == len(new["bytecode_hash"]) == 64 and new["python"]
    assert lease(capsys, "check", "--repo", top)[0] == 0
    assert lease(capsys, "renew", "--repo", top, f"{TEST}::TestMore::test_one")[0] == 2


def test_list_warns_a_week_before(top: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lease(capsys, "list", "--repo", top)[1] == "the ledger is empty\n"
    for name, days in (("test_skipped", "30"), ("TestMore::test_one", "7")):
        assert lease(capsys, "add", "--repo", top, f"{TEST}::{name}", *ADD, "--days", days)[0] == 0
    code, out, err = lease(capsys, "list", "--repo", top)
    assert code == 0 and [line.split()[1] for line in out.splitlines()] == [
        f"{TEST}::TestMore::test_one",
        f"{TEST}::test_skipped",
    ]
    assert "test_one" in err and "test_skipped" not in err


def test_it_needs_no_git(top: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    env = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*toy.PROBATUM, "lease", "digest", "--field", "source_digest", f"{TEST}::test_skipped"]
    done = subprocess.run(command, cwd=top, env=env, capture_output=True, text=True)
    assert done.returncode == 0 and len(done.stdout) == 65, done.stderr


def test_a_full_disk_leaves_the_old_ledger(
    top: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert lease(capsys, "add", "--repo", top, f"{TEST}::test_skipped", *ADD)[0] == 0
    before = (top / "ci/flake_leases.json").read_bytes()

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = lease(capsys, "add", "--repo", top, f"{TEST}::TestMore::test_one", *ADD)
    assert code == 2 and "No space left" in err
    assert (top / "ci/flake_leases.json").read_bytes() == before and len(list((top / "ci").iterdir())) == 1
