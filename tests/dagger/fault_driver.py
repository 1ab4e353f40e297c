"""A gate that harms its engine at one moment: fault_driver.py POINT COMMAND REPO OUT

POINT counts what a gate tells its watcher, from 0: each note, start and end of a stage. At that moment COMMAND runs. Prints
``harmed NAME`` and, at the end, how long the gate lived after that.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

from probatum.errors import Exit, ProbatumError
from probatum.gate import Request
from probatum.host.drive import gate


class Watcher:
    """Counts, and harms when it is time."""

    def __init__(self, point: int, command: str) -> None:
        self.left, self.command, self.when = point, command, 0.0

    def _told(self, what: str) -> None:
        if self.left == 0:
            print(f"harmed at {what}", flush=True)
            subprocess.run(shlex.split(self.command), check=True)
            self.when = time.monotonic()
        self.left -= 1

    def stage_started(self, name: str) -> None:
        self._told(f"start of {name}")

    def stage_finished(self, name: str, end: str, seconds: float) -> None:
        self._told(f"end of {name}")

    def note(self, text: str) -> None:
        pass


def main(point: str, command: str, repo: str, out: str) -> int:
    watcher = Watcher(int(point), command)
    request = Request(repo=Path(repo), base="main", head="agent", out=Path(out), engine="dagger", why_advisory="a test")
    code: int = Exit.PASS
    try:
        print(gate(request, watcher).line)
    except ProbatumError as error:
        print(error.line())
        code = error.exit
    print(f"lived {time.monotonic() - watcher.when:.1f}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
