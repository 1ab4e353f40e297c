"""What only bubblewrap promises: a killed gate leaves nothing, and a machine that cannot is named in one line."""

from __future__ import annotations

import os
import platform
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest
from engine_kit import Folders, Kit, place
from engine_world import World, tree

from probatum.core.stage import Limits, Mount
from probatum.engines import machine, seccomp, stages
from probatum.engines.bubblewrap import Bubblewrap
from probatum.errors import EngineUnavailable

DRIVER = str(Path(__file__).with_name("engine_driver.py"))
SLEEP = "import os\nif os.fork() == 0: os.setsid()\ntime.sleep(60)"

FOLDERS = [str(Path(__file__).parent), str(Path(__file__).parents[2] / "pipeline")]
PATH = {"PYTHONPATH": os.pathsep.join([*FOLDERS, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


def driven(tmp_path: Path, program: str, *before: str, weaker: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, DRIVER, str(tmp_path), weaker, program]
    return subprocess.run(command, env={**os.environ, **PATH, **env}, capture_output=True, text=True, timeout=120, check=False)


def killed(tmp_path: Path, weaker: str) -> bool:
    """Kill a gate with -9 in the middle of a stage; whether every process of the stage is gone soon."""

    async def kill() -> bool:
        world = World(Kit().make(tmp_path), tmp_path, tmp_path, drops=False)
        env = {**os.environ, **PATH, "MARKER": world.marker}
        gate = subprocess.Popen([sys.executable, DRIVER, str(tmp_path), weaker, SLEEP], env=env)
        try:
            assert await world.until(lambda: len(world.running()) >= 2)
            gate.kill()
            return await world.until(lambda: not world.alive(), seconds=3)
        finally:
            gate.wait()
            for pid in world.alive():
                os.kill(int(pid), signal.SIGKILL)

    return anyio.run(kill)


def test_a_killed_gate_leaves_no_process(tmp_path: Path) -> None:
    assert killed(tmp_path, "")


def test_a_killed_gate_leaves_processes_without_the_lifeline(tmp_path: Path) -> None:
    assert not killed(tmp_path, "a-killed-gate")


def test_a_gate_killed_while_a_sandbox_starts_leaves_no_process(tmp_path: Path) -> None:
    """At moments all over the start: a bwrap that is half-way must come to its end, too."""

    async def kill() -> list[str]:
        world = World(Kit().make(tmp_path), tmp_path, tmp_path, drops=False)
        for step in range(12):
            env = {**os.environ, **PATH, "MARKER": world.marker, "PYTHONUNBUFFERED": "1"}
            gate = subprocess.Popen([sys.executable, DRIVER, str(tmp_path), "", SLEEP], env=env)
            children = Path(f"/proc/{gate.pid}/task")
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and not any(
                (task / "children").read_text() for task in children.iterdir() if (task / "children").exists()
            ):
                await anyio.sleep(0)
            await anyio.sleep(step * 0.005)
            gate.kill()
            gate.wait()
            assert await world.until(lambda: not world.alive(), seconds=5)
        return world.alive()

    assert anyio.run(kill) == []


def test_an_interrupted_gate_ends_its_sandboxes(tmp_path: Path) -> None:
    async def interrupt() -> bool:
        world = World(Kit().make(tmp_path), tmp_path, tmp_path, drops=False)
        command = [sys.executable, DRIVER, str(tmp_path), "", SLEEP]
        gate = subprocess.Popen(command, env={**os.environ, **PATH, "MARKER": world.marker}, stderr=subprocess.DEVNULL)
        assert await world.until(lambda: len(world.running()) >= 2)
        gate.send_signal(signal.SIGINT)
        gate.wait(timeout=20)
        return world.alive() == []

    assert anyio.run(interrupt)


def test_nothing_is_left_in_the_hosts_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    assert driven(tmp_path, "pass").stdout == "exited 0 \n"
    assert os.listdir(tmp_path / "tmp") == []


def test_closed_user_namespaces_are_named(tmp_path: Path) -> None:
    """Inside a sandbox that allows no further user namespace, the engine says what is closed and what else there is."""
    closed = [machine.bwrap(), "--dev-bind", "/", "/", "--unshare-user", "--disable-userns", "--"]
    run = driven(tmp_path, "pass", *closed)
    assert run.returncode == 5
    assert run.stdout.startswith("bubblewrap: user namespaces are closed") and "--engine dagger" in run.stdout
    assert run.stdout.count("\n") == 1 and run.stderr == ""


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "no fresh /proc can be mounted"),
        ("bwrap: No permissions to create a new namespace", "user namespaces are closed"),
        ("bwrap: setting up uid map: Permission denied", "user namespaces are closed"),
        ("bwrap: Can't write data to file /etc/passwd: No space left on device", "free some disk space"),
        ("", "bwrap ended with status 1"),
    ],
)
def test_what_bwrap_says_becomes_one_line(said: str, words: str) -> None:
    assert words in machine.refused(said, 1).line()


