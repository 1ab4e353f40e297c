"""The walls that every engine promises, each with a program that tries to break it from inside.

A wall is an async function of a World; it returns "" when it held, else what the attacker got. Written against
``core.stage.Engine`` alone. ``WALLS`` maps its name to (number of the promise in ``docs``, function).
"""

from __future__ import annotations

import os
import secrets
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio

from probatum.core.stage import Blob, Engine, Limits, Outcome, Runtime, Stage, Tree

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
    """An engine, a folder of the host that others may enter, and what the engine is known to do about uids.

    ``lose_trees`` makes the engine's trees unavailable, as a failing disk would.
    """

    def __init__(self, engine: Engine, host: Path, cache: Path, drops: bool) -> None:
        self.engine, self.host, self.cache, self.drops = engine, host, cache, drops
        self.lose_trees: Callable[[], None] = lambda: None
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
