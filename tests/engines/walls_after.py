"""Walls 7 to 10: what is left, what comes out, what is reused, and whose failure it was."""

from __future__ import annotations

import time

import anyio
from engine_world import World, differs, tree, wall

from probatum.core.stage import Limits, Mount, Outcome
from probatum.errors import EngineUnavailable

# 7. Nothing lives on


DAEMON = """
def daemon(seconds, hold=True):
    told, tell = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() != 0: os._exit(0)
        for number in range(1, 65): tried(signal.signal, number, signal.SIG_IGN)
        if not hold: os.closerange(0, tell)
        os.write(tell, b"x"); time.sleep(seconds); got("lived on"); os._exit(0)
    os.read(told, 1)
"""


@wall(7)
async def a_daemon_is_not_waited_for(world: World) -> str:
    outcome = await world.run(DAEMON + "daemon(6)\ngot('done')\nos._exit(0)", limits=Limits(wall=30))
    return differs((outcome.end.how, outcome.report), ("exited", b"done\n"))


@wall(7)
async def a_daemon_does_not_live_on(world: World) -> str:
    left = []
    for code, limits in (("os._exit(0)", Limits(wall=30)), ("os._exit(1)", Limits(wall=30)), ("time.sleep(9)", Limits(wall=1))):
        await world.run(DAEMON + "daemon(60)\n" + code, limits=limits)
        left += world.alive()
    return differs(left, [])


@wall(7)
async def cancelling_leaves_no_process(world: World) -> str:
    stage = world.stage(DAEMON + "daemon(8)\ntime.sleep(8)", limits=Limits(wall=8))
    async with anyio.create_task_group() as group:
        group.start_soon(world.engine.run, stage, "cancelled")
        assert await world.until(lambda: len(world.running()) >= 2)
        group.cancel_scope.cancel()
    return differs(world.alive(), [])


@wall(7)
async def cancelling_early_leaves_no_process(world: World) -> str:
    stage = world.stage("time.sleep(8)", limits=Limits(wall=8))
    for steps in (0, 1, 2, 4, 8, 16, 32, 128):
        async with anyio.create_task_group() as group:
            group.start_soon(world.engine.run, stage, "cancelled")
            for _ in range(steps):
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
        if world.alive():
            return f"alive after a cancellation at step {steps}"
    await anyio.sleep(1)
    return differs(world.alive(), [])  # nor does any start later


@wall(7)
async def closing_leaves_no_process(world: World) -> str:
    stage = world.stage("time.sleep(8)", limits=Limits(wall=8))

    async def run() -> None:
        try:
            await world.engine.run(stage, "closed")
        except EngineUnavailable:
            pass

    async with anyio.create_task_group() as group:
        group.start_soon(run)
        assert await world.until(world.running)
        await world.engine.close()
        left = world.alive()
        group.cancel_scope.cancel()
    return differs(left, [])


# 8. Scratch vanishes; outputs are what was declared


LOOK = """
for folder in ("/tmp", "/dev/shm", "/scratch", "/out"):
    for name in os.listdir(folder):
        if name != "home": got(f"{folder}/{name}")
"""
LEAVE = 'for folder in ("/tmp", "/dev/shm", "/scratch", "/out"): open(folder + "/left", "w").write("x")\n'


@wall(8)
async def scratch_vanishes(world: World) -> str:
    await world.attack(LEAVE, scratch=("/scratch",), outputs=("x",))
    return await world.attack(LOOK, scratch=("/scratch",), outputs=("x",))


@wall(8)
async def stages_do_not_see_each_other(world: World) -> str:
    first = world.stage(LEAVE + "time.sleep(30)", scratch=("/scratch",), outputs=("x",))
    async with anyio.create_task_group() as group:
        group.start_soon(world.engine.run, first, "first")
        assert await world.until(world.running)
        await anyio.sleep(0.3)  # the other has long written; the wall is that this makes no difference
        found = await world.attack(LOOK + "time.sleep(0.1)\n" + LOOK, scratch=("/scratch",), outputs=("x",))
        group.cancel_scope.cancel()
    return found


@wall(8)
async def outputs_are_declared_files(world: World) -> str:
    outcome = await world.run(
        """
        os.makedirs("/out/folder/deep"); os.symlink("/etc", "/out/etc")
        open("/out/good", "w").write("good"); open("/out/folder/deep/good", "w").write("deep")
        open("/out/other", "w").write("x")
        os.symlink("/etc/passwd", "/out/link"); os.mkfifo("/out/pipe"); os.mkdir("/out/directory")
        s = socket.socket(socket.AF_UNIX); s.bind("/out/socket")
        """,
        outputs=("good", "folder/deep/good", "link", "etc/passwd", "pipe", "directory", "socket", "missing"),
    )
    return differs(outcome.outputs, {"good": b"good", "folder/deep/good": b"deep"})