@pytest.mark.parametrize(
    ("name", "value", "opened"),
    [
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"),
    ],
)
def test_the_closed_switch_is_named(
    name: str, value: str, opened: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(value + "\n")
    monkeypatch.setattr(machine, "SYSCTL", tmp_path)
    assert opened in machine.refused("bwrap: No permissions to create new namespace", 1).line()


def test_no_bwrap_is_named(tmp_path: Path) -> None:
    run = driven(tmp_path, "pass", PROBATUM_BWRAP="/nowhere/bwrap")
    assert (run.returncode, run.stdout) == (
        5,
        "bubblewrap: PROBATUM_BWRAP=/nowhere/bwrap is no program; unset it, or use --engine dagger\n",
    )


def test_a_bwrap_that_is_none_is_named(tmp_path: Path) -> None:
    run = driven(tmp_path, "pass", PROBATUM_BWRAP="/bin/false")
    assert run.returncode == 5 and "/bin/false does not run" in run.stdout


def test_another_system_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "SYSTEM", "Darwin")
    with pytest.raises(EngineUnavailable, match="sandboxes need Linux, this is Darwin"):
        machine.bwrap()


def test_a_full_disk_is_the_engines_failure(tmp_path: Path) -> None:
    def full(_: object) -> Path:
        raise OSError(28, "No space left on device", str(tmp_path))

    async def run() -> None:
        async with Bubblewrap(trees=full, places=place) as engine:
            world = World(engine, tmp_path, tmp_path, drops=False)
            await world.run("", mounts=(Mount("/w/tree", tree(file="x")),))

    with pytest.raises(EngineUnavailable, match=r"No space left on device.*free some disk space"):
        anyio.run(run)


