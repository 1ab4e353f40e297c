"""Bad input: one clear line, the right exit code, nothing half-written. What git alone decides is in tests/host."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import toy

Prepare = Callable[[Path], dict[str, str] | None]


def no_repository(repo: Path) -> None:
    repo.mkdir()


def unknown_base(repo: Path) -> dict[str, str]:
    good(repo)
    return {"base": "no-such-branch"}


def unknown_head(repo: Path) -> dict[str, str]:
    good(repo)
    return {"head": "f" * 40}


def no_policy(repo: Path) -> None:
    repo.mkdir()
    toy.git(repo, "init", "-q", "-b", "main")
    toy.commit(repo, {"a.py": "1\n"})
    toy.patch(repo, {"a.py": "2\n"})


def malformed_policy(repo: Path) -> None:
    toy.strict(repo, {"ci/gate.yaml": "version: 1\nlayout: strict\nversion: 1\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})


def unknown_key(repo: Path) -> None:
    toy.strict(repo, {"ci/gate.yaml": "version: 1\nlimit: {wall: 5m}\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})


def unknown_check(repo: Path) -> None:
    toy.strict(repo, {"ci/gate.yaml": "version: 1\nchecks: {src_scor: {}}\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})


def not_collectable(repo: Path) -> None:
    toy.strict(repo, {"tests/sealed/test_thing.py": "import no_such_module_at_all\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})


def zero_tests(repo: Path) -> None:
    toy.strict(repo, {"tests/sealed/test_thing.py": "x = 1\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})


def other_engine(repo: Path) -> dict[str, str]:
    toy.strict(repo, {"ci/gate.yaml": "version: 1\nengine: dagger\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})
    return {"engine": "bubblewrap"}


def good(repo: Path) -> None:
    toy.strict(repo)
    toy.patch(repo, {"src/thing.py": toy.MENDED})


ERRORS: list[tuple[Prepare, int, str]] = [
    (no_repository, 2, "not a git repository"),
    (unknown_base, 2, "no-such-branch"),
    (unknown_head, 2, "f" * 40),
    (no_policy, 2, "probatum init"),
    (malformed_policy, 2, "ci/gate.yaml:3"),
    (unknown_key, 2, "ci/gate.yaml:2"),
    (unknown_check, 2, "src_score"),
    (not_collectable, 2, "no_such_module_at_all"),
    (zero_tests, 2, "no test"),
    (other_engine, 2, "engine"),
]


@pytest.mark.parametrize(("prepare", "code", "word"), ERRORS, ids=lambda value: getattr(value, "__name__", None))
def test_one_line_and_exit(tmp_path: Path, prepare: Prepare, code: int, word: str) -> None:
    args = prepare(tmp_path / "repo") or {}
    extra = ["--engine", args.pop("engine")] if "engine" in args else []
    got, decision, said = toy.gate(tmp_path / "repo", tmp_path / "out", *extra, **args)
    lines = [line for line in said.splitlines() if line.startswith("probatum: ")]
    assert (got, len(lines)) == (code, 1), said
    assert word in lines[0]
    assert "Traceback" not in said
    assert not decision
    assert not list((tmp_path / "out").glob("*.txt"))


def conflict(repo: Path) -> None:
    toy.strict(repo)
    toy.patch(repo, {"src/thing.py": "def double(n):\n    return n - 1\n"})
    toy.git(repo, "checkout", "-q", "main")
    toy.commit(repo, {"src/thing.py": "def double(n):\n    return n - 2\n"})


def broken_manifest(repo: Path) -> None:
    toy.strict(repo, {"tests/sealed/MANIFEST.txt": "tests/sealed/test_other.py\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})


def broken_ledger(repo: Path) -> None:
    toy.strict(repo, {"ci/flake_leases.json": '{"leases": [],}'})
    toy.patch(repo, {"src/thing.py": toy.MENDED})


def no_seal(repo: Path) -> None:
    toy.strict(repo, {"ci/gate.yaml": "version: 1\nlayout: in-place\npaths: {sealed: ['tests/**']}\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})


def bad_seal(repo: Path) -> None:
    no_seal(repo)
    toy.git(repo, "checkout", "-q", "main")
    toy.commit(repo, {"ci/seal.lock": "not a seal\n"})
    toy.git(repo, "checkout", "-q", "agent")
    toy.git(repo, "rebase", "-q", "main")


def submodule(repo: Path) -> None:
    good(repo)
    oid = toy.git(repo, "rev-parse", "HEAD")
    toy.git(repo, "update-index", "--add", "--cacheinfo", f"160000,{oid},src/vendored")
    toy.git(repo, "commit", "-q", "-m", "submodule")


def lfs_pointer(repo: Path) -> None:
    toy.strict(repo, {".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n"})
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n"
    toy.patch(repo, {"src/thing.py": toy.MENDED, "src/data.bin": pointer})


def not_utf8(repo: Path) -> None:
    good(repo)
    with open(os.fsencode(repo) + b"/src/\xff\xfe.txt", "wb") as file:
        file.write(b"x")
    toy.commit(repo, {})


def four_thousand_characters(repo: Path) -> None:
    good(repo)
    path = "src/" + "/".join(["d" * 199] * 20) + "/x.py"
    oid = toy.git(repo, "rev-parse", "HEAD:src/thing.py")
    toy.git(repo, "update-index", "--add", "--cacheinfo", f"100644,{oid},{path}")
    toy.git(repo, "commit", "-q", "-m", "long")


def output_folder(repo: Path) -> None:
    good(repo)
    toy.commit(repo, {"ci_out/src_score.txt": "PASS"})


JUDGED: list[tuple[Prepare, str]] = [
    (conflict, "oracle_integrity/conflict"),
    (broken_manifest, "oracle_integrity/oracle-broken"),
    (broken_ledger, "flake_lease/malformed"),
    (no_seal, "oracle_integrity/oracle-broken"),
    (bad_seal, "oracle_integrity/oracle-broken"),
    (submodule, "oracle_integrity/link"),
    (lfs_pointer, "src_score/missing-content"),
    (four_thousand_characters, "oracle_integrity/unfit-path"),
    (output_folder, "oracle_integrity/output-folder"),
    (not_utf8, ""),
]


@pytest.mark.parametrize(("prepare", "finding"), JUDGED, ids=lambda value: getattr(value, "__name__", None))
def test_a_defect_that_is_a_finding(tmp_path: Path, prepare: Prepare, finding: str) -> None:
    prepare(tmp_path / "repo")
    code, decision, said = toy.gate(tmp_path / "repo", tmp_path / "out")
    assert decision, said
    found = set().union(*(toy.ids(decision, check) for check in decision["verdicts"]))
    assert (finding in found) if finding else (code == 0), said
    texts = {path.name: path.read_text() for path in (tmp_path / "out").glob("*.txt")}
    assert set(texts) == {"src_score.txt", "oracle_integrity.txt", "flake_lease.txt"}
    assert all((texts[f"{name}.txt"] == "PASS") == (named["verdict"] == "PASS") for name, named in decision["verdicts"].items())


def test_out_is_a_link(tmp_path: Path) -> None:
    good(tmp_path / "repo")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    code, _, said = toy.gate(tmp_path / "repo", tmp_path / "out")
    assert code == 2 and "link" in said
    assert not list((tmp_path / "elsewhere").iterdir())


def test_somebody_elses_folder_is_moved_not_deleted(tmp_path: Path) -> None:
    good(tmp_path / "repo")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/src_score.txt").write_text("PASS")
    (tmp_path / "out/precious").write_text("x")
    assert toy.gate(tmp_path / "repo", tmp_path / "out")[0] == 0
    assert (tmp_path / "out.previous/precious").read_text() == "x"


def test_a_model_key_is_refused(tmp_path: Path) -> None:
    good(tmp_path / "repo")
    code, _, said = toy.gate(tmp_path / "repo", tmp_path / "out", env={**os.environ, "MODEL_API_KEY": "x"})
    assert code == 2 and "MODEL_API_KEY" in said


def test_deciding_is_refused_from_a_checkout(tmp_path: Path) -> None:
    good(tmp_path / "repo")
    code, decision, said = toy.gate(tmp_path / "repo", tmp_path / "out", "--deciding")
    assert code == 2 and not decision and "checkout" in said


def test_no_user_namespaces(tmp_path: Path) -> None:
    """A sandbox in which namespaces are closed says so, and how to open them: exit 5."""
    good(tmp_path / "repo")
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho 'bwrap: No permissions to create a new namespace' >&2\nexit 1\n")
    fake.chmod(0o755)
    code, decision, said = toy.gate(tmp_path / "repo", tmp_path / "out", env={**os.environ, "PROBATUM_BWRAP": str(fake)})
    assert code == 5 and not decision
    assert "namespace" in said and "Traceback" not in said


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system needs root to be mounted")
@pytest.mark.parametrize("small", ["out", "tmp", "cache"])
def test_disk_full(tmp_path: Path, small: str) -> None:
    """Whichever disk is full: exit 5, one line, no decision, no PASS."""
    good(tmp_path / "repo")
    for name in ("out", "tmp", "cache"):
        (tmp_path / name).mkdir(mode=0o700)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "tmpfs", str(tmp_path / small)], check=True)
    try:
        env = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "PROBATUM_CACHE": str(tmp_path / "cache")}
        if small != "cache":
            env["PROBATUM_CACHE"] = os.environ.get("PROBATUM_CACHE", str(Path.home() / ".cache/probatum"))
        (tmp_path / small / "fill").write_bytes(b"x" * 60_000)
        code, decision, said = toy.gate(tmp_path / "repo", tmp_path / "out/ci_out", env=env)
        assert code == 5, said
        assert not decision and "Traceback" not in said
        assert not list((tmp_path / "out").rglob("*.txt"))
    finally:
        subprocess.run(["umount", str(tmp_path / small)], check=True)


def test_json_and_last_line(tmp_path: Path) -> None:
    good(tmp_path / "repo")
    command = [*toy.PROBATUM, "gate", "--repo", str(tmp_path / "repo"), "--base", "main", "--head", "agent", "--json"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], capture_output=True, text=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == "MERGE_OK"
    assert json.loads(lines[-2]) == json.loads((tmp_path / "out/decision.json").read_text())


def test_verify_sees_an_edited_record(tmp_path: Path) -> None:
    good(tmp_path / "repo")
    out = tmp_path / "out"
    assert toy.gate(tmp_path / "repo", out)[0] == 0
    verify = [*toy.PROBATUM, "verify", "--evidence"]
    assert subprocess.run([*verify, str(out)], capture_output=True).returncode == 0
    for path in sorted(out.glob("*.json")):
        spoilt = tmp_path / "spoilt"
        shutil.copytree(out, spoilt)
        raw = path.read_text()
        (spoilt / path.name).chmod(0o644)
        (spoilt / path.name).write_text(raw.replace('"tool":"probatum', '"tool":"probatun', 1))
        assert subprocess.run([*verify, str(spoilt)], capture_output=True).returncode == 4, path.name
        shutil.rmtree(spoilt)
