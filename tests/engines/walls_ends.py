"""Wall 6: every end has its own name."""

from __future__ import annotations

from engine_world import World, differs, wall

from probatum.core.stage import Limits

# 6. Every end has its own name


@wall(6)
async def exit_codes_are_exits(world: World) -> str:
    codes = (0, 1, 2, 75, 126, 127, 128, 137, 139, 143, 255)
    return differs([await world.end(f"os._exit({code})") for code in codes], [f"exited {code}" for code in codes])


@wall(6)
async def signals_are_signals(world: World) -> str:
    numbers = (1, 2, 6, 9, 11, 13, 15, 31)
    code = "signal.signal({0}, signal.SIG_DFL) if {0} != 9 else 0\nos.kill(os.getpid(), {0}); time.sleep(5)"
    return differs([await world.end(code.format(n)) for n in numbers], [f"signalled {number}" for number in numbers])


@wall(6)
async def a_command_that_cannot_start_is_setup(world: World) -> str:
    return differs(await world.end("", argv=("/nowhere/program",)), "setup 2")


@wall(6)
async def a_bad_folder_is_setup(world: World) -> str:
    return differs(await world.end("", cwd="/nowhere"), "setup 2")


@wall(6)
async def time_is_limited(world: World) -> str:
    return differs(await world.end("time.sleep(8)", limits=Limits(wall=1)), "over wall")


@wall(6)
async def stopping_oneself_is_over_time(world: World) -> str:
    code = "if os.fork() == 0: time.sleep(8); os.kill(os.getppid(), 18); os._exit(0)\nos.kill(os.getpid(), signal.SIGSTOP)"
    return differs(await world.end(code, limits=Limits(wall=1)), "over wall")


SMALL = Limits(wall=30, memory=96 << 20)


@wall(6)
async def memory_is_limited(world: World) -> str:
    return differs(
        await world.end("kept = [bytearray(os.urandom(1 << 20)) for _ in range(200)]; time.sleep(1)", limits=SMALL),
        "over memory",
    )


@wall(6)
async def memory_of_all_processes_counts(world: World) -> str:
    code = """
        libc.prctl(4, 0, 0, 0, 0)  # nobody may look into this process
        for _ in range(5):
            if os.fork() == 0: kept = bytearray(os.urandom(1 << 20)) * 40; time.sleep(2); os._exit(0)
        for _ in range(5): os.wait()
    """
    return differs(await world.end(code, limits=SMALL), "over memory")


@wall(6)
async def memory_cannot_hide_in_memory_files(world: World) -> str:
    code = """
        try: hidden = [os.memfd_create(str(n)) for n in range(8)]
        except OSError: os._exit(9)
        for file in hidden: os.write(file, bytes(32 << 20))
        time.sleep(1)
    """
    return differs((await world.end(code, limits=SMALL)).replace("exited 9", "over memory"), "over memory")


@wall(6)
async def memory_cannot_hide_in_segments(world: World) -> str:
    code = """
        libc.shmat.restype = ctypes.c_void_p
        for _ in range(8):
            segment = libc.shmget(0, 32 << 20, 0o1600)
            if segment < 0: os._exit(9)
            address = libc.shmat(segment, None, 0)
            ctypes.memset(address, 1, 32 << 20); libc.shmdt(ctypes.c_void_p(address))
        time.sleep(1)
    """
    return differs((await world.end(code, limits=SMALL)).replace("exited 9", "over memory"), "over memory")


@wall(6)
async def memory_cannot_hide_in_sockets(world: World) -> str:
    code = """
        hidden = []
        for _ in range(500):
            pair = socket.socketpair()
            pair[0].setblocking(False)
            try:
                while True: pair[0].send(bytes(1 << 14))
            except BlockingIOError: hidden.append(pair)
            except OSError: break
        time.sleep(1)
    """
    return differs(await world.end(code, limits=SMALL), "over memory")


FEW = Limits(wall=30, processes=12)


@wall(6)
async def processes_are_limited(world: World) -> str:
    code = """
        for _ in range(40):
            try:
                if os.fork() == 0: time.sleep(20); os._exit(0)
            except OSError: os._exit(1)
        os._exit(0)
    """
    return differs(await world.end(code, limits=FEW), "over processes")


@wall(6)
async def threads_count_as_processes(world: World) -> str:
    code = """
        try:
            for _ in range(40): threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
        except RuntimeError: time.sleep(1)
        time.sleep(0.3); os._exit(0)
    """
    return differs(await world.end(code, limits=FEW), "over processes")


@wall(6)
async def a_fork_bomb_ends(world: World) -> str:
    code = """
        until = time.monotonic() + 3
        while time.monotonic() < until:
            try: os.fork()
            except OSError: pass
        os._exit(0)
    """
    return differs(await world.end(code, limits=Limits(wall=30, processes=30)), "over processes")


@wall(6)
async def files_are_limited(world: World) -> str:
    code = "open('/tmp/big', 'wb').write(bytes(3 << 20))"
    return differs(await world.end(code, limits=Limits(wall=30, file=1 << 20)), "over file")


@wall(6)
async def files_are_limited_by_signal_too(world: World) -> str:
    code = "signal.signal(25, signal.SIG_DFL)\nfile = open('/tmp/big', 'wb'); os.unlink('/tmp/big'); file.write(bytes(3 << 20))"
    return differs(await world.end(code, limits=Limits(wall=30, file=1 << 20)), "over file")


@wall(6)
async def disk_is_limited(world: World) -> str:
    code = """
        for number in range(64):
            try: open(f"/tmp/{number}", "wb").write(bytes(1 << 20))
            except OSError: break
        os._exit(1)
    """
    return differs(await world.end(code, limits=Limits(wall=30, disk=16 << 20)), "over disk")


@wall(6)
async def disk_counts_every_writable_folder(world: World) -> str:
    code = """
        for number in range(12):
            for folder in ("/tmp", "/dev/shm", "/scratch"):
                open(f"{folder}/{number}", "wb").write(bytes(1 << 20))
        os._exit(1)
    """
    return differs(await world.end(code, limits=Limits(wall=30, disk=16 << 20), scratch=("/scratch",)), "over disk")


@wall(6)
async def empty_files_count_as_disk(world: World) -> str:
    code = """
        for number in range(20000): os.close(os.open(f"/tmp/{number}", os.O_CREAT, 0o600))
        os._exit(0)
    """
    return differs(await world.end(code, limits=Limits(wall=60, disk=16 << 20)), "over disk")


@wall(6)
async def output_is_limited(world: World) -> str:
    code = """
        for _ in range(300): os.write(1, bytes(1 << 14)); os.write(2, bytes(1 << 14))
        os._exit(0)
    """
    return differs(await world.end(code, limits=Limits(wall=30, output=4 << 20)), "over output")


@wall(6)
async def report_is_limited(world: World) -> str:
    code = "for _ in range(300): os.write(3, bytes(1 << 14))\nos._exit(0)"
    return differs(await world.end(code, limits=Limits(wall=30, report=1 << 20)), "over report")


@wall(6)
async def the_tail_of_output_is_kept(world: World) -> str:
    outcome = await world.run(
        "os.write(1, b'first'); [os.write(1, bytes(1 << 16)) for _ in range(40)]; os.write(1, b'the end')"
    )
    return differs((outcome.stdout[-7:], len(outcome.stdout) <= 2 << 20), (b"the end", True))