@pytest.mark.parametrize("target", ["relative", "/", "/w/../etc", "/w//x", "/w/"])
def test_a_target_that_is_no_plain_path_is_refused(target: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with Kit().make(tmp_path) as engine:
            await World(engine, tmp_path, tmp_path, drops=False).run("", mounts=(Mount(target, tree(file="x")),))

    with pytest.raises(EngineUnavailable, match="not an absolute path"):
        anyio.run(run)


def test_scratch_inside_a_tree(tmp_path: Path) -> None:
    """A writable, empty folder may lie inside a read-only tree, whether the tree has that folder or not."""

    async def run() -> str:
        async with Kit().make(tmp_path) as engine:
            return await World(engine, tmp_path, tmp_path, drops=False).attack(
                """
                for folder in ("/w/tree/new", "/w/tree/old"): got(os.listdir(folder)); open(folder + "/x", "w")
                got(open("/w/tree/a").read())
                """,
                mounts=(Mount("/w/tree", tree(a="kept", old__b="hidden")),),
                scratch=("/w/tree/new", "/w/tree/old"),
            )

    assert anyio.run(run) == "[]; []; kept"


def test_no_more_than_capacity_at_once(tmp_path: Path) -> None:
    async def run() -> int:
        engine = Bubblewrap(trees=Folders(tmp_path), places=place, capacity=2)
        world, most = World(engine, tmp_path, tmp_path, drops=False), 0
        async with engine, anyio.create_task_group() as group:
            done = anyio.Event()

            async def watch() -> None:
                nonlocal most
                while not done.is_set():
                    most = max(most, len(world.running()))
                    await anyio.sleep(0.005)

            group.start_soon(watch)
            async with anyio.create_task_group() as stages_:
                for _ in range(6):
                    stages_.start_soon(world.run, "time.sleep(0.2)")
            done.set()
        return most

    assert anyio.run(run) == 2


def test_the_cache_is_not_believed_where_others_may_write(tmp_path: Path) -> None:
    async def run(spoil: int) -> str:
        async with Kit().make(tmp_path, cache=tmp_path / "cache") as engine:
            world = World(engine, tmp_path, tmp_path, drops=False)
            await world.run("got(1)", reusable=True)
            (tmp_path / "cache" / "stages").chmod(spoil)
            return (await world.run("got(1)", reusable=True)).facts.cache

    assert anyio.run(run, 0o777) == "none"
    assert anyio.run(run, 0o700) == "reused"


def test_an_entry_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    store = stages.Stages(tmp_path / "stages")
    store.folder.mkdir(mode=0o700)
    (store.folder / "abc").symlink_to(tmp_path / "elsewhere")
    assert store.load("sha256:abc") is None
    assert not (store.folder / "abc").is_symlink()


def judged(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the filter answers, by running its steps here."""
    data = struct.pack("<iIQ6Q", number, architecture, 0, *(arguments + (0,) * 6)[:6])
    steps = [struct.unpack("=HBBI", program[at : at + 8]) for at in range(0, len(program), 8)]
    at = value = 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        if code == 0x20:
            value = struct.unpack("<I", data[operand : operand + 4])[0]
        elif code == 0x06:
            return operand
        else:
            true = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}[code]
            at += yes if true else no


ALLOW, KILL = 0x7FFF0000, 0x80000000


@pytest.mark.parametrize("name", sorted(seccomp.MACHINES))
def test_filter_on_every_machine(name: str) -> None:
    """The program for a machine that we are not on is run step by step."""
    architecture, numbers = seccomp.MACHINES[name]
    program = seccomp.program(name)
    assert len(program) % 8 == 0 and len(program) // 8 < 4096

    def answer(call: str, *arguments: int) -> int:
        return judged(program, architecture, numbers[call], *arguments)

    assert judged(program, 0x40000003, numbers["ptrace"]) == KILL
    assert judged(program, architecture, 9999) == ALLOW
    for call in ("ptrace", "pidfd_getfd", "mount", "unshare", "bpf", "process_vm_writev", "setns"):
        assert answer(call) == 0x50001
    for call in ("clone3", "io_uring_setup", "memfd_create"):
        assert answer(call) == 0x50026
    assert [answer("socket", family) == ALLOW for family in range(48)] == [family in (1, 2, 10, 16) for family in range(48)]
    assert answer("socket", (1 << 32) | socket.AF_INET) == ALLOW and answer("socket", (1 << 32) | 40) != ALLOW
    assert answer("clone", 17) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert answer("clone", flag | 17) == 0x50001
    assert (answer("prlimit64", 0), answer("prlimit64", 1)) == (ALLOW, 0x50001)
    assert (answer("setpriority", 0, 0), answer("setpriority", 0, 1), answer("setpriority", 2, 0)) == (ALLOW, 0x50001, 0x50001)
    assert (answer("ioctl", 0, 0x5401), answer("ioctl", 0, 0x5412), answer("ioctl", 0, 0x541C)) == (ALLOW, 0x50001, 0x50001)
    assert (answer("sched_setaffinity", 0), answer("sched_setaffinity", 1)) == (ALLOW, 0x50001)


def test_an_unknown_machine_has_no_filter_and_no_sandbox() -> None:
    with pytest.raises(EngineUnavailable, match="no system call filter for riscv64"):
        seccomp.program("riscv64")


def test_this_machine_is_known() -> None:
    assert platform.machine() in seccomp.MACHINES


def test_the_launcher_refuses_to_supervise_without_a_pid_namespace(tmp_path: Path) -> None:
    """Otherwise its last step, killing everything, would reach the host."""

    async def run() -> None:
        async with Kit().make(tmp_path, weaker="the-launcher-kills-only-its-own") as engine:
            await World(engine, tmp_path, tmp_path, drops=False).run("", limits=Limits(wall=10))

    with pytest.raises(EngineUnavailable, match="not the first process of a pid namespace"):
        anyio.run(run)
