"""How even the split is, what planning and the probe cost, and how long a split run takes: beside pytest-split and xdist.

    python tests/bench/shards.py [split] [plan] [probe] [wall] [--data DIR] [--seeds N]

Suites are real ones, fetched once into --data as source distributions and run once under plain pytest to record durations.
Needs pytest-split and pytest-xdist beside the development dependencies (``nox -s bench -- shards`` brings them along).
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import random
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "pipeline"), str(ROOT / "tests")]

import toy  # noqa: E402
from probatum.core import split  # noqa: E402

SUITES = {"networkx-3.4.2": ("networkx==3.4.2", "networkx", "."), "attrs-24.2.0": ("attrs==24.2.0", "tests", "src")}
"""Folder to requirement, tests, and what goes on sys.path."""
QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
PARTS = (4, 8, 16, 32)
PLUGIN = """
import json, os
seen = {}
def pytest_runtest_logreport(report):
    seen[report.nodeid] = seen.get(report.nodeid, 0) + int(report.duration * 1e6)
def pytest_sessionfinish(session):
    with open(os.environ["DURATIONS"], "w") as out:
        json.dump(seen, out)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="*", default=["split", "plan", "probe", "wall"])
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "probatum-bench-shards")
    parser.add_argument("--seeds", type=int, default=20)
    args = parser.parse_args()
    args.data.mkdir(parents=True, exist_ok=True)
    for what in args.what:
        {"split": bench_split, "plan": bench_plan, "probe": bench_probe, "wall": bench_wall}[what](args)


def suite(data: Path, name: str) -> Path:
    """The unpacked source distribution."""
    if not (data / name).is_dir():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(data)]
        subprocess.run([*command, SUITES[name][0]], check=True)
        with tarfile.open(next(data.glob(f"{name}.tar.gz"))) as archive:
            archive.extractall(data, filter="data")
    return data / name


def durations(data: Path, name: str) -> dict[str, int]:
    """Microseconds of every node id, recorded once by plain pytest, in the order in which they ran."""
    found = data / f"{name}.json"
    if not found.exists():
        (data / "recorder.py").write_text(PLUGIN)
        run_plain(suite(data, name), name, ["-p", "recorder"], {"DURATIONS": str(found)}, data)
    recorded: dict[str, int] = json.loads(found.read_text())
    return recorded


def run_plain(folder: Path, name: str, options: Iterable[str], env: dict[str, str], data: Path) -> float:
    paths = os.pathsep.join([str(folder / SUITES[name][2]), str(data)])
    began = time.perf_counter()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, SUITES[name][1]]
    subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": paths, **env}, **QUIET)
    return time.perf_counter() - began


class Item:
    """As much of a pytest item as pytest-split looks at."""

    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def __hash__(self) -> int:
        return hash(self.nodeid)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Item) and other.nodeid == self.nodeid


def theirs(name: str, order: list[str], known: dict[str, int], parts: int) -> list[list[str]]:
    from pytest_split import algorithms

    items: Any = [Item(id_) for id_ in order]
    groups = algorithms.Algorithms[name].value(parts, items, {id_: us / 1e6 for id_, us in known.items()})
    return [[item.nodeid for item in group.selected] for group in groups]


