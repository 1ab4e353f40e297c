"""The walls that every engine promises, each with a program that tries to break it from inside.

A wall is an async function of a World; it returns "" when it held, else what the attacker got. Written against
``core.stage.Engine`` alone. ``WALLS`` maps its name to (number of the promise in ``docs``, function).
"""

from __future__ import annotations

import os
import secrets
import textwrap
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from probatum.core.stage import Blob, Engine, Limits, Mount, Outcome, Runtime, Stage, Tree
from probatum.errors import EngineUnavailable

RUNTIME = Runtime("environment", "the interpreter of these tests")

PRELUDE = """
import ctypes, os, signal, socket, stat, struct, sys, threading, time
libc = ctypes.CDLL(None, use_errno=True)
def got(what): os.write(3, (str(what) + "\\n").encode())
def tried(function, *arguments):
    try: return function(*arguments)
    except (OSError, ValueError): return None
NONCE = sys.stdin.buffer.readline()
"""

Wall = Callable[["World"], Awaitable[str]]
WALLS: dict[str, tuple[int, Wall]] = {}


def wall(promise: int) -> Callable[[Wall], Wall]:
    """Register a wall under its function's name."""

    def keep(function: Wall) -> Wall:
        WALLS[function.__name__.replace("_", "-")] = (promise, function)
        return function

    return keep


class World:
    """An engine, a folder of the host that others may enter, and what the engine is known to do about uids."""

    def __init__(self, engine: Engine, host: Path, cache: Path, drops: bool) -> None:
        self.engine, self.host, self.cache, self.drops = engine, host, cache, drops
        self.marker = "marker-" + secrets.token_hex(8)

    def stage(self, code: str, *, limits: Limits | None = None, **fields: Any) -> Stage:
        """A candidate's stage that runs ``code`` after the prelude."""
        text = PRELUDE + textwrap.dedent(code)
        fields.setdefault("argv", ("{python}", "-I", "-S", "-c", text, self.marker))
        fields.setdefault("mounts", ())
        return Stage(name=self.marker, trust="candidate", runtime=RUNTIME, limits=limits or Limits(wall=60), **fields)

    async def run(self, code: str, **fields: Any) -> Outcome:
        return await self.engine.run(self.stage(code, **fields), secrets.token_hex(8))

    async def attack(self, code: str, **fields: Any) -> str:
        """What the program says it got; it must have come to its end, or it proves nothing."""
        outcome = await self.run(textwrap.dedent(code) + "\ngot('done')\n", **fields)
        lines = outcome.report.decode("utf-8", "replace").splitlines()
        assert outcome.end.how == "exited" and outcome.end.code == 0 and lines[-1:] == ["done"], outcome
        return "; ".join(lines[:-1])

    async def end(self, code: str, **fields: Any) -> str:
        """``exited 1``, ``over memory``: how the engine says that the program ended."""
        end = (await self.run(code, **fields)).end
        return f"{end.how} {end.limit or end.code}"

    def alive(self) -> list[str]:
        """Processes of the host that belong to this world's stages: they carry its marker in their command."""
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and self.marker.encode() in _cmdline(pid)]

    def running(self) -> list[str]:
        """Those of them that run an attack."""
        end = self.marker.encode() + b"\0"
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and _cmdline(pid).endswith(end)]

    async def until(self, condition: Callable[[], object], seconds: float = 20) -> bool:
        """Whether ``condition`` comes true."""
        with anyio.move_on_after(seconds):
            while not condition():
                await anyio.sleep(0.01)
            return True
        return False


