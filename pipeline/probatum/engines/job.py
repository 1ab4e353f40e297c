"""One run of one sandbox: the thread that starts it, talks to its launcher and sees its last process end."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable

import msgspec

from ..core.stage import End, Outcome
from ..errors import EngineUnavailable, ProbatumError
from . import machine, results
from .sandbox import LAUNCHER, Command

GRACE = 20
"""Seconds after a stage's wall limit at which the engine stops waiting for the launcher."""

_START = 5.0
"""Seconds that a sandbox that is to be killed may take to name its first process."""


class Job:
    """One run of one sandbox, in a thread of its own (``machine.reachable`` says why)."""

    def __init__(self, make: Callable[[], Command]) -> None:
        self.make = make
        self.outcome: Outcome | None = None
        self.error: BaseException | None = None
        self._killed = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._talk: Talk | None = None
        self._first = -1
        self._lock = threading.Lock()

    def run(self) -> None:
        """Run to the end; afterwards ``outcome`` or ``error`` is set and no process of the sandbox lives."""
        thread = threading.Thread(target=self._guarded, name="sandbox")
        thread.start()
        thread.join()

    def kill(self) -> None:
        """End the sandbox from outside, at any moment and as often as one likes.

        Only its first process is killed. bwrap itself must live until that process runs: bwrap releases it by an event,
        and without bwrap it would wait for that event for ever.
        """
        with self._lock:
            self._killed.set()
            if self._first >= 0:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._first, signal.SIGKILL)
            elif self._talk is not None:
                self._talk.deadline = min(self._talk.deadline, time.monotonic() + _START)

    def _guarded(self) -> None:
        try:
            command = self.make()
            if not self._killed.is_set():
                self.outcome = self._run(command)
        except ProbatumError as error:
            self.error = error
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            self.error = EngineUnavailable("bubblewrap", str(error), "free some disk space and run again" if full else "")
        except BaseException as error:
            self.error = error
        if self.outcome is None and self.error is None:
            self.error = EngineUnavailable("bubblewrap", "the engine was closed before the stage started")

    def _run(self, command: Command) -> Outcome:
        uid = machine.Uid.choose() if command.drop else machine.Uid(os.geteuid(), os.getegid(), False)
        limits, started = command.stage.limits, time.time_ns() // 1000
        with contextlib.ExitStack() as stack:
            ends = [os.pipe() for _ in range(4)]
            (config_r, config_w), (result_r, result_w), (info_r, info_w), (said_r, said_w) = ends
            ours, theirs = {config_w, result_r, info_r, said_r}, {config_r, result_w, info_w, said_w}
            stack.callback(_close, ours)
            stack.callback(_close, theirs)
            talk = Talk(command.config(uid), config_w, result_r, info_r, said_r, time.monotonic() + limits.wall + GRACE)
            with self._lock:
                if self._killed.is_set():
                    raise EngineUnavailable("bubblewrap", "the engine was closed before the stage started")
                self._talk = talk
                self._process = self._start(
                    command, uid, {*theirs, info_r}, ("--info-fd", str(info_w)), said_w, config_r, result_w
                )
            stack.callback(self._end)
            _close(theirs)
            while talk.serve():
                if talk.first and self._first < 0:
                    with self._lock, contextlib.suppress(ProcessLookupError):
                        self._first = os.pidfd_open(talk.first)
                    if self._killed.is_set():
                        self.kill()
            finished = time.time_ns() // 1000
            self._end()
            if talk.late and talk.first:
                return Outcome(end=End("over", limit="wall"), nonce="", started=started, finished=finished)
            if not talk.result:
                raise machine.refused(talk.said.decode("utf-8", "replace"), self._process.returncode)
            return results.read(bytes(talk.result), command.stage, command.nonce, started, finished)

    @staticmethod
    def _start(
        command: Command,
        uid: machine.Uid,
        passed: set[int],
        more: tuple[str, ...],
        said: int,
        config: int,
        result: int,
    ) -> subprocess.Popen[bytes]:
        """Start bwrap. It holds both ends of its information pipe: were the gate gone, writing would else kill it half-way."""
        with contextlib.ExitStack() as stack:

            def put(data: bytes) -> int:
                descriptor = os.memfd_create("probatum")
                stack.callback(os.close, descriptor)
                passed.add(descriptor)
                with open(descriptor, "wb", closefd=False) as file:
                    file.write(data)
                os.lseek(descriptor, 0, os.SEEK_SET)
                return descriptor

            program = os.open(machine.bwrap(), os.O_PATH | os.O_CLOEXEC)
            stack.callback(os.close, program)
            closed = command.sources()
            reach = dict(zip(closed, machine.reachable(closed), strict=True)) if uid.fresh else {}
            arguments = (*command.arguments(reach, put), *more)
            text = put(b"".join(os.fsencode(item) + b"\0" for item in arguments))
            launcher = [machine.interpreter(), "-I", "-S", "-B", LAUNCHER, "fd", str(config), str(result)]
            return subprocess.Popen(
                # What ps shows on the host. Inside, pid 1 is the launcher: a stage must not learn its own name.
                [f"probatum {command.stage.name}", "--args", str(text), "--", *launcher],
                executable=f"/proc/self/fd/{program}",
                env=command.environment,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                pass_fds=(program, *passed),
                start_new_session=True,
                user=uid.uid if uid.fresh else None,
                group=uid.gid if uid.fresh else None,
                extra_groups=[] if uid.fresh else None,
            )

    def _end(self) -> None:
        """Nothing lives on: the first process is gone only after every other of its pid namespace. May be called again."""
        assert self._process is not None
        self.kill()
        if self._first < 0:
            self._process.kill()
        self._process.wait()
        with self._lock:
            first, self._first = self._first, -1
        if first >= 0:
            poll = select.poll()
            poll.register(first, select.POLLIN)
            poll.poll(10_000)
            os.close(first)


