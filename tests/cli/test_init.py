"""``probatum init`` writes what is missing, moves and overwrites nothing, asks nothing, and says what still is missing."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
import yaml
from test_seal import commit, git, probatum

from package_index import unreachable

PLAIN = {
    "pyproject.toml": '[project]\nname = "parcel"\nversion = "1"\n',
    "src/parcel/__init__.py": "def double(n):\n    return n * 2\n",
    "tests/test_parcel.py": "import importlib.metadata\nfrom parcel import double\n\n\n"
    "def test_double():\n    assert double(3) == 6\n\n\n"
    "def test_version():\n    assert importlib.metadata.version('parcel') == '1'\n",
}


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def contents(repo: Path) -> dict[str, bytes]:
    return {str(p.relative_to(repo)): p.read_bytes() for p in repo.rglob("*") if p.is_file() and ".git/" not in f"{p}/"}


def test_in_place_writes_four_files_and_touches_no_other(repo):
    commit(repo, PLAIN)
    before, head = contents(repo), git(repo, "rev-parse", "HEAD")
    done = probatum(repo, "init", "--no-try")
    assert done.returncode == 0, done.stderr
    after = contents(repo)
    assert set(after) - set(before) == {
        "ci/gate.yaml",
        "ci/seal.lock",
        "ci/flake_leases.json",
        ".github/workflows/probatum.yml",
    }
    assert {name: after[name] for name in before} == before
    assert git(repo, "rev-parse", "HEAD") == head and git(repo, "for-each-ref", "--format=%(refname)") == "refs/heads/main"
    policy = yaml.safe_load(after["ci/gate.yaml"])
    assert policy["layout"] == "in-place" and policy["pythonpath"] == ["src", "."]
    assert policy["paths"]["product"] == ["src/**"] and policy["paths"]["sealed"] == ["tests/**"]


def test_a_second_init_keeps_everything(repo):
    commit(repo, PLAIN)
    probatum(repo, "init", "--no-try")
    before = contents(repo)
    done = probatum(repo, "init", "--no-try")
    assert done.returncode == 0 and contents(repo) == before
    assert done.stdout.count("kept ") == 4 and "wrote" not in done.stdout


def test_files_that_are_there_stay_as_they_are(repo):
    mine = "version: 1\nlayout: in-place\npaths: {product: [src/**], sealed: [tests/test_*.py]}\n"
    commit(repo, {**PLAIN, "ci/gate.yaml": mine, ".github/workflows/probatum.yml": "name: mine\n", "tests/data.csv": "1\n"})
    done = probatum(repo, "init", "--no-try")
    assert done.returncode == 0 and (repo / "ci/gate.yaml").read_text() == mine
    assert (repo / ".github/workflows/probatum.yml").read_text() == "name: mine\n"
    assert "data.csv" not in (repo / "ci/seal.lock").read_text(), "the seal follows the policy that is there"


def test_a_strict_layout_is_kept(repo):
    commit(
        repo,
        {
            "src/a.py": "",
            "tests/sealed/test_a.py": "def test_a(): pass\n",
            "tests/sealed/MANIFEST.txt": "tests/sealed/test_a.py\n",
        },
    )
    done = probatum(repo, "init", "--no-try")
    assert done.returncode == 0, done.stderr
    assert not (repo / "ci/seal.lock").exists() and "kept  tests/sealed/MANIFEST.txt" in done.stdout
    assert yaml.safe_load((repo / "ci/gate.yaml").read_text())["layout"] == "strict"


def test_other_ci_systems_get_no_workflow_and_a_noxfile_gets_advice(repo):
    commit(repo, {**PLAIN, ".gitlab-ci.yml": "x: {}\n", "noxfile.py": "import nox\n"})
    done = probatum(repo, "init", "--no-try")
    assert not (repo / ".github").exists() and (repo / "noxfile.py").read_text() == "import nox\n"
    assert "def gate(session" in done.stdout


def test_a_bad_policy_that_is_there_is_exit_2_and_nothing_is_written(repo):
    commit(repo, {**PLAIN, "ci/gate.yaml": "version: 1\nlayuot: strict\n"})
    done = probatum(repo, "init", "--no-try")
    assert done.returncode == 2 and "ci/gate.yaml:2" in done.stderr
    assert set(contents(repo)) == {*PLAIN, "ci/gate.yaml"}


@pytest.mark.parametrize("texts", [{"src/a.py": "", "README.md": "x"}])
def test_without_tests_it_says_so_and_writes_nothing(repo, texts):
    commit(repo, texts)
    done = probatum(repo, "init")
    assert done.returncode == 2 and "holds no test module" in done.stderr and set(contents(repo)) == set(texts)


def test_the_workflow_runs_nothing_of_the_pull_request(repo):
    commit(repo, PLAIN)
    probatum(repo, "init", "--no-try")
    text = (repo / ".github/workflows/probatum.yml").read_text()
    flow = yaml.load(text, yaml.BaseLoader)
    assert set(flow["on"]) == {"pull_request_target", "merge_group"} and flow["permissions"] == {}
    assert flow["jobs"]["gate"]["permissions"] == {"contents": "read"} and flow["concurrency"]["cancel-in-progress"] == "false"
    assert not re.search(r"^\s*(- )?uses:", text, re.MULTILINE), "no action to pin, no checkout"
    assert re.search(r'"probatum==\d+\.\d+\.\d+"', text)
    scripts = [step["run"] for job in flow["jobs"].values() for step in job["steps"]]
    assert not any("${{" in script for script in scripts), "no expression is pasted into a shell"
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


def test_the_trial_runs_the_whole_gate_and_says_that_a_patch_would_merge(repo):
    commit(repo, PLAIN)
    if why := unreachable():
        pytest.skip(why)
    done = probatum(repo, "init")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "tried: a comment in a product file would merge" in done.stdout
    assert git(repo, "status", "--porcelain") == "?? .github/\n?? ci/"
    assert not [path for path in (repo.parent / "cache/git").iterdir() if path.is_dir() and path.name != _key(repo)]


def test_the_trial_names_what_keeps_an_honest_patch_out(repo):
    commit(repo, {**PLAIN, "tests/test_red.py": "import os\n\n\ndef test_red():\n    assert os.environ['APP'] == 'tests'\n"})
    if why := unreachable():
        pytest.skip(why)
    done = probatum(repo, "init")
    assert done.returncode == 1 and "missing: " in done.stdout and "test_red" in done.stdout


def test_skips_that_are_there_get_rows_with_an_owner_and_a_day(repo):
    skips = (
        "import os\nimport pytest\n\n\n@pytest.mark.skipif('APP' not in os.environ, reason='no app')\n"
        "def test_app():\n    pass\n\n\n"
        "@pytest.mark.skip(reason='broken')\ndef test_broken():\n    assert 1 == 2, 'one is not two'\n"
    )
    commit(repo, {**PLAIN, "tests/test_skips.py": skips})
    if why := unreachable():
        pytest.skip(why)
    done = probatum(repo, "init", "--owner", "a person", "--days", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    ledger = json.loads((repo / "ci/flake_leases.json").read_text())
    (lease,), (standing,) = ledger["leases"], ledger["standing"]
    assert lease["nodeid"] == "tests/test_skips.py::test_broken" and lease["owner"] == "a person"
    assert lease["failure_signature"].startswith("AssertionError: one is not two"), "as it fails when it is forced to run"
    assert standing["condition"] == "'APP' not in os.environ"
    assert 29 * 86400 < lease["expires_at"] - time.time() <= 30 * 86400


def _key(repo: Path) -> str:
    from probatum.host.cache import cache_key

    return cache_key(repo.resolve())