def _cmdline(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""


def tree(**files: str) -> Tree:
    """A tree of open files; ``__`` in a name stands for a folder."""
    return Tree({name.replace("__", "/").encode(): Blob(0o100666, data=text.encode()) for name, text in files.items()})


def differs(found: object, expected: object) -> str:
    return "" if found == expected else f"{found!r} instead of {expected!r}"


# 1. No network but loopback; no socket of the host; few socket families


@wall(1)
async def no_network_of_the_host(world: World) -> str:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        return await world.attack(f"""
            if tried(socket.create_connection, ("127.0.0.1", {port}), 5): got("a listener of the host")
        """)


@wall(1)
async def no_interface_but_loopback(world: World) -> str:
    return await world.attack("""
        names = {name for _, name in socket.if_nameindex()} - {"lo"}
        routes = open("/proc/net/route").read().splitlines()[1:]
        if names or routes: got(f"{names} {routes}")
    """)


@wall(1)
async def loopback_is_up(world: World) -> str:
    return await world.attack("""
        def both(family, address):
            server = socket.socket(family); server.bind((address, 0)); server.listen()
            client = socket.create_connection((address, server.getsockname()[1]), 5)
            client.sendall(b"x"); return server.accept()[0].recv(1)
        if tried(both, socket.AF_INET, "127.0.0.1") != b"x": got("no loopback")
    """)


@wall(1)
async def no_names_are_resolved(world: World) -> str:
    return await world.attack("""
        if tried(socket.getaddrinfo, "outside.example", 80): got("an address")
        if os.path.exists("/etc/resolv.conf"): got(open("/etc/resolv.conf").read())
    """)


@wall(1)
async def no_abstract_socket_of_the_host(world: World) -> str:
    import socket

    name = "probatum-" + secrets.token_hex(8)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        return await world.attack(f"""
            if tried(socket.socket(socket.AF_UNIX).connect, "\\0{name}") is None and \\
                "{name}" in open("/proc/net/unix").read(): got("the host's abstract socket")
        """)


@wall(1)
async def no_file_socket_of_the_host(world: World) -> str:
    import socket

    folder = world.host / "sockets"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(folder / "open.sock"))
        (folder / "open.sock").chmod(0o777)
        server.listen()
        return await world.attack("""
            for root, folders, names in os.walk("/"):
                folders[:] = [f for f in folders if os.path.join(root, f) not in ("/proc", "/usr/share")]
                for name in names:
                    path = os.path.join(root, name)
                    if stat.S_ISSOCK(os.lstat(path).st_mode): got(path)
        """)


@wall(1)
async def few_socket_families(world: World) -> str:
    return await world.attack("""
        for family in range(64):
            for kind in (1, 2, 3, 5):
                for call in (socket.socket, socket.socketpair):
                    if family not in (1, 2, 10, 16) and tried(call, family, kind): got(f"family {family}")
    """)


@wall(1)
async def no_family_through_high_bits(world: World) -> str:
    return await world.attack("""
        for family in (38, 40):  # the kernel reads an int; a filter that compares 64 bits would look elsewhere
            if libc.syscall(ctypes.c_long({"x86_64": 41, "aarch64": 198}[os.uname().machine]),
                            ctypes.c_ulong(family | 1 << 32), ctypes.c_ulong(5 if family == 38 else 1), 0) >= 0:
                got(f"family {family}")
    """)


# 2. Mounts are an allowlist and read-only


WRITE = """
def write_all():
    for line in open("/proc/self/mountinfo"):
        target = line.split()[4].encode().decode("unicode_escape")
        if target in ("/tmp", "/dev/shm", "/proc", "/dev/pts") or os.path.exists(target) and not os.path.isdir(target): continue
        try: os.close(os.open(os.path.join(target, "new"), os.O_CREAT | os.O_WRONLY)); got("wrote below " + target)
        except OSError: pass
    for path in ("/w/tree/file", "/.launcher", "/etc/passwd", sys.executable, "/etc/hosts"):
        if os.path.exists(path):
            calls = (lambda: os.open(path, os.O_WRONLY), lambda: os.chmod(path, 0o777), lambda: os.rename(path, path + "x"))
            for call in calls:
                if tried(call) is not None or os.path.exists(path + "x"): got("changed " + path)
"""


@wall(2)
async def mounts_are_read_only(world: World) -> str:
    return await world.attack(WRITE + "\nwrite_all()", mounts=(Mount("/w/tree", tree(file="sealed")),))


@wall(2)
async def mounts_stay_read_only_to_a_remount(world: World) -> str:
    code = """
        for enter in (lambda: 0, lambda: libc.unshare(0x10020000)):
            enter()
            for flags in (32 | 4096, 32, 32 | 4096 | 16384):
                libc.mount(b"none", b"/w/tree", None, flags, None)
            libc.umount2(b"/w/tree", 2)
            libc.mount(b"none", b"/w", b"tmpfs", 0, None)
            write_all()
            if not os.path.exists("/w/tree/file"): got("unmounted it or hid it")
    """
    return await world.attack(WRITE + textwrap.dedent(code), mounts=(Mount("/w/tree", tree(file="sealed")),))


