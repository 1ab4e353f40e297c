"""Walls 4 and 5: rights, and what must not touch the launcher."""

from __future__ import annotations

from engine_world import World, differs, wall

from probatum.core.stage import Blob, Limits, Mount, Tree
from probatum.errors import EngineUnavailable

# 4. No capabilities, no way to gain any, a uid that owns nothing


@wall(4)
async def no_capabilities(world: World) -> str:
    return await world.attack("""
        for line in open("/proc/self/status"):
            if line.startswith("Cap") and int(line.split()[1], 16): got(line.strip())
    """)


@wall(4)
async def no_new_privileges(world: World) -> str:
    return await world.attack("""
        if "NoNewPrivs:\\t1" not in open("/proc/self/status").read(): got("privileges could grow")
    """)


@wall(4)
async def no_user_namespace(world: World) -> str:
    return await world.attack("""
        if libc.unshare(0x10000000) == 0: got("unshare")
        stack = ctypes.create_string_buffer(1 << 16)
        machine = os.uname().machine
        pid = libc.syscall(ctypes.c_long({"x86_64": 56, "aarch64": 220}[machine]), ctypes.c_ulong(0x10000000 | 17), 0, 0, 0, 0)
        if pid == 0: os._exit(0)
        if pid > 0: got("clone")
        arguments = struct.pack("8Q", 0x10000000, 0, 0, 0, 17, 0, 0, 0)
        pid = libc.syscall(ctypes.c_long(435), arguments, len(arguments))
        if pid == 0: os._exit(0)
        if pid > 0: got("clone3")
        if tried(os.setuid, 0) is None and os.getuid() == 0: got("uid 0")
    """)


@wall(4)
async def owns_nothing_outside(world: World) -> str:
    if not world.drops:  # the caller's own uid, as the engine's facts say: then what is mounted is all that counts
        facts = (await world.run("")).facts
        return differs("caller" in facts.uid, True)
    closed = Tree({b"closed": Blob(0o100600, data=b"of root")})
    return await world.attack(
        """
        try: got(open("/w/tree/closed").read())
        except PermissionError: pass
        """,
        mounts=(Mount("/w/tree", closed),),
    )


CALLS = {
    "ptrace": (101, 117), "process_vm_readv": (310, 270), "pidfd_getfd": (438, 438), "keyctl": (250, 219),
    "add_key": (248, 217), "bpf": (321, 280), "perf_event_open": (298, 241), "io_uring_setup": (425, 425),
    "userfaultfd": (323, 282), "mount": (165, 40), "unshare": (272, 97), "setns": (308, 268), "fsopen": (430, 430),
    "open_tree": (428, 428), "move_mount": (429, 429), "memfd_secret": (447, 447), "kcmp": (312, 272), "chroot": (161, 51),
    "clone3": (435, 435), "name_to_handle_at": (303, 264), "syslog": (103, 116), "fanotify_init": (300, 262),
}  # fmt: skip


@wall(4)
async def kernel_doors_are_shut(world: World) -> str:
    """Every listed call answers as refused before the kernel looks at its (senseless) arguments."""
    return await world.attack(f"""
        for name, numbers in {CALLS!r}.items():
            number = numbers[0 if os.uname().machine == "x86_64" else 1]
            libc.syscall(ctypes.c_long(number), ctypes.c_long(-1), ctypes.c_long(-1), ctypes.c_long(-1), ctypes.c_long(-1),
                         ctypes.c_long(-1), ctypes.c_long(-1))
            if ctypes.get_errno() not in (1, 38): got(f"{{name}}: errno {{ctypes.get_errno()}}")
    """)


@wall(4)
async def a_crash_starts_nothing_on_the_host(world: World) -> str:
    """With a core limit of one byte the kernel starts no dump helper; with any other it may, outside of the sandbox."""
    return await world.attack("""
        import resource
        for limits in ((0, 0), (0, 1)):
            tried(resource.setrlimit, resource.RLIMIT_CORE, limits)
            tried(resource.prlimit, 0, resource.RLIMIT_CORE, limits)
        limit = [line.split()[4] for line in open("/proc/self/limits") if line.startswith("Max core")]
        if limit != ["1"]: got(limit)
    """)


@wall(4)
async def no_foreign_system_calls(world: World) -> str:
    """A 32-bit call has other numbers: to a filter that does not ask for the machine, keyctl there is something harmless."""
    return (
        (
            await world.end("""
            if os.uname().machine == "x86_64":
                import mmap
                page = mmap.mmap(-1, 4096, prot=7)
                # push rbx; mov eax,20 (getpid there, writev here); int 0x80; pop rbx; ret
                page.write(bytes.fromhex("53 b814000000 cd80 5b c3"))
                address = ctypes.addressof(ctypes.c_char.from_buffer(page))
                if ctypes.CFUNCTYPE(ctypes.c_int)(address)() == os.getpid(): sys.exit(3)
        """)
        )
        .replace("signalled 31", "")
        .replace("exited 0", "")
        .replace("signalled 11", "")
    )


