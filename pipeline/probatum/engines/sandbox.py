"""What one sandbox is made of, as a value: mounts, flags, filter, environment and the launcher's configuration."""

from __future__ import annotations

import os
import posixpath
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from ..core.stage import FIXED_ENV, Blob, Place, Stage, Tree
from ..errors import EngineUnavailable
from . import machine, seccomp

ENFORCED_BY = (
    "wall: launcher; memory: launcher's watch; processes: rlimit and watch; file: rlimit; disk: tmpfs size and watch; "
    "output, report: launcher"
)
LAUNCHER = "/.launcher"
USER = 1000
# Not --die-with-parent: a bwrap that dies while its child waits for it leaves that child waiting for ever. The launcher
# holds a lifeline instead, a pipe whose other end only the gate has.
FLAGS = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--new-session", "--as-pid-1"),
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

    def sources(self) -> list[str]:
        """Host paths to mount that may lie below folders that are closed to others."""
        return [source for source, target in self.binds if target not in _SYSTEM or source != target]

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
