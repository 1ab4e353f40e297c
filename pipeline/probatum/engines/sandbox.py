"""One sandbox: what it is made of, as a value, and the thread that starts it, reads its result and sees it end."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ..core.stage import FIXED_ENV, Blob, End, Outcome, Place, Stage, Tree
from ..errors import EngineUnavailable, ProbatumError
from . import machine, results, seccomp

ENFORCED_BY = (
    "wall: launcher; memory: launcher's watch; processes: rlimit and watch; file: rlimit; disk: tmpfs size and watch; "
    "output, report: launcher"
)
GRACE = 20
"""Seconds after a stage's wall limit at which the engine stops waiting for the launcher."""

LAUNCHER = "/.launcher"
USER = 1000
FLAGS = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--as-pid-1"),
    *("--cap-drop", "ALL", "--uid", str(USER), "--gid", str(USER), "--hostname", "sandbox"),
)
_ETC = {
    "/etc/passwd": f"root:x:0:0:root:/nonexistent:/bin/false\nuser:x:{USER}:{USER}:user:/tmp/home:/bin/sh\n",
    "/etc/group": f"root:x:0:\nuser:x:{USER}:\n",
    "/etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "/etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_LOADER = ("/etc/ld.so.cache", "/etc/alternatives")


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one sandbox; nothing is started yet.

    ``binds``: (source, target), read-only. ``links``: (text, target). ``files``: (target, content).
    ``spaces``: (target, size), writable and empty. ``steps`` come after all of these.
    """

    stage: Stage
    nonce: str
    argv: tuple[str, ...]
    env: dict[str, str]
    flags: tuple[str, ...] = FLAGS
    binds: tuple[tuple[str, str], ...] = ()
    bind: str = "--ro-bind"
    links: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, bytes], ...] = ()
    spaces: tuple[tuple[str, int], ...] = ()
    steps: tuple[str, ...] = ("--remount-ro", "/dev", "--remount-ro", "/")
    filter: bytes = b""
    environment: dict[str, str] = {}
    drop: bool = True

    @classmethod
    def of(cls, stage: Stage, place: Place, nonce: str, trees: Callable[[Tree], Path]) -> Command:
        """The sandbox of ``stage``. Puts its trees into folders, and starts nothing."""
        binds, links = _system(place.rootfs)
        for mount in stage.mounts:
            binds[_absolute(mount.target)] = str(trees(_with_mount_points(mount.target, mount.tree, stage.scratch)))
        binds |= {_absolute(target): source for source, target in place.binds}
        python, prefix = machine.interpreter(), sys.base_prefix
        for folder in (prefix, str(Path(python).parent.parent)):
            if not any(_inside(folder, target) for target in binds):
                binds[folder] = folder
        # Room beyond the limit, so that the watch can see that the limit was passed.
        room = stage.limits.disk + max(1 << 20, stage.limits.disk >> 4)
        writable = ["/tmp", "/dev/shm", *map(_absolute, stage.scratch), *(["/out"] if stage.outputs else [])]
        return cls(
            stage=stage,
            nonce=nonce,
            argv=tuple(item.replace("{python}", place.python) for item in stage.argv),
            env=_environment(stage, place),
            binds=tuple((source, target) for target, source in binds.items()),
            links=tuple(links),
            files=(*((name, text.encode()) for name, text in _ETC.items()), (LAUNCHER, machine.launcher())),
            spaces=tuple((target, room) for target in writable),
            filter=seccomp.program(),
        )

    def arguments(self, reach: dict[str, str], put: Callable[[bytes], int]) -> list[str]:
        """bwrap's arguments; ``put`` turns bytes into a descriptor to read them from."""
        steps: list[tuple[str, list[str]]] = [("/proc", ["--proc", "/proc"]), ("/dev", ["--dev", "/dev"])]
        steps += [(target, [self.bind, reach.get(source, source), target]) for source, target in self.binds]
        steps += [(target, ["--symlink", text, target]) for text, target in self.links]
        steps += [(target, ["--perms", "0644", "--file", str(put(data)), target]) for target, data in self.files]
        steps += [(target, ["--perms", "1777", "--size", str(size), "--tmpfs", target]) for target, size in self.spaces]
        steps.append(("/tmp/home", ["--perms", "0700", "--dir", "/tmp/home"]))
        steps += [(folder, ["--perms", "0755", "--dir", folder]) for folder in self._parents()]
        found = list(self.flags)
        for _, step in sorted(steps, key=lambda step: step[0].split("/")):
            found += step
        if self.filter:
            found += ["--seccomp", str(put(self.filter))]
        return [*found, *self.steps, "--chdir", "/"]

    def _parents(self) -> set[str]:
        """Folders that lead to a target: bwrap would create them closed to others."""
        targets = {target for _, target in (*self.binds, *self.links)} | {target for target, _ in (*self.files, *self.spaces)}
        found = {str(parent) for target in targets for parent in Path(target).parents}
        made = {target for _, target in self.binds} | {target for target, _ in self.spaces} | {"/dev", "/proc"}
        return {folder for folder in found if folder != "/" and not any(_inside(folder, target) for target in made)}

    def config(self, uid: machine.Uid) -> bytes:
        """The launcher's configuration."""
        limits = self.stage.limits
        rows: list[tuple[str, str]] = [("nonce", self.nonce), ("cwd", self.stage.cwd)]
        rows += [("argv", item) for item in self.argv]
        rows += [("env", f"{name}={value}") for name, value in self.env.items()]
        rows += [("writable", target) for target, _ in self.spaces]
        rows += [("output-file", _output(name)) for name in self.stage.outputs]
        rows += [(name, str(getattr(limits, name))) for name in limits.__struct_fields__]
        rows += [("nproc", str(int(machine.counts_processes(uid)))), ("stdin-size", str(len(self.stage.stdin)))]
        if any("\0" in value for _, value in rows):
            raise EngineUnavailable("bubblewrap", f"stage {self.stage.name}: a NUL in its command")
        fields = b"".join(f"{key}={value}\0".encode("utf-8", "surrogateescape") for key, value in rows)
        return len(fields).to_bytes(8, "big") + fields + self.stage.stdin


class Job:
    """One run of one sandbox, in a thread of its own: bwrap dies with the thread that started it."""

    def __init__(self, make: Callable[[], Command]) -> None:
        self.make = make
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self._killed = False
        self._process: subprocess.Popen[bytes] | None = None
        self._first = -1
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run to the end; afterwards ``outcome`` or ``error`` is set and no process of the sandbox lives."""
        thread = threading.Thread(target=self._guarded, name="sandbox")
        thread.start()
        thread.join()

    def kill(self) -> None:
        """End the sandbox from outside, at any moment and as often as one likes."""
        with self._lock:
            self._killed = True
            if self._first >= 0:
                with contextlib.suppress(OSError):
                    signal.pidfd_send_signal(self._first, signal.SIGKILL)
            if self._process is not None and self._process.poll() is None:
                self._process.kill()

    def _guarded(self) -> None:
        try:
            command = self.make()
            if not self._killed:
                self.outcome = self._run(command)
        except ProbatumError as error:
            self.error = error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.error = EngineUnavailable("bubblewrap", str(error), "free some disk space and run again" if full else "")
        except BaseException as error:
            self.error = error

    def _run(self, command: Command) -> Outcome:
        uid = machine.Uid.choose() if command.drop else machine.Uid(os.geteuid(), os.getegid(), False)
        config = command.config(uid)
        with contextlib.ExitStack() as stack:

            def keep(descriptor: int) -> int:
                stack.callback(os.close, descriptor)
                return descriptor

            def put(data: bytes) -> int:
                descriptor = keep(os.memfd_create("probatum"))
                os.write(descriptor, data)
                os.lseek(descriptor, 0, os.SEEK_SET)
                passed.append(descriptor)
                return descriptor

            passed: list[int] = []
            program = keep(os.open(machine.bwrap(), os.O_PATH | os.O_CLOEXEC))
            sources = [source for source, target in command.binds if target not in _SYSTEM]
            reach = dict(zip(sources, machine.reachable(sources), strict=True)) if uid.fresh else {}
            pipes = [os.pipe() for _ in range(4)]
            (config_r, config_w), (result_r, result_w), (info_r, info_w), (said_r, said_w) = pipes
            ours = {descriptor for pair in pipes for descriptor in pair}
            stack.callback(_close, ours)
            arguments = command.arguments(reach, put)
            text = put(
                b"".join(item.encode("utf-8", "surrogateescape") + b"\0" for item in (*arguments, "--info-fd", str(info_w)))
            )
            launch = [machine.interpreter(), "-I", "-S", "-B", LAUNCHER, "fd", str(config_r), str(result_w)]
            started = time.time_ns() // 1000
            with self._lock:
                if self._killed:
                    raise EngineUnavailable("bubblewrap", "cancelled")
                process = self._process = subprocess.Popen(
                    ["bwrap", "--args", str(text), "--", *launch],
                    executable=f"/proc/self/fd/{program}",
                    env=command.environment,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=said_w,
                    stderr=said_w,
                    pass_fds=(program, config_r, result_w, info_w, *passed),
                    start_new_session=True,
                    user=uid.uid if uid.fresh else None,
                    group=uid.gid if uid.fresh else None,
                    extra_groups=[] if uid.fresh else None,
                )
            stack.callback(self._end)
            theirs = {config_r, result_w, info_w, said_w}
            ours -= theirs
            _close(theirs)
            talk = Talk(config, config_w, result_r, info_r, said_r, time.monotonic() + command.stage.limits.wall + GRACE)
            for first in talk.go():
                with self._lock:
                    self._first = os.pidfd_open(first)
            finished = time.time_ns() // 1000
            if talk.late:
                return Outcome(end=End("over", limit="wall"), nonce="", started=started, finished=finished)
            if not talk.result:
                self._end()
                raise machine.refused(talk.said.decode("utf-8", "replace"), process.returncode)
            return results.read(bytes(talk.result), command.stage, command.nonce, started, finished)

    def _end(self) -> None:
        """Nothing lives on: the first process is gone only after every other of its pid namespace. May be called again."""
        self.kill()
        assert self._process is not None
        self._process.wait()
        with self._lock:
            first, self._first = self._first, -1
        if first >= 0:
            poll = select.poll()
            poll.register(first, select.POLLIN)
            poll.poll(10_000)
            os.close(first)


class Talk:
    """Both ends of one sandbox's pipes, served until the result channel closes or the time is up."""

    def __init__(self, config: bytes, sink: int, result: int, info: int, said: int, deadline: float) -> None:
        self.left, self.sink, self.deadline = memoryview(config), sink, deadline
        self.result, self.said, self.info, self.late = bytearray(), bytearray(), bytearray(), False
        self._into = {result: self.result, info: self.info, said: self.said}
        self._result = result

    def go(self) -> Iterator[int]:
        """Serve; yields the first process's id once. The sink stays open: to the launcher its closing means our death."""
        poll, told = select.poll(), False
        os.set_blocking(self.sink, False)
        poll.register(self.sink, select.POLLOUT)
        for descriptor in self._into:
            poll.register(descriptor, select.POLLIN)
        while self._result in self._into:
            wait = self.deadline - time.monotonic()
            if wait <= 0:
                self.late = True
                return
            for descriptor, event in poll.poll(1 + int(1000 * wait)):
                if descriptor == self.sink:
                    if not event & select.POLLERR:
                        with contextlib.suppress(BrokenPipeError):
                            self.left = self.left[os.write(descriptor, self.left[: 1 << 16]) :]
                    if event & select.POLLERR or not self.left:
                        poll.unregister(descriptor)
                    continue
                data = os.read(descriptor, 1 << 18)
                self._into[descriptor] += data
                del self._into[descriptor][: 0 if descriptor == self._result else -(1 << 16)]
                if not data:
                    poll.unregister(descriptor)
                    del self._into[descriptor]
            if not told and b"}" in self.info:
                told = True
                with contextlib.suppress(ProcessLookupError):
                    yield int(msgspec.json.decode(bytes(self.info))["child-pid"])


def _system(rootfs: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The system's folders: (target to source, links). Nothing of the host but programs and libraries."""
    binds, links = {}, []
    for target in (*_SYSTEM, *_LOADER):
        source = rootfs + target
        if os.path.islink(source) and target in _SYSTEM:
            links.append((os.readlink(source).lstrip("/"), target))
        elif os.path.exists(source):
            binds[target] = source
    return binds, links


def _environment(stage: Stage, place: Place) -> dict[str, str]:
    """Exactly the fixed environment, the runtime's folder on PATH, and the stage's own."""
    env = dict(FIXED_ENV)
    if place.path:
        env["PATH"] = f"{place.path}:{env['PATH']}"
    return env | {name: value.replace("{python}", place.python) for name, value in stage.env}


def _with_mount_points(target: str, tree: Tree, scratch: tuple[str, ...]) -> Tree:
    """``tree`` with a folder for each scratch space below it: a read-only mount cannot be given one later."""
    missing = {}
    for path in scratch:
        if _inside(path, target) and path != target:
            name = os.fsencode(posixpath.relpath(path, target)) + b"/"
            if not any(known.startswith(name) for known in tree.files):
                missing[name + b".scratch"] = Blob(0o100644, data=b"")
    return tree.with_files(missing) if missing else tree


def _absolute(path: str) -> str:
    """A normal absolute path inside the sandbox; anything else would be a hole in the list of mounts."""
    if not path.startswith("/") or posixpath.normpath(path) != path or path == "/":
        raise EngineUnavailable("bubblewrap", f"not an absolute path of a sandbox: {path!r}")
    return path


def _output(name: str) -> str:
    """A declared output relative to /out."""
    path = _absolute(posixpath.join("/out", name))
    if not path.startswith("/out/"):
        raise EngineUnavailable("bubblewrap", f"an output outside /out: {name!r}")
    return path.removeprefix("/out/")


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + "/")


def _close(descriptors: set[int]) -> None:
    """Close each once: a number that is closed twice may by then be another thread's."""
    while descriptors:
        os.close(descriptors.pop())
