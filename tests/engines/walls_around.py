"""Walls 1 to 3: network, mounts and environment."""

from __future__ import annotations

import os
import secrets
import socket
import textwrap

import anyio
from engine_world import World, differs, tree, wall

from probatum.core.stage import FIXED_ENV, Mount

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
        def filled(path):  # a name without any content tells nothing
            mode = os.lstat(path).st_mode
            if not stat.S_ISDIR(mode): return not stat.S_ISREG(mode) or os.path.getsize(path)
            return any(filled(os.path.join(path, name)) for name in os.listdir(path))
        if extra := {{name for name in set(os.listdir("/")) - allowed if filled("/" + name)}}: got(extra)
        known = set("alternatives group hosts ld.so.cache nsswitch.conf passwd".split())
        if extra := {{name for name in set(os.listdir("/etc")) - known if filled("/etc/" + name)}}: got(extra)
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