@wall(2)
async def mounts_cannot_be_moved_by_new_calls(world: World) -> str:
    return await world.attack(
        """
        def call(number, *arguments): return libc.syscall(ctypes.c_long(number), *arguments)
        tree = call(428, -100, b"/w/tree", 1)  # open_tree(OPEN_TREE_CLONE)
        if tree >= 0: got("a copy of a mount")
        attributes = struct.pack("QQQQ", 0, 1, 0, 0)
        if call(442, -100, b"/w/tree", 0, attributes, 32) == 0: got("mount_setattr")
        if call(430, b"tmpfs", 0) >= 0: got("fsopen")
        if libc.chroot(b"/tmp") == 0: got("chroot")
        """,
        mounts=(Mount("/w/tree", tree(file="sealed")),),
    )


@wall(2)
async def mounts_are_an_allowlist(world: World) -> str:
    (world.host / "secret").write_text("of the host")
    (world.host / "secret").chmod(0o666)
    return await world.attack(f"""
        if os.path.exists({str(world.host / "secret")!r}): got("a file of the host")
        allowed = set("bin dev etc lib lib32 lib64 libx32 out proc sbin tmp usr w .launcher".split())
        allowed.add(sys.base_prefix.split("/")[1])
        if extra := set(os.listdir("/")) - allowed: got(extra)
        known = set("alternatives group hosts ld.so.cache nsswitch.conf passwd".split())
        if extra := set(os.listdir("/etc")) - known: got(extra)
    """)


@wall(2)
async def devices_are_few(world: World) -> str:
    return await world.attack("""
        known = set("full null random tty urandom zero".split())
        for root, folders, names in os.walk("/dev"):
            for name in names:
                mode = os.lstat(os.path.join(root, name)).st_mode
                if root != "/dev/pts" and (stat.S_ISBLK(mode) or stat.S_ISCHR(mode)) and name not in known: got(name)
        if tried(os.mknod, "/tmp/disk", stat.S_IFBLK | 0o666, os.makedev(254, 0)) is None and os.path.exists("/tmp/disk"):
            got("a new device")
    """)


@wall(2)
async def no_descriptor_is_inherited(world: World) -> str:
    return await world.attack("""
        for number in range(4, 1024):
            try: os.fstat(number)
            except OSError: continue
            got(f"descriptor {number}: {os.readlink(f'/proc/self/fd/{number}')}")
    """)


# 3. The environment is exactly the stage's


@wall(3)
async def environment_is_exact(world: World) -> str:
    from probatum.core.stage import FIXED_ENV

    os.environ["WALLS_CANARY"] = "of the host"
    said = await world.attack(
        "for item in sorted(os.environ.items()): got('='.join(item))",
        env=(("ONE", "1"), ("TZ", "Europe/Paris")),
    )
    found = dict(item.split("=", 1) for item in said.split("; "))
    expected = {**FIXED_ENV, "ONE": "1", "TZ": "Europe/Paris"}
    return differs(found, expected)


@wall(3)
async def environment_of_no_process_is_the_hosts(world: World) -> str:
    os.environ["WALLS_CANARY"] = "of the host"
    return await world.attack("""
        for name in os.listdir("/proc"):
            if name.isdigit():
                try: text = open(f"/proc/{name}/environ", "rb").read()
                except OSError: continue
                if b"WALLS_CANARY" in text: got(f"environment of {name}")
        if "WALLS_CANARY" in os.environ: got("own environment")
    """)


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
    for steps in (0, 1, 2, 4, 8, 16, 32):
        async with anyio.create_task_group() as group:
            group.start_soon(world.engine.run, stage, "cancelled")
            for _ in range(steps):
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
        if world.alive():
            return f"alive after a cancellation at step {steps}"
    return ""


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
    changes: list[dict[str, Any]] = [
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
    class Gone(Tree):
        digest = "sha256:" + "0" * 64

    (world.host / "trees" / ("0" * 64)).mkdir(parents=True, exist_ok=True)
    (world.host / "trees" / ("0" * 64)).rmdir()
    world.engine.trees = lambda _: world.host / "nowhere"
    try:
        outcome = await world.run("", mounts=(Mount("/w/tree", Gone({})),))
    except EngineUnavailable as error:
        return differs("\n" in str(error), False)
    return f"an outcome: {outcome.end}"