def bench_split(args: argparse.Namespace) -> None:
    print(
        "longest shard / lower bound (all known; a third unknown: mean over seeds, and seeds in which ours was the longer one)"
    )
    print(f"{'suite':<16}{'shards':>7} |" + f"{'ours':>8}{'chunks':>8}{'least':>8} |" * 2 + f"{'worse in':>9}")
    for name in SUITES:
        true = durations(args.data, name)
        order, ids = list(true), sorted(true)
        ways: list[Callable[[dict[str, int], int], Any]] = [
            functools.partial(split.split, ids),
            functools.partial(theirs, "duration_based_chunks", order),
            functools.partial(theirs, "least_duration", order),
        ]
        for parts in PARTS:
            bound = split.lower_bound([max(1, true[id_]) for id_ in ids], parts)

            def ratio(groups: Any, true: dict[str, int] = true, bound: int = bound) -> float:
                return max(sum(true[id_] for id_ in group) for group in groups) / bound

            full = [ratio(way(true, parts)) for way in ways]
            rows = []
            for seed in range(args.seeds):
                hidden = set(random.Random(seed).sample(ids, len(ids) // 3))
                known = {id_: us for id_, us in true.items() if id_ not in hidden}
                rows.append([ratio(way(known, parts)) for way in ways])
            third = [statistics.mean(column) for column in zip(*rows, strict=True)]
            worse = sum(row[0] > min(row[1:]) + 1e-9 for row in rows)
            figures = " | ".join("".join(f"{value:8.4f}" for value in values) for values in (full, third))
            print(f"{name:<16}{parts:>7} |{figures}{worse:>5}/{args.seeds}   ({len(ids)} tests)", flush=True)


def bench_plan(args: argparse.Namespace) -> None:
    rng = random.Random(1)
    true = {f"tests/test_{n % 300}.py::Test{n % 7}::test_{n}": int(rng.lognormvariate(9, 2)) + 1 for n in range(20_000)}
    third = {id_: us for at, (id_, us) in enumerate(true.items()) if at % 3}
    for label, known in (("all known", true), ("a third unknown", third), ("nothing known", {})):
        for parts in (4, 32):
            took = []
            for _ in range(5):
                began = time.process_time()
                split.split(list(true), known, parts)
                took.append(time.process_time() - began)
            print(f"splitting 20,000 tests, {label}, {parts} shards: {min(took) * 1000:.0f} ms of CPU")


def bench_probe(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        took: dict[tuple[str, int], float] = {}
        bare = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        for count in (500, 2500):
            repo = Path(folder) / f"repo-{count}"
            body = f"import pytest\n\n\n@pytest.mark.parametrize('n', range({count}))\ndef test_n(n):\n    assert n >= 0\n"
            toy.strict(repo)
            toy.patch(repo, {"src/thing.py": toy.MENDED, "tests/proposed/test_many.py": body})
            out = Path(folder) / f"out-{count}"
            where = ["--repo", str(repo), "--base", "main", "--head", "agent", "--out", str(out)]
            subprocess.run([*toy.PROBATUM, "shards", "plan", "--shards", "1", *where], check=True, **QUIET)
            for _ in range(3):
                for old in out.glob("shard-*"):
                    old.unlink()
                run = [*toy.PROBATUM, "shards", "run", "--plan", str(out / "plan.json"), "--repo", str(repo)]
                subprocess.run(run, check=True, **QUIET)
                wall = json.loads((out / "shard-0.json").read_text())["wall_us"] / 1e6
                took["probe", count] = min(wall, took.get(("probe", count), 1e9))
                began = time.perf_counter()
                plain = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
                subprocess.run(plain, cwd=repo, env=bare, check=True, **QUIET)
                took["plain", count] = min(time.perf_counter() - began, took.get(("plain", count), 1e9))
        for way in ("plain", "probe"):
            slope = (took[way, 2500] - took[way, 500]) / 2 * 1000
            both = f"500: {took[way, 500]:.2f} s, 2500: {took[way, 2500]:.2f} s"
            print(f"{way}: 1,000 more trivial tests cost {slope:.0f} ms ({both})")


def bench_wall(args: argparse.Namespace) -> None:
    name = "networkx-3.4.2"
    folder, known = suite(args.data, name), durations(args.data, name)
    stored = args.data / "split.json"
    stored.write_text(json.dumps({id_: us / 1e6 for id_, us in known.items()}))
    repo = args.data / "repo"
    if not repo.exists():
        repo.mkdir()
        toy.git(repo, "init", "-q", "-b", "main")
        files = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
        toy.commit(repo, {str(path.relative_to(folder)): path.read_bytes() for path in files if ".egg-info" not in str(path)})
        toy.patch(repo, {"README.rst": "touched\n"})
    took = {"xdist -n 2": run_plain(folder, name, ["-n", "2"], {}, args.data)}
    options = ["--splits", "2", "--durations-path", str(stored), "--splitting-algorithm", "least_duration", "--group"]
    paths = os.pathsep.join([str(folder / SUITES[name][2]), str(args.data)])
    began = time.perf_counter()
    pair = [
        subprocess.Popen(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, group, SUITES[name][1]],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": paths},
            **QUIET,
        )
        for group in "12"
    ]
    for process in pair:
        process.wait()
    took["two pytest-split processes"] = time.perf_counter() - began
    out = args.data / "out"
    where = ["--repo", str(repo), "--base", "main", "--head", "agent", "--out", str(out)]
    began = time.perf_counter()
    command = [*toy.PROBATUM, "shards", "--shards", "2", "--durations", str(stored), *where]
    done = subprocess.run(command, capture_output=True, text=True)
    took["probatum shards, 2 shards (plan, run, gate)"] = time.perf_counter() - began
    print((done.stdout or done.stderr).splitlines()[-1])
    walls = [json.loads((out / f"shard-{index}.json").read_text())["wall_us"] / 1e6 for index in range(2)]
    took["of which the longer shard"] = max(walls)
    for way, seconds in took.items():
        print(f"{way}: {seconds:.1f} s")


if __name__ == "__main__":
    main()