@wall(4)
async def no_x32_system_calls(world: World) -> str:
    return await world.attack("""
        if os.uname().machine == "x86_64" and libc.syscall(ctypes.c_long(0x40000000 | 41), 1, 1, 0) >= 0: got("x32 socket")
        libc.syscall(ctypes.c_long(0x40000000 | 39))
        if os.uname().machine == "x86_64" and ctypes.get_errno() != 38: got("x32 getpid")
    """)


@wall(4)
async def no_typing_into_a_terminal(world: World) -> str:
    return await world.attack("""
        import fcntl, pty
        main, side = os.openpty()
        if os.fork() == 0:
            os.setsid(); fcntl.ioctl(side, 0x540E, 0)
            ok = libc.ioctl(side, ctypes.c_ulong(0x5412), b"x")
            os._exit(0 if ok == 0 else 1)
        if os.wait()[1] == 0: got("TIOCSTI")
    """)


# 5. It sees only its own processes and cannot touch the launcher or the result


@wall(5)
async def only_its_own_processes(world: World) -> str:
    return await world.attack(
        """
        seen = {int(name) for name in os.listdir("/proc") if name.isdigit()}
        if extra := seen - {1, os.getpid()}: got(sorted(extra)[:9])
        """,
        limits=Limits(wall=60, processes=30000, memory=1 << 50),
    )


@wall(5)
async def signals_do_not_reach_the_launcher(world: World) -> str:
    try:
        outcome = await world.run("""
            for number in range(1, 65):
                tried(os.kill, 1, number)
                handle = tried(os.pidfd_open, 1)
                if handle is not None: tried(signal.pidfd_send_signal, handle, number)
            time.sleep(0.1)
            got("still here")
        """)
    except EngineUnavailable as error:
        return f"the launcher is gone: {error}"
    return differs((outcome.end.how, outcome.report), ("exited", b"still here\n"))


TRACE = """
def syscall(number, *arguments): return libc.syscall(ctypes.c_long(number), *arguments)
x86 = os.uname().machine == "x86_64"
PTRACE, READV, GETFD = (101 if x86 else 117), (310 if x86 else 270), 438
"""


@wall(5)
async def launcher_cannot_be_traced(world: World) -> str:
    return await world.attack(
        TRACE
        + """
if syscall(PTRACE, 0x4206, 1, 0, 0) == 0: got("PTRACE_SEIZE")
"""
    )


@wall(5)
async def launcher_cannot_be_read(world: World) -> str:
    return await world.attack(
        TRACE
        + """
for name in ("mem", "environ", "auxv", "io", "syscall", "stack"):
    try:
        with open(f"/proc/1/{name}", "rb") as file: file.read(1 if name != "mem" else 0); got(name)
    except OSError: pass
for name in ("exe", "cwd", "root"):
    if tried(os.readlink, f"/proc/1/{name}"): got(name)
if tried(os.open, "/proc/1/maps", os.O_RDONLY) and open("/proc/1/maps").read(): got("maps")
"""
    )


@wall(5)
async def descriptors_cannot_be_stolen(world: World) -> str:
    return await world.attack(
        TRACE
        + """
handle = os.pidfd_open(1)
for number in range(256):
    if syscall(GETFD, handle, number, 0) >= 0: got(f"pidfd_getfd {number}"); break
for number in range(256):
    if tried(os.open, f"/proc/1/fd/{number}", os.O_WRONLY): got(f"/proc/1/fd/{number}"); break
if tried(os.listdir, "/proc/1/fd"): got("a list of them")
"""
    )


@wall(5)
async def launchers_limits_cannot_be_changed(world: World) -> str:
    return await world.attack("""
        import resource
        for limit in (resource.RLIMIT_CPU, resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE):
            if tried(resource.prlimit, 1, limit): got(f"read limit {limit}")
        if tried(resource.prlimit, 1, resource.RLIMIT_MSGQUEUE, (0, 0)): got("set a limit")
    """)


@wall(5)
async def launcher_cannot_be_starved(world: World) -> str:
    return await world.attack("""
        def kept(function, *arguments):
            try: function(*arguments)
            except OSError: return
            got(function.__name__)
        kept(os.setpriority, os.PRIO_PROCESS, 1, 19)
        kept(os.setpriority, os.PRIO_USER, 0, 19)
        kept(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))
        kept(os.sched_setaffinity, 1, os.sched_getaffinity(1))
    """)


@wall(5)
async def a_forged_result_is_not_believed(world: World) -> str:
    try:
        outcome = await world.run("""
            header = ('{"nonce":"%s","how":"exited","code":0,"limit":"","first_process":1,"problem":"","sizes":[6,0,0],'
                      '"outputs":[]}' % NONCE.decode().strip()).encode()
            frame = b"PROBATUM-RESULT-1\\n" + len(header).to_bytes(8, "big") + header + b"forged"
            for number in [*range(4, 256), 1, 2, 3]: tried(os.write, number, frame)
            sys.exit(1)
        """)
    except EngineUnavailable as error:
        return f"the result was spoiled: {error}"
    return differs(f"{outcome.end.how} {outcome.end.code} {outcome.report[:6]!r}", "exited 1 b'PROBAT'")
