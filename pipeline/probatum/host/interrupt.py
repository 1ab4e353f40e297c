"""SIGTERM ends a run as ^C does: every clean-up runs, and nothing of the run is left."""

from __future__ import annotations

import os
import signal
from types import FrameType


def like_interrupt() -> None:
    """From now on. Also where ^C itself is ignored, as it is in a job that a shell put into the background."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """The event loop knows how to end on SIGINT."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)