class Talk:
    """Both ends of one sandbox's pipes. ``first``: the first process's id on this side, 0 until bwrap has told."""

    def __init__(self, config: bytes, sink: int, result: int, info: int, said: int, deadline: float) -> None:
        self.deadline, self.first, self.late = deadline, 0, False
        self.result, self.said, self._info = bytearray(), bytearray(), bytearray()
        self._left, self._sink, self._result = memoryview(config), sink, result
        self._into = {result: self.result, info: self._info, said: self.said}
        self._poll = select.poll()
        # The sink stays open to the end: to the launcher its closing means that the gate is gone.
        os.set_blocking(sink, False)
        self._poll.register(sink, select.POLLOUT)
        for descriptor in self._into:
            self._poll.register(descriptor, select.POLLIN)

    def serve(self) -> bool:
        """Serve what is ready; false once the result channel is closed or the time is up (then ``late``)."""
        wait = self.deadline - time.monotonic()
        if wait <= 0:
            self.late = True
            return False
        for descriptor, event in self._poll.poll(1 + int(1000 * min(wait, 1.0))):
            if descriptor == self._sink:
                self._write(event)
                continue
            data = os.read(descriptor, 1 << 18)
            kept = self._into[descriptor]
            if descriptor == self._result or len(kept) < 1 << 16:
                kept += data
            if not data:
                self._poll.unregister(descriptor)
                del self._into[descriptor]
        if not self.first and b"}" in self._info:
            self.first = int(msgspec.json.decode(bytes(self._info))["child-pid"])
        return self._result in self._into

    def _write(self, event: int) -> None:
        if event & select.POLLERR:  # bwrap ended before its launcher read all: the result says why
            self._left = self._left[:0]
        else:
            with contextlib.suppress(BrokenPipeError):
                self._left = self._left[os.write(self._sink, self._left[: 1 << 16]) :]
        if not self._left:
            self._poll.unregister(self._sink)


def _close(descriptors: set[int]) -> None:
    """Close each once: a number that is closed twice may by then be another thread's."""
    while descriptors:
        os.close(descriptors.pop())
