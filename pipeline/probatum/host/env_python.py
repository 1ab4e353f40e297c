"""The interpreter that candidate code runs on: found, never downloaded, and described once per binary."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..errors import EngineUnavailable, PolicyError

_ASK = """
import json, platform, sys, sysconfig
print(json.dumps({
    "executable": getattr(sys, "_base_executable", "") or sys.executable,
    "prefix": sys.base_prefix,
    "exec_prefix": sys.base_exec_prefix,
    "version": platform.python_version(),
    "implementation": sys.implementation.name,
    "build": sys.version,
    "abi": sysconfig.get_config_var("SOABI") or "",
    "platform": sysconfig.get_platform(),
    "stdlib": sorted(getattr(sys, "stdlib_module_names", ()) or sys.builtin_module_names),
}))
"""


class Python(msgspec.Struct, frozen=True, kw_only=True):
    """An interpreter outside any virtual environment. ``executable`` is a real path; ``prefix`` holds its library."""

    executable: str
    prefix: str
    exec_prefix: str
    version: str
    implementation: str
    build: str
    abi: str
    platform: str
    stdlib: tuple[str, ...]

    @property
    def minor(self) -> str:
        """``3.12``."""
        return ".".join(self.version.split(".")[:2])

    @property
    def binds(self) -> tuple[tuple[str, str], ...]:
        """The folders that it needs beside /usr, read-only at their own paths: its compiled-in prefix names them."""
        wanted = {self.prefix, self.exec_prefix, str(Path(self.executable).parent)}
        found: list[str] = []
        for folder in sorted(wanted, key=len):
            if not any(_under(folder, other) for other in ("/usr", *found)):
                found.append(folder)
        return tuple((folder, folder) for folder in found)


def find_uv() -> str | None:
    """uv's binary: the one that its package ships, else the one on PATH, else None."""
    try:
        from uv import find_uv_bin

        return str(find_uv_bin())
    except (ImportError, FileNotFoundError):
        return shutil.which("uv")


def own() -> Python:
    """The gate's own interpreter; no process is started to describe it."""
    import platform
    import sysconfig

    executable = getattr(sys, "_base_executable", "") or sys.executable
    return Python(
        executable=os.path.realpath(executable),
        prefix=sys.base_prefix,
        exec_prefix=sys.base_exec_prefix,
        version=platform.python_version(),
        implementation=sys.implementation.name,
        build=sys.version,
        abi=str(sysconfig.get_config_var("SOABI") or ""),
        platform=sysconfig.get_platform(),
        stdlib=tuple(sorted(sys.stdlib_module_names)),
    )


def find(wanted: str, uv: str | None = None) -> Python:
    """The interpreter that policy names (``"3.12"``, ``"3.12.4"``); ``""`` is the gate's own.

    Looked for on PATH as pythonX.Y, in /usr/bin and /usr/local/bin, among pyenv's versions, then among uv's; never
    downloaded. Raises PolicyError for a name that is no version, EngineUnavailable when there is none.
    """
    if not wanted:
        return own()
    match = re.fullmatch(r"([0-9]+\.[0-9]+)(\.[0-9]+)?", wanted)
    if match is None:
        raise PolicyError("environment", f"python: {wanted!r} is no version", 'write it as "3.12"')
    mine = own()
    if _fits(mine, wanted):
        return mine
    for candidate in _candidates(match[1], wanted, uv):
        described = describe(candidate)
        if described is not None and _fits(described, wanted):
            return described
    raise EngineUnavailable(
        "environment", f"no Python {wanted} on this machine", f"install python{match[1]} or change environment.python in policy"
    )


def describe(executable: str) -> Python | None:
    """What ``executable`` says of itself, or None when it does not run. Isolated: no site, no variables, no user folder."""
    clean = {"PATH": os.defpath, "LANG": "C.UTF-8"}
    try:
        done = subprocess.run(
            [executable, "-I", "-S", "-c", _ASK], capture_output=True, env=clean, cwd="/", timeout=20, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            return None
        told = msgspec.convert(json.loads(done.stdout), Python)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return msgspec.structs.replace(told, executable=os.path.realpath(told.executable))


def _candidates(minor: str, wanted: str, uv: str | None) -> Iterator[str]:
    """Binaries that may fit, nearest first; uv is asked only when nothing nearer fits, since it looks everywhere."""
    name = f"python{minor}"
    roots = [Path(os.environ["PYENV_ROOT"])] if "PYENV_ROOT" in os.environ else []
    found = [shutil.which(name), f"/usr/bin/{name}", f"/usr/local/bin/{name}"]
    for root in (*roots, Path.home() / ".pyenv"):
        found += sorted((str(path) for path in root.glob(f"versions/{minor}*/bin/{name}")), reverse=True)
    for path in found:
        if path and os.access(path, os.X_OK) and "/shims/" not in path:
            yield path
    if uv:
        command = [uv, "python", "find", "--no-python-downloads", "--no-project", "--no-config", wanted]
        try:
            done = subprocess.run(command, capture_output=True, text=True, cwd="/", timeout=20, stdin=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError):
            return
        if done.returncode == 0:
            yield done.stdout.strip()


def _fits(python: Python, wanted: str) -> bool:
    return python.version == wanted or python.version.startswith(wanted + ".") or python.minor == wanted


def _under(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
