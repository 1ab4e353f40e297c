"""Says how cold the sandbox is before any code of the tree runs, and then becomes the probe.

Started as ``{python} -s -B /probe/cold.py`` with the probe's own input on descriptor 0. Its one line is the first on
descriptor 3: no candidate code has run in this sandbox by then, so nothing of the candidate's can have written it.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Iterator

HERE = os.path.dirname(os.path.abspath(__file__))
NOT_OURS = ("proc", "sysfs", "devpts", "mqueue", "cgroup", "cgroup2")
MOST = 1_000_000


def main() -> None:
    source = _kept()
    nonce = os.pread(source, 4096, 0).partition(b"\n")[0].decode("ascii", "replace")
    files, mtime, ctime, packages = _installed()
    said = {
        "r": "cold",
        "nonce": nonce,
        "first_us": _first_process(),
        "now_us": int(time.time() * 1_000_000),
        "spaces": _spaces(),
        "bytecode": _bytecode(os.getcwd()),
        "files": files,
        "mtime_us": mtime,
        "ctime_us": ctime,
        "python": ".".join(map(str, sys.version_info[:3])),
        "packages": packages,
    }
    os.write(3, json.dumps(said, separators=(",", ":")).encode("ascii") + b"\n")
    os.lseek(source, 0, os.SEEK_SET)
    os.dup2(source, 0)
    os.execv(sys.executable, [sys.executable, "-s", "-B", os.path.join(HERE, "run.py")])


def _kept() -> int:
    """Descriptor 0 as a nameless file, because the probe reads it again."""
    try:
        fd = os.open(os.environ.get("TMPDIR", "/tmp"), os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        import tempfile

        fd, name = tempfile.mkstemp()
        os.unlink(name)
    while True:
        part = os.read(0, 1 << 20)
        if not part:
            return fd
        while part:
            part = part[os.write(fd, part) :]


def _first_process() -> int:
    """When the sandbox's first process started, unix microseconds; 0 where /proc does not say."""
    try:
        with open("/proc/1/stat", "rb") as file:
            ticks = int(file.read().rsplit(b")", 1)[1].split()[19])
    except (OSError, ValueError, IndexError):
        return 0
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - (ticks + 1) / os.sysconf("SC_CLK_TCK")
    return int((time.time() - max(age, 0.0)) * 1_000_000)


def _spaces() -> dict[str, int]:
    """Every place that this sandbox may write to, and how many files are in it already."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.split()
            target, kind = fields[4], fields[fields.index("-") + 1]
            if kind not in NOT_OURS and "rw" in fields[5].split(",") and os.path.isdir(target) and os.access(target, os.W_OK):
                found[target] = sum(1 for state in _walk(target) if stat.S_ISREG(state.st_mode))
    return {target.encode("ascii", "backslashreplace").decode(): count for target, count in sorted(found.items())}


def _bytecode(tree: str) -> int:
    """Compiled files in the tree."""
    return sum(1 for folder, _, names in os.walk(tree) for name in names if name.endswith((".pyc", ".pyo")))


def _installed() -> tuple[int, int, int, dict[str, str]]:
    """(files, oldest mtime, oldest ctime, packages) of what is installed: the environment, or an image's site folders."""
    if sys.prefix != sys.base_prefix:
        roots = [sys.prefix]
    else:
        roots = [folder for folder in sys.path if os.path.basename(folder) in ("site-packages", "dist-packages")]
    count, mtime, ctime = 0, 0, 0
    for root in roots:
        for state in _walk(root):
            if stat.S_ISREG(state.st_mode):
                count += 1
                mtime = min(mtime or state.st_mtime_ns, state.st_mtime_ns)
                ctime = min(ctime or state.st_ctime_ns, state.st_ctime_ns)
    packages = {}
    for folder in sys.path:
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            stem, _, kind = name.rpartition(".")
            if kind == "dist-info" and "-" in stem:
                package, _, version = stem.rpartition("-")
                packages[package.lower().replace("_", "-")] = version
    return count, mtime // 1000, ctime // 1000, packages


def _walk(top: str) -> Iterator[os.stat_result]:
    waiting, seen = [top], 0
    while waiting and seen < MOST:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    seen += 1
                    state = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(state.st_mode):
                        waiting.append(entry.path)
                    yield state
        except OSError:
            continue


if __name__ == "__main__":
    main()