@wall(8)
async def outputs_are_capped(world: World) -> str:
    outcome = await world.run(
        "os.truncate(os.open('/out/sparse', os.O_CREAT | os.O_WRONLY), 64 << 20)",
        outputs=("sparse",),
        limits=Limits(wall=30, file=1 << 20, disk=16 << 20),
    )
    return differs(sum(map(len, outcome.outputs.values())) <= 16 << 20, True)


# 9. Fresh runs are fresh; reuse is keyed by everything and verified


@wall(9)
async def a_fresh_stage_is_never_reused(world: World) -> str:
    stage = world.stage("got(os.urandom(8).hex())")
    first, second = [await world.engine.run(stage, nonce) for nonce in ("one", "two")]
    return differs([first.report != second.report, first.nonce, second.nonce, second.facts.cache], [True, "one", "two", "none"])


@wall(9)
async def the_first_process_is_not_older(world: World) -> str:
    found = []
    for _ in range(5):
        before = time.time_ns() // 1000
        outcome = await world.run("")
        found.append(before <= outcome.started <= outcome.first_process <= outcome.finished)
    return differs(found, [True] * 5)


@wall(9)
async def the_nonce_reaches_the_command(world: World) -> str:
    outcome = await world.engine.run(world.stage("got(NONCE); got(sys.stdin.buffer.read())", stdin=b"\0rest"), "abc-1")
    return differs((outcome.report, outcome.nonce), (b"b'abc-1\\n'\nb'\\x00rest'\n", "abc-1"))


@wall(9)
async def a_reusable_stage_is_keyed_by_all_it_reads(world: World) -> str:
    mounts = (Mount("/w/tree", tree(file="1")),)
    base = {"mounts": mounts, "reusable": True}
    changes: list[dict[str, object]] = [
        {},
        {"mounts": (Mount("/w/tree", tree(file="2")),)},
        {"mounts": (Mount("/w/other", tree(file="1")),)},
        {"stdin": b"x"},
        {"env": (("A", "1"),)},
        {"cwd": "/"},
        {"limits": Limits(wall=31)},
        {"scratch": ("/scratch",)},
    ]
    reports = [(await world.run("got(os.urandom(8).hex())", **{**base, **change})).report for change in changes]
    again = await world.run("got(os.urandom(8).hex())", **base)
    return differs((len(set(reports)), again.report, again.facts.cache), (len(changes), reports[0], "reused"))


@wall(9)
async def a_spoiled_entry_is_not_used(world: World) -> str:
    async def run() -> Outcome:
        return await world.run("got('honest')", reusable=True)

    first = await run()
    entries = [path for path in world.cache.rglob("*") if path.is_file() and b"aG9uZXN0Cg==" in path.read_bytes()]
    for path in entries:
        path.write_bytes(path.read_bytes().replace(b"aG9uZXN0Cg==", b"Zm9yZ2VkCg=="))
    second, third = await run(), await run()
    found = [len(entries), first.report, second.report, second.facts.cache, third.facts.cache]
    return differs(found, [1, b"honest\n", b"honest\n", "none", "reused"])


@wall(9)
async def only_an_exit_is_reused(world: World) -> str:
    ends = []
    for code in ("os.kill(os.getpid(), 9)", "time.sleep(9)"):
        for _ in range(2):
            outcome = await world.run(code, reusable=True, limits=Limits(wall=1))
            ends.append(outcome.facts.cache)
    return differs(ends, ["none"] * 4)


# 10. The engine's failure is not the command's


@wall(10)
async def words_of_the_engine_prove_nothing(world: World) -> str:
    code = "os.write(2, b'bwrap: No permissions to create new namespace'); os.write(1, b'failed'); os._exit(1)"
    try:
        return differs(await world.end(code), "exited 1")
    except EngineUnavailable as error:
        return str(error)


@wall(10)
async def a_missing_tree_is_the_engines_failure(world: World) -> str:
    world.lose_trees()
    try:
        outcome = await world.run("", mounts=(Mount("/w/tree", tree(file="x")),))
    except EngineUnavailable as error:
        return differs("\n" in str(error), False)
    return f"an outcome: {outcome.end}"
