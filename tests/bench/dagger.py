"""What Dagger costs: a stage beside ``with_exec(["true"])`` in one session, and whole gates beside bubblewrap's.

    python tests/bench/dagger.py [--runs N] [--repo DIR --base REV --head REV]

Prints medians and the load before and after; needs a reachable engine and PROBATUM_RUNNER_IMAGE. Without --repo, the whole
gates are those of a toy repository.
"""

from __future__ import annotations

import argparse
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import anyio

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [  # not this folder: this file has the SDK's name
    str(TESTS),
    str(TESTS / "engines"),
    str(TESTS.parent / "pipeline"),
]

from engine_kit import Folders, place  # noqa: E402
from engine_world import World, tree  # noqa: E402

import toy  # noqa: E402
from probatum.core.stage import Mount  # noqa: E402
from probatum.engines.dagger import Dagger  # noqa: E402


async def stages(runs: int) -> dict[str, list[float]]:
    """Seconds of each kind of run, taken in turns."""
    with tempfile.TemporaryDirectory() as work:
        host = Path(work)
        (host / "trees").mkdir()
        began = time.perf_counter()
        async with Dagger(trees=Folders(host / "trees"), places=place, capacity=2) as engine:
            found: dict[str, list[float]] = {"open": [time.perf_counter() - began]}
            world = World(engine, host, host, True)
            assert engine._session is not None
            base = await engine._session.dag.container().from_(engine.image).sync()
            same = world.stage("", argv=("/usr/bin/true",), mounts=(Mount("/w/tree", tree(a="1")),))

            async def true() -> None:
                await base.with_env_variable("RUN", secrets.token_hex(8)).with_exec(["true"]).sync()

            async def stage() -> None:
                await engine.run(same, secrets.token_hex(8))

            async def fresh() -> None:
                mounts = (Mount("/w/tree", tree(a=secrets.token_hex(8))),)
                await engine.run(world.stage("", argv=("/usr/bin/true",), mounts=mounts), secrets.token_hex(8))

            kinds: dict[str, Callable[[], Awaitable[None]]] = {
                'with_exec(["true"])': true,
                "stage": stage,
                "stage with a new tree": fresh,
            }
            for number in range(runs + 1):
                for name, one in kinds.items():
                    began = time.perf_counter()
                    await one()
                    if number:  # the first of each fetches, uploads and warms
                        found.setdefault(name, []).append(time.perf_counter() - began)
            return found


def gates(repo: Path, base: str, head: str, runs: int) -> None:
    """Whole gates: the first on an empty cache, then the same base again."""
    for engine in ("bubblewrap", "dagger"):
        with tempfile.TemporaryDirectory() as work:
            walls = []
            env = {**os.environ, "PROBATUM_CACHE": f"{work}/cache"}
            for _ in range(runs + 1):
                command = [*toy.PROBATUM, "gate", "--repo", str(repo), "--base", base, "--head", head, "--engine", engine]
                began = time.perf_counter()
                done = subprocess.run([*command, "--out", f"{work}/out"], env=env, capture_output=True, text=True)
                walls.append(time.perf_counter() - began)
                assert done.returncode in (0, 1, 3), done.stderr
            said = next(line for line in done.stdout.splitlines() if " stages, " in line)
            print(f"{engine:<12} first gate {walls[0]:6.2f} s   again {statistics.median(walls[1:]):6.2f} s   {said}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=9)
    parser.add_argument("--repo", type=Path)
    parser.add_argument("--base", default="main")
    parser.add_argument("--head", default="agent")
    args = parser.parse_args()
    print(f"load {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    found = anyio.run(stages, args.runs)
    for name, seconds in found.items():
        print(f"{name:<24} median {1000 * statistics.median(seconds):7.0f} ms   least {1000 * min(seconds):7.0f} ms")
    ratio = statistics.median(found["stage"]) / statistics.median(found['with_exec(["true"])'])
    print(f"a stage costs {ratio:.2f} times with_exec")
    with tempfile.TemporaryDirectory() as work:
        repo = args.repo
        if repo is None:
            repo = Path(work) / "repo"
            toy.strict(repo)
            toy.patch(repo, {"src/thing.py": toy.MENDED})
        gates(repo, args.base, args.head, max(1, args.runs // 3))
    print(f"load {os.getloadavg()[0]:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
