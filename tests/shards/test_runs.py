"""Shards in real sandboxes: joined and green, and every way in which one of them can go wrong is seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import toy

MANY = "import pytest\n\n\n@pytest.mark.parametrize('n', range(8))\ndef test_n(n):\n    assert n < 9\n"
FILES: dict[str, str | bytes | None] = {
    "src/thing.py": toy.MENDED,
    "tests/proposed/test_many.py": MANY,
    "tests/proposed/test_skip.py": "import pytest\n\n\ndef test_skip():\n    pytest.skip('not today')\n",
}


def shards(*args: str | Path, env: dict[str, str] | None = None, wrap: tuple[str, ...] = ()) -> tuple[int, str]:
    """Exit code and output of a real ``probatum shards``."""
    command = [*wrap, *toy.PROBATUM, "shards", *map(str, args)]
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "BUILDKITE_", "TEST_"))}
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, env={**ours, **(env or {})})
    return done.returncode, done.stdout + done.stderr


class Place:
    """A repository with a patch, and a plan of it."""

    def __init__(
        self, folder: Path, files: dict[str, str | bytes | None], base: dict[str, str | bytes | None] | None = None
    ) -> None:
        self.repo, self.out = folder / "repo", folder / "shards"
        toy.strict(self.repo, base)
        self.head = toy.patch(self.repo, {**FILES, **files})

    def plan(self, *args: str) -> tuple[int, str]:
        where = ("--repo", self.repo, "--base", "main", "--head", "agent", "--out", self.out)
        return shards("plan", *where, *args)

    def run(self, *args: str | Path, **kwargs: Any) -> tuple[int, str]:
        return shards("run", "--plan", self.out / "plan.json", "--repo", self.repo, *args, **kwargs)

    def gate(self) -> tuple[int, list[str]]:
        code, said = shards("gate", self.out, "--repo", self.repo, "--base", "main", "--head", "agent")
        return code, said.splitlines()

    def file(self, name: str) -> Any:
        return json.loads((self.out / name).read_text())

    def shard_of(self, part: str) -> int:
        """The shard that runs the node id with ``part`` in it."""
        (found,) = (index for index, group in enumerate(self.file("plan.json")["groups"]) if any(part in id_ for id_ in group))
        return int(found)


def test_green(tmp_path: Path) -> None:
    place = Place(tmp_path, {})
    code, said = place.plan("--shards", "3")
    assert code == 0, said
    plan = place.file("plan.json")
    assert len(plan["node_ids"]) == 11 and plan["commit"] == place.head
    code, said = place.run()
    assert code == 0, said
    assert all(f"shard {index}: passed" in said for index in range(3))
    assert place.gate() == (0, [f"SHARDS_OK: 11 node ids, 3 shards, commit {place.head[:12]}"])
    skipped = [place.file(f"shard-{index}.json")["skipped"] for index in range(3)]
    assert {"tests/proposed/test_skip.py::test_skip": "Skipped: not today"} in skipped
    nonces = {place.file(f"shard-{index}.json")["nonce"] for index in range(3)}
    assert len(nonces) == 3 and all(len(nonce) == 32 for nonce in nonces)
    # Recorded durations make the next plan's, and the head that moved makes this one stale.
    code, said = shards("gate", place.out, "--update-durations", tmp_path / "durations.json")
    assert code == 0 and "no reviewed head was given" in said
    toy.commit(place.repo, {"README.md": "more"})
    code, lines = place.gate()
    assert code == 1 and lines[0].startswith(f"shards/stale-plan: planned for commit {place.head[:12]}")
    code, said = place.plan("--shards", "2", "--durations", str(tmp_path / "durations.json"), "--keep-together", "file")
    assert code == 0 and "11 of 11 recorded" in said
    assert not list(place.out.glob("shard-*.json")), "a new plan takes the old manifests away"


def test_one_test_fails(tmp_path: Path) -> None:
    place = Place(
        tmp_path, {"tests/proposed/test_red.py": "def test_red():\n    token = 'x'\n    assert {'token': 'abc123'} == 1\n"}
    )
    assert place.plan("--shards", "3")[0] == 0
    code, said = place.run()
    assert code == 1 and "1 failed" in said
    code, lines = place.gate()
    red = place.shard_of("test_red")
    assert code == 1 and len(lines) == 2
    assert lines[0].startswith(f"shards/failed: shard {red} ended as failed: 1 failed, the first is tests/proposed/test_red.py")
    assert "abc123" not in (place.out / f"shard-{red}.json").read_text()
    assert (place.out / "junit.xml").read_text().count("<failure") == 2


def test_killed_in_mid_run_leaves_no_manifest_and_no_process(tmp_path: Path) -> None:
    place = Place(tmp_path, {"tests/proposed/test_slow.py": "def test_slow():\n    while True:\n        pass\n"})
    assert place.plan("--shards", "3", "--keep-together", "file")[0] == 0
    slow = place.shard_of("test_slow")
    for index in range(3):
        if index != slow:
            assert place.run("--index", str(index))[0] == 0
    command = [*toy.PROBATUM, "shards", "run", "--plan", str(place.out / "plan.json"), "--repo", str(place.repo)]
    runner = subprocess.Popen([*command, "--index", str(slow)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    sandbox = next(pid for pid in iter(lambda: child_named(runner.pid, "/probe/run.py"), None) if pid)
    runner.send_signal(signal.SIGKILL)
    runner.wait()
    end = time.monotonic() + 10
    while os.path.exists(f"/proc/{sandbox}") and time.monotonic() < end:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{sandbox}")
    code, lines = place.gate()
    assert code == 1 and lines[0].startswith(f"shards/missing: shard {slow} has no manifest: ")
    assert len(lines) == 2


def child_named(pid: int, word: str) -> int:
    """A process below ``pid`` with ``word`` in its command line; 0 while there is none."""
    parents = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parents[int(entry)] = int(Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, IndexError):
                continue
    for found in parents:
        above = found
        while above in parents and above != pid:
            above = parents[above]
        try:
            if above == pid and word in Path(f"/proc/{found}/cmdline").read_text():
                return found
        except OSError:
            continue
    return 0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("import os, signal\n    os.kill(os.getpid(), signal.SIGKILL)", "killed-by-signal-9"),
        ("import os\n    os._exit(0)", "unfinished"),
        ("open('/tmp/big', 'wb').write(bytes(64 << 20))", "over-disk"),
    ],
)
def test_a_shard_that_dies_says_how(tmp_path: Path, body: str, status: str) -> None:
    base: dict[str, str | bytes | None] = {"ci/gate.yaml": "version: 1\nlimits: {disk: 32MiB}\n"}
    place = Place(tmp_path, {"tests/proposed/test_die.py": f"def test_die():\n    {body}\n"}, base)
    assert place.plan("--shards", "2")[0] == 0
    code, said = place.run()
    index = place.shard_of("test_die")
    assert code == 1 and f"shard {index}: {status}" in said, said
    code, lines = place.gate()
    assert code == 1 and lines[0].startswith(f"shards/failed: shard {index} ended as {status}")


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can only be mounted by root")
@pytest.mark.parametrize(("full", "inodes"), [("work", 4), ("out", 1)])
def test_a_runner_without_disk_has_no_manifest(tmp_path: Path, full: str, inodes: int) -> None:
    place = Place(tmp_path, {})
    assert place.plan("--shards", "3")[0] == 0
    assert place.run("--index", "0")[0] == place.run("--index", "2")[0] == 0
    small, out = tmp_path / "small", tmp_path / "small" if full == "out" else tmp_path / "elsewhere"
    small.mkdir()
    script = f'mount -t tmpfs -o size=4k,nr_inodes={inodes} none {small} && exec "$@"'
    env = {"TMPDIR": str(small)} if full == "work" else {}
    code, said = place.run("--index", "1", "--out", out, env=env, wrap=("unshare", "--mount", "sh", "-c", script, "sh"))
    assert code == 5 and "room" in said, said
    assert not (out / "shard-1.json").exists()
    code, lines = place.gate()
    assert code == 1 and lines[0].startswith("shards/missing: shard 1 has no manifest")


def test_what_is_collected_must_be_what_the_plan_says(tmp_path: Path) -> None:
    moving = "import os, pytest\n\n\n@pytest.mark.parametrize('n', [os.urandom(4).hex()])\ndef test_new(n):\n    pass\n"
    place = Place(tmp_path, {"tests/proposed/test_moving.py": moving + "\n\ndef test_old():\n    pass\n"})
    assert place.plan("--shards", "2", "--keep-together", "file")[0] == 0
    code, said = place.run()
    index = place.shard_of("test_old")
    assert code == 1 and f"shard {index}: refused, 0 of" in said, said
    assert "1 missing, the first is" in place.file(f"shard-{index}.json")["note"]
    code, lines = place.gate()
    assert code == 1 and any(line.startswith(f"shards/failed: shard {index} ended as refused") for line in lines)


def test_a_second_attempt_shows_and_only_a_lease_at_base_excuses_it(tmp_path: Path) -> None:
    flaky = "tests/proposed/test_many.py::test_n[3]"
    now = int(time.time())
    quarantined = {"id": flaky, "first_seen": now - 9, "expires": now + 900, "owner": "a person", "reason": "it flakes"}
    base: dict[str, str | bytes | None] = {"ci/flake_leases.json": json.dumps({"leases": [], "quarantine": [quarantined]})}
    place = Place(tmp_path, {}, base)
    assert place.plan("--shards", "3")[0] == 0
    index = place.shard_of(flaky)
    other = (index + 1) % 3
    assert place.run()[0] == 0 and place.gate()[0] == 0
    # The first time it was red; then it is run again.
    first = place.file(f"shard-{index}.json")
    first |= {"status": "failed", "failures": [{"id": flaky, "outcome": "failed", "text": "E: x"}]}
    (place.out / f"shard-{index}.json").write_text(json.dumps(first))
    assert place.run("--index", str(index))[0] == 0
    again = place.file(f"shard-{index}.json")
    assert (again["attempts"], again["retried"], again["status"]) == (2, [flaky], "passed")
    assert place.gate()[0] == 0
    assert place.run("--index", str(other), "--attempt", "2")[0] == 0
    code, lines = place.gate()
    assert code == 1 and lines[0].startswith(f"shards/retried: shard {other} is green only on attempt 2")


def test_a_suite_that_cannot_be_collected_has_no_plan(tmp_path: Path) -> None:
    place = Place(tmp_path, {"tests/proposed/test_broken.py": "import nowhere\n"})
    code, said = place.plan("--shards", "2")
    assert code == 1 and "shards/no-plan: tests/proposed/test_broken.py cannot be collected: ModuleNotFoundError" in said
    assert not (place.out / "plan.json").exists()
    code, said = place.run()
    assert code == 2 and said.count("\n") == 1


def test_the_sealed_suite_is_the_oracle_over_the_merged_product(tmp_path: Path) -> None:
    place = Place(tmp_path, {"tests/sealed/test_thing.py": "def test_mine():\n    pass\n"})
    assert place.plan("--shards", "2", "--suite", "sealed")[0] == 0
    assert place.file("plan.json")["node_ids"] == [f"tests/sealed/test_thing.py::test_{name}" for name in ("double", "one")]
    assert place.run()[0] == 0 and place.gate()[0] == 0


def test_a_plan_of_another_patch_or_an_edited_one_is_not_run(tmp_path: Path) -> None:
    place = Place(tmp_path, {})
    assert place.plan("--shards", "2")[0] == 0
    plain = place.file("plan.json")
    (place.out / "plan.json").write_text(json.dumps({**plain, "shards": 1}))
    assert place.run()[0] == 4
    (place.out / "plan.json").write_text(json.dumps(plain, indent=1))
    code, said = place.run("--index", "2")
    assert code == 2 and "the shards 0 to 1" in said


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Place:
    reads = "import os\n\n\ndef test_env():\n    assert os.environ.get('TEST_TOTAL_SHARDS') in (None, '2')\n"
    place = Place(tmp_path_factory.mktemp("bazel"), {"tests/proposed/test_env.py": reads})
    assert place.plan("--shards", "2")[0] == 0
    return place


def test_bazel_s_variables_choose_the_shard(planned: Place, tmp_path: Path) -> None:
    status = tmp_path / "status"
    env = {"TEST_SHARD_INDEX": "1", "TEST_TOTAL_SHARDS": "2", "TEST_SHARD_STATUS_FILE": str(status)}
    code, said = planned.run("--out", tmp_path, "--bazel-env", env=env)
    assert code == 0 and status.exists() and [path.name for path in tmp_path.glob("shard-*.json")] == ["shard-1.json"], said
    code, said = planned.run("--out", tmp_path, env={**env, "TEST_TOTAL_SHARDS": "3"})
    assert code == 2 and "the plan has 2 shards" in said


def test_a_ci_system_s_second_run_is_a_second_attempt(planned: Place, tmp_path: Path) -> None:
    assert planned.run("--out", tmp_path, "--index", "0", env={"GITHUB_RUN_ATTEMPT": "3"})[0] == 0
    assert json.loads((tmp_path / "shard-0.json").read_text())["attempts"] == 3


@pytest.mark.parametrize(("kind", "load"), [("github", json.loads), ("buildkite", json.loads), ("gitlab", None)])
def test_matrices_name_every_shard(kind: str, load: Any) -> None:
    import yaml

    code, said = shards("--matrix", kind, "--shards", "3")
    assert code == 0
    found = (load or yaml.safe_load)(said)
    if kind == "github":
        assert [row["index"] for row in found["include"]] == [0, 1, 2]
    elif kind == "buildkite":
        assert [step["env"]["TEST_SHARD_INDEX"] for step in found["steps"]] == ["0", "1", "2"]
    else:
        assert found["parallel"]["matrix"][0]["TEST_SHARD_INDEX"] == ["0", "1", "2"]


def test_the_door_does_it_all(tmp_path: Path) -> None:
    place = Place(tmp_path, {})
    where = ("--repo", place.repo, "--base", "main", "--head", "agent", "--out", place.out)
    code, said = shards("--shards", "2", *where)
    assert code == 0 and "SHARDS_OK: 11 node ids, 2 shards" in said


def test_as_a_check_of_the_gate(tmp_path: Path) -> None:
    policy = "version: 1\nchecks:\n  oracle_integrity: {}\n  src_score: {}\n  flake_lease: {}\n  shards: {count: 2}\n"
    place = Place(tmp_path, {}, {"ci/gate.yaml": policy})
    code, decision, said = toy.gate(place.repo, tmp_path / "ci_out")
    assert code == 0, said
    (covered,) = decision["verdicts"]["shards"]["findings"]
    assert covered["id"] == "shards/covered" and "11 node ids, 2 shards" in covered["reason"]
    toy.commit(place.repo, {"tests/proposed/test_red.py": "def test_red():\n    assert 0\n"})
    code, decision, said = toy.gate(place.repo, tmp_path / "ci_out")
    assert code == 1 and "shards/failed" in toy.ids(decision, "shards"), said


def test_src_score_s_real_run_is_split_by_the_same_plan(tmp_path: Path) -> None:
    policy = "version: 1\nchecks:\n  oracle_integrity: {}\n  src_score: {shards: 2}\n  flake_lease: {}\n"
    more = "from src.thing import double\n"
    more += "".join(f"\n\ndef test_{n}():\n    assert double({n}) == {2 * n}\n" for n in (2, 0))
    place = Place(
        tmp_path,
        {},
        {
            "ci/gate.yaml": policy,
            "tests/sealed/test_more.py": more,
            "tests/sealed/MANIFEST.txt": "tests/sealed/test_more.py\ntests/sealed/test_thing.py\n",
        },
    )
    code, _, said = toy.gate(place.repo, tmp_path / "ci_out")
    assert code == 0, said
    parts = [
        json.loads((tmp_path / "ci_out" / f"suite.run{end}.json").read_text())["predicate"]["body"] for end in ("0", "1", "")
    ]
    ran = [sorted(row["id"] for row in part["tests"]) for part in parts]
    assert ran[0] and ran[1] and sorted(ran[0] + ran[1]) == ran[2] and len(ran[2]) == 4
    toy.commit(place.repo, {"src/thing.py": "def double(n):\n    return n * 2 if n != 1 else 0\n"})
    code, decision, said = toy.gate(place.repo, tmp_path / "ci_out")
    assert code == 1 and toy.ids(decision, "src_score") == {"src_score/newly-red"}, said
