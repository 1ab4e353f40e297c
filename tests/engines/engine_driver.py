"""A gate in small, to be killed or closed in by a test: runs one stage, prints how it ended or why it could not.

engine_driver.py WORK WEAKER PROGRAM    (the marker is in the variable MARKER)
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import anyio
from engine_kit import Kit
from engine_world import World

from probatum.errors import ProbatumError


async def main(work: str, weaker: str, program: str) -> int:
    try:
        async with Kit().make(Path(work), weaker=weaker) as engine:
            world = World(engine, Path(work), Path(work), drops=False)
            world.marker = os.environ.get("MARKER", world.marker)
            outcome = await world.run(program)
    except ProbatumError as error:
        print(error.line())
        return int(error.exit)
    print(outcome.end.how, outcome.end.code, outcome.end.limit)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started us in the background ignores it
    sys.exit(anyio.run(main, *sys.argv[1:]))
