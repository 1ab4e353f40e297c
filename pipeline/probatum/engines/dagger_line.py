"""The line to every launcher in a container: no command starts without the gate's word, and none outlives the gate.

A launcher connects through the session, says which run it is of, and gets its configuration in answer. When the gate is
gone, or does not want the run any more, the line closes and the launcher kills everything; when the line closes from the
other side, the gate knows that the container has ended, which an engine does not tell.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from pathlib import Path

import anyio

TOKEN = 32
"""Characters of a run's name."""


class Lines:
    """A socket at ``path`` and the runs that are wanted. Its threads end with the process or with ``close``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._wanted: dict[str, bytes] = {}
        self._lines: dict[str, socket.socket] = {}
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, name="lines", daemon=True).start()

    def want(self, run: str, config: bytes) -> None:
        """From now on a launcher of ``run`` may start its command: it gets ``config``, once."""
        with self._lock:
            self._wanted[run] = config

    async def end(self, run: str, seconds: float = 10) -> bool:
        """No command of ``run`` starts any more, and the one that did has ended, or ``seconds`` are over (then False)."""
        with self._lock:
            self._wanted.pop(run, None)
            line = self._lines.get(run)
        if line is not None:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_WR)
        with anyio.move_on_after(seconds, shield=True):
            while run in self._lines:
                await anyio.sleep(0.002)
        return run not in self._lines

    def close(self) -> None:
        """No launcher connects any more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                line, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(line,), name="line", daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            said = b""
            while len(said) < TOKEN and (piece := line.recv(TOKEN - len(said))):
                said += piece
            with self._lock:
                run = said.decode("ascii", "replace")
                config = self._wanted.pop(run, None)
                if config is None:
                    return
                self._lines[run] = line
            try:
                line.sendall(config)
                while line.recv(64):
                    pass
            finally:
                with self._lock:
                    del self._lines[run]
