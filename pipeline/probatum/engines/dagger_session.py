"""A session with a Dagger engine: the caller's, or one of our own through the CLI that is here. Every wait has an end."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import anyio.to_thread

from ..errors import EngineUnavailable

PORT, TOKEN = "DAGGER_SESSION_PORT", "DAGGER_SESSION_TOKEN"
CLI = "_EXPERIMENTAL_DAGGER_CLI_BIN"
HOST = "_EXPERIMENTAL_DAGGER_RUNNER_HOST"
CONNECT = 12
"""Seconds within which an engine must have answered its client."""

GREET = 60
"""Seconds for what the SDK asks next, which on a busy machine takes long though the engine is there."""

THEIRS = ("dagger", "gql", "graphql", "httpx", "httpcore", "tenacity")
"""Packages whose exceptions speak of the engine or of the way to it; anything else is a bug of ours."""

OTHER = "or use --engine bubblewrap"


def inside() -> bool:
    """Whether a Dagger session is in the environment: ``dagger run`` started us."""
    return bool(os.environ.get(PORT) and os.environ.get(TOKEN))


def cli() -> str:
    """The CLI that the variable names, else the one on PATH; none is ever downloaded."""
    named = os.environ.get(CLI, "")
    if named:
        if not os.access(named, os.X_OK):
            raise EngineUnavailable("dagger", f"{CLI}={named} is no program", f"unset it, {OTHER}")
        return named
    found = shutil.which("dagger")
    if not found:
        raise EngineUnavailable("dagger", "no dagger CLI on PATH and no session in the environment", f"install it, {OTHER}")
    return found


class Session:
    """An open session. ``dag`` is the SDK's client. Usable once."""

    def __init__(self) -> None:
        self.dag: Any = None
        self.sdk: Any = None
        self.lost = False
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.AsyncExitStack()
        self._said: list[bytes] = []

    async def open(self) -> str:
        """Connected; the engine's version. Raises EngineUnavailable, after CONNECT seconds where nothing answers."""
        try:
            with anyio.fail_after(CONNECT):
                told = await anyio.to_thread.run_sync(self.start, abandon_on_cancel=True)
        except TimeoutError:
            self.kill()
            raise self._unreachable(f"no answer within {CONNECT} s") from None
        self.sdk = await anyio.to_thread.run_sync(_sdk)
        try:
            with anyio.fail_after(GREET), _variables(told):
                once = self.sdk.Config(retry=self.sdk.Retry(connect=True, execute=False))  # a stage is never run twice
                # A client of our own: the SDK's global one cannot be opened again once it has failed.
                self.dag = await self._stack.enter_async_context(self.sdk.Connection(once))
                version: str = await self.dag.version()
                return version
        except TimeoutError:
            self.kill()
            raise self._unreachable(f"no answer within {GREET} s") from None
        except Exception as error:
            if isinstance(error, EngineUnavailable):
                raise
            self.kill()
            raise self._unreachable(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from None

    async def close(self) -> None:
        """The session is over, also when the engine is gone: then its client, which would wait for it, is killed."""
        with anyio.CancelScope(shield=True):
            if not self.lost:
                with anyio.move_on_after(3), contextlib.suppress(Exception):
                    await self._stack.aclose()
            process, self._process = self._process, None
            if process is None:
                return
            assert process.stdin is not None
            process.stdin.close()
            if not self.lost:
                with anyio.move_on_after(5):
                    await anyio.to_thread.run_sync(process.wait, abandon_on_cancel=True)
            _end(process)

    def kill(self) -> None:
        """The client process of a session of ours ends now; the engine ends what it ran for it."""
        self.lost = True
        if self._process is not None:
            _end(self._process)

    def start(self) -> dict[str, str]:
        """The session's port and token, from the environment or from a CLI of our own."""
        if inside():
            self._knock()
            return {}
        command = [cli(), "--silent", "session", "--label", "dagger.io/sdk.name:python"]
        # A group of its own: a ^C at the terminal is ours to answer, not the client's.
        self._process = process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        assert process.stdout is not None and process.stderr is not None
        threading.Thread(target=self._listen, args=(process.stderr,), daemon=True).start()
        line = process.stdout.readline()
        try:
            told = json.loads(line)
            return {PORT: str(told["port"]), TOKEN: str(told["session_token"])}
        except (ValueError, KeyError):
            process.wait()
            raise self._unreachable(f"the CLI ended with status {process.returncode}") from None

    def _knock(self) -> None:
        """The caller's session still listens."""
        try:
            socket.create_connection(("127.0.0.1", int(os.environ[PORT])), CONNECT).close()
        except (OSError, ValueError) as error:
            raise self._unreachable(f"{PORT}={os.environ[PORT]}: {error}") from None

    def _listen(self, stream: Any) -> None:
        """Keeps the last lines that the CLI says; an unread pipe would stop it."""
        for line in stream:
            self._said = [*self._said[-20:], line]

    def _unreachable(self, what: str) -> EngineUnavailable:
        said = next((line.decode("utf-8", "replace").strip() for line in reversed(self._said) if line.strip()), "")
        where = os.environ.get(HOST, "")
        what = f"{what} ({said})" if said else what
        return EngineUnavailable(
            "dagger", f"no engine reachable{f' at {where}' if where else ''}: {what}", f"start one, set {HOST}, {OTHER}"
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _sdk() -> Any:
    """The SDK: it takes seconds to import, so nothing imports it before this engine is chosen."""
    try:
        import dagger

        if dagger.__file__ is None:  # any folder of that name on the path
            raise ImportError
    except ImportError:
        remedy = f"pip install 'probatum[dagger]', {OTHER}"
        raise EngineUnavailable("dagger", "the Dagger SDK is not installed", remedy) from None
    return dagger


@contextlib.contextmanager
def _variables(told: dict[str, str]) -> Iterator[None]:
    """The SDK reads the session from the environment; it does not stay there."""
    known = {name: os.environ.get(name) for name in told}
    os.environ.update(told)
    try:
        yield
    finally:
        for name, value in known.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def theirs(error: BaseException) -> BaseException | None:
    """The first failure in ``error`` where all of it is the SDK's or the way's to the engine; None where a bug is among it."""
    told = list(_leaves(error))
    ours = any(type(leaf).__module__.partition(".")[0] not in THEIRS for leaf in told)
    return None if ours else told[0]


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
