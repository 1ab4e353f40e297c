"""``probatum doctor``: what this machine lacks for a gate, and where the required check could be imitated."""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import ProbatumError, one_line

ROOM = 2 << 30
"""Bytes free below which a suite's scratch may not fit."""


class Line(NamedTuple):
    """``ok``, ``warn`` (exit stays 0) or ``FAIL`` (exit 1); what was looked at, what was found, and the remedy."""

    level: str
    what: str
    found: str
    remedy: str = ""


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("doctor", help="say what this machine lacks, and where the required check could be imitated")
    parser.add_argument(
        "--repo", type=Path, default=Path("."), metavar="DIR", help="whose workflow files are read (this folder)"
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """One line a fact. Exit 0 when a gate can run here, 1 when something with a remedy is in its way."""
    worst = 0
    for look in (_platform, _python, _git, _sandbox, _uv, _cache, _disk, _secrets):
        try:
            lines = list(look())
        except ProbatumError as error:
            lines = [Line("FAIL", look.__name__.strip("_"), f"{error.where}: {error.what}", error.remedy)]
        worst |= _print(lines)
    return worst | _print(list(_workflows(args.repo)))


def _print(lines: list[Line]) -> int:
    for line in lines:
        text = f"{line.level:<5} {line.what:<9} {line.found}" + (f"  -> {line.remedy}" if line.remedy else "")
        print(one_line(text), flush=True)
    return int(any(line.level == "FAIL" for line in lines))


def _platform() -> Iterator[Line]:
    if sys.platform == "linux":
        yield Line("ok", "platform", f"Linux {platform.release()}, {platform.machine()}, {os.cpu_count()} processors")
    else:
        yield Line("FAIL", "platform", sys.platform, "sandboxes need Linux: run the gate there, in a container or in CI")


def _python() -> Iterator[Line]:
    yield Line("ok", "python", f"{platform.python_implementation()} {platform.python_version()}")


def _git() -> Iterator[Line]:
    from ..host.git import Git

    with tempfile.TemporaryDirectory() as folder:
        git = Git(Path(folder) / "git")
        yield Line("ok", "git", git.run(["version"]).out.decode("ascii", "replace").strip().removeprefix("git version "))


def _sandbox() -> Iterator[Line]:
    """Tries one: our own interpreter and code in it, which is what a judge needs."""
    if sys.platform != "linux":
        return
    import anyio

    from ..core.stage import End, Facts, Limits, Outcome, Stage
    from ..engines.bubblewrap import Bubblewrap
    from ..host.env import gate_argv, gate_place, places

    async def one() -> tuple[Facts, Outcome]:
        runtime, place = gate_place()
        engine = Bubblewrap(trees=_no_tree, places=places((runtime, place)), cache=None, capacity=1)
        facts = await engine.open()
        try:
            limits = Limits(wall=30)
            stage = Stage(
                name="doctor", trust="trusted", runtime=runtime, mounts=(), argv=gate_argv("--version"), limits=limits
            )
            return facts, await engine.run(stage, "doctor")
        finally:
            await engine.close()

    facts, outcome = anyio.run(one)
    if outcome.end != End("exited"):
        said = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
        yield Line("FAIL", "sandbox", f"{facts.name} starts, but our own code ended {outcome.end} in it: {(said or [''])[-1]}")
        return
    told = ", ".join(filter(None, (facts.version, facts.isolation, facts.uid)))
    yield Line("ok", "sandbox", f"{facts.name}: {told}")


def _no_tree(tree: object) -> Path:
    raise AssertionError("the doctor's stage mounts nothing")


def _uv() -> Iterator[Line]:
    from ..host.env_python import find_uv

    found = find_uv()
    if found:
        yield Line("ok", "uv", found)
    else:
        yield Line("warn", "uv", "not found; environments are built with pip, without uv.lock", "pip install uv")


def _cache() -> Iterator[Line]:
    from ..host.git import cache_folder

    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        mode = folder.stat()
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        yield Line("FAIL", "cache", f"{folder}: {error.strerror}", "set PROBATUM_CACHE to a folder that you own")
        return
    if mode.st_uid != os.geteuid() or stat.S_IMODE(mode.st_mode) & 0o022:
        yield Line("FAIL", "cache", f"{folder}: others may write there", f"chmod 700 {folder}, and own it")
    else:
        yield Line("ok", "cache", str(folder))


def _disk() -> Iterator[Line]:
    from ..host.git import cache_folder

    for name, folder in (("cache", cache_folder()), ("scratch", Path(tempfile.gettempdir()))):
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free
        text = f"{free / (1 << 30):.1f} GiB free for {name}"
        yield Line("ok", "disk", text) if free >= ROOM else Line("warn", "disk", text, f"free some room in {folder}")


def _secrets() -> Iterator[Line]:
    for name in ("MODEL_API_KEY",):
        if os.environ.get(name):
            yield Line("FAIL", "secrets", f"{name} is set; the gate refuses to start beside it", f"unset {name}")


def _workflows(repo: Path) -> Iterator[Line]:
    from ..report.workflows import BIND, open_doors, workflow_files

    files = workflow_files(repo)
    if not files:
        yield Line("ok", "required", f"no GitHub workflow files under {repo}")
        return
    doors = open_doors(repo)
    for where, what, remedy in doors:
        yield Line("warn", "required", f"{where}: {what}", remedy)
    if not doors:
        yield Line("ok", "required", f"{len(files)} workflow files; none starts the gate from head, none may write checks")
    yield Line("warn", "required", "a workflow that a patch adds can publish a job of any name", BIND)
