"""Bubblewrap with one defence taken away at a time, by the name of the wall that must then fall."""

from __future__ import annotations

import importlib.util
import marshal
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import msgspec

from probatum.core.stage import Facts, Outcome, Place, Stage
from probatum.engines import sandbox, seccomp, stages
from probatum.engines.bubblewrap import Bubblewrap
from probatum.engines.job import Job
from probatum.probe import launcher

Change = Callable[[sandbox.Command], sandbox.Command]


class Weak(Bubblewrap):
    """Bubblewrap with one defence taken away."""

    weaker: Any

    def command(self, stage: Stage, where: Place, nonce: str) -> sandbox.Command:
        command = super().command(stage, where, nonce)
        return self.weaker.change(command) if stage.argv else command

    async def run(self, stage: Stage, nonce: str) -> Outcome:
        return await super().run(self.weaker.stage(stage), nonce)

    def key(self, stage: Stage) -> str:
        return "0" * 64 if self.weaker.one_key else super().key(stage)

    async def open(self) -> Facts:
        facts = await super().open()
        if self.stages is not None and self.weaker.believes:
            self.stages = Believing(self.stages.folder)
        return facts

    async def close(self) -> None:
        if self.weaker.closes:
            await super().close()

    def kept(self, outcome: Outcome) -> bool:
        return self.weaker.stores_all or super().kept(outcome)

    async def _in_thread(self, job: Job, finished: anyio.Event) -> None:
        if not self.weaker.abandons:
            return await super()._in_thread(job, finished)
        job.kill = lambda: None
        await anyio.to_thread.run_sync(job.run, abandon_on_cancel=True)
        finished.set()


class Believing(stages.Stages):
    """A cache that takes an entry at its word."""

    def load(self, key: str) -> Outcome | None:
        try:
            body = self._path(key).read_bytes().partition(b"\n")[2]
        except FileNotFoundError:
            return None
        return msgspec.json.decode(body, type=stages.Entry).outcome


class Less(msgspec.Struct, frozen=True):
    """How to weaken: ``change`` the sandbox, ``stage`` the request, or the engine's own care."""

    change: Change = lambda command: command
    stage: Callable[[Stage], Stage] = lambda stage: stage
    believes: bool = False
    one_key: bool = False
    abandons: bool = False
    stores_all: bool = False
    closes: bool = True


def change(**fields: Any) -> Less:
    return Less(lambda command: msgspec.structs.replace(command, **fields))


def flags(*, without: tuple[str, ...] = (), more: tuple[str, ...] = (), **fields: Any) -> Less:
    kept = tuple(flag for flag in sandbox.FLAGS if flag not in without)
    return change(flags=(*kept, *more), **fields)


def patched(*edits: tuple[str, str], also: Less | None = None) -> Less:
    """The launcher with pieces of its text replaced; each must be there."""
    text = Path(launcher.__file__).read_text()
    for old, new in edits:
        assert text.count(old) >= 1, f"the launcher has no {old!r} to take away"
        text = text.replace(old, new)
    code = importlib.util.MAGIC_NUMBER + bytes(12) + marshal.dumps(compile(text, "launcher", "exec"))

    def edit(command: sandbox.Command) -> sandbox.Command:
        files = tuple((name, code if name == sandbox.LAUNCHER else data) for name, data in command.files)
        return msgspec.structs.replace(also.change(command) if also is not None else command, files=files)

    return Less(edit)


def bound(name: str, target: str = "") -> Less:
    """One more folder of the host, named by a variable of the test's environment."""

    def edit(command: sandbox.Command) -> sandbox.Command:
        source = os.environ[name]
        return msgspec.structs.replace(command, binds=(*command.binds, (source, target or source)))

    return Less(edit)


def shared(command: sandbox.Command) -> sandbox.Command:
    """/tmp is one folder of the host for every stage."""
    folder = os.path.join(os.environ["WALLS_HOST"], "shared")
    os.makedirs(folder, exist_ok=True)
    os.chmod(folder, 0o777)
    reach = folder
    spaces = tuple(space for space in command.spaces if space[0] != "/tmp")
    return msgspec.structs.replace(command, spaces=spaces, binds=(*command.binds, (reach, "/tmp")), bind="--bind")


def host_environment(command: sandbox.Command) -> sandbox.Command:
    return msgspec.structs.replace(command, env={**os.environ, **command.env})


def families(*kept: int) -> bytes:
    """The filter with other socket families."""
    known = seccomp.FAMILIES
    try:
        seccomp.FAMILIES = kept
        return seccomp.program.__wrapped__()
    finally:
        seccomp.FAMILIES = known


def any_machine() -> bytes:
    """The filter that lets other machines' numbers through where it should end the process (its third step)."""
    known = seccomp.program()
    return known[:16] + struct.pack("=HBBI", 0x06, 0, 0, 0x7FFF0000) + known[24:]


def hosts(command: sandbox.Command) -> sandbox.Command:
    files = tuple((name, b"127.0.0.1 outside.example\n" if name == "/etc/hosts" else data) for name, data in command.files)
    return msgspec.structs.replace(command, files=files)


def every_end(limit: str) -> Less:
    """The launcher does not see that limit passed."""
    return patched((f'self.over("{limit}")', "pass"))


DEAF = patched(("poll.register(self.lifeline, select.POLLIN)", "pass"))
UNFILTERED = change(filter=b"")
FEW_FAMILIES_NOT = change(filter=families(*range(46)))
ALL_CAPABILITIES = flags(without=("--cap-drop", "ALL", "--disable-userns"), more=("--cap-add", "ALL"), filter=b"")
HOST_NETWORK = flags(more=("--share-net",))
OPEN_LAUNCHER = patched(
    ("libc.prctl(_DUMPABLE_SET, zero", "libc.prctl(_DUMPABLE_SET, ctypes.c_ulong(1)"),
    ("if libc.prctl(_DUMPABLE_GET", "if False and libc.prctl(_DUMPABLE_GET"),
    also=UNFILTERED,
)
LEAKED_RESULT = patched(("os.set_inheritable(descriptor, False)", "os.set_inheritable(descriptor, True)"))
UNWATCHED = every_end("memory")
ROOMY = Less(
    lambda command: msgspec.structs.replace(
        every_end("disk").change(command), spaces=tuple((target, 1 << 30) for target, _ in command.spaces)
    )
)
UNCOUNTED = patched(('self.over("processes")', "pass"), ("if config.nproc:", "if False:"))
REUSE_ALL = Less(stage=lambda stage: msgspec.structs.replace(stage, reusable=True))
ABANDON = Less(abandons=True)
SHARED = Less(shared)

WEAKER: dict[str, Less | str] = {
    "no-network-of-the-host": HOST_NETWORK,
    "no-interface-but-loopback": HOST_NETWORK,
    "loopback-is-up": change(filter=families(1)),
    "no-names-are-resolved": Less(hosts),
    "no-abstract-socket-of-the-host": HOST_NETWORK,
    "no-file-socket-of-the-host": bound("WALLS_HOST"),
    "few-socket-families": FEW_FAMILIES_NOT,
    "no-family-through-high-bits": FEW_FAMILIES_NOT,
    "mounts-are-read-only": change(bind="--bind"),
    "mounts-stay-read-only-to-a-remount": ALL_CAPABILITIES,
    "mounts-cannot-be-moved-by-new-calls": ALL_CAPABILITIES,
    "mounts-are-an-allowlist": bound("WALLS_HOST"),
    "devices-are-few": Less(lambda c: msgspec.structs.replace(c, binds=(*c.binds, ("/dev", "/dev/host")), steps=c.steps[2:])),
    "no-descriptor-is-inherited": LEAKED_RESULT,
    "environment-is-exact": Less(host_environment),
    "environment-of-no-process-is-the-hosts": Less(
        lambda c: msgspec.structs.replace(OPEN_LAUNCHER.change(c), environment=dict(os.environ))
    ),
    "no-capabilities": ALL_CAPABILITIES,
    "no-new-privileges": "bubblewrap sets no_new_privs whatever it is told, and the launcher sets it again",
    "no-user-namespace": flags(without=("--disable-userns",), filter=b""),
    "owns-nothing-outside": change(drop=False) if os.geteuid() == 0 else "an ordinary caller has no other uid to give",
    "kernel-doors-are-shut": UNFILTERED,
    "a-crash-starts-nothing-on-the-host": UNFILTERED,
    "no-foreign-system-calls": change(filter=any_machine()),
    "no-x32-system-calls": "kernels without CONFIG_X86_X32 refuse these numbers by themselves",
    "no-typing-into-a-terminal": UNFILTERED,
    "only-its-own-processes": Less(lambda c: msgspec.structs.replace(c, steps=("--ro-bind", "/proc", "/proc", *c.steps))),
    "signals-do-not-reach-the-launcher": patched(
        ("signal.signal(signal.SIGINT, signal.SIG_DFL)", "signal.signal(signal.SIGINT, signal.default_int_handler)")
    ),
    "launcher-cannot-be-traced": OPEN_LAUNCHER,
    "launcher-cannot-be-read": OPEN_LAUNCHER,
    "descriptors-cannot-be-stolen": OPEN_LAUNCHER,
    "launchers-limits-cannot-be-changed": UNFILTERED,
    "launcher-cannot-be-starved": UNFILTERED,
    "a-forged-result-is-not-believed": LEAKED_RESULT,
    "exit-codes-are-exits": patched(
        ('return ("exited", os.WEXITSTATUS(status), "")', 'return ("signalled", os.WEXITSTATUS(status) - 128, "")')
    ),
    "signals-are-signals": patched(('("signalled", number, "")', '("exited", 128 + number, "")')),
    "a-command-that-cannot-start-is-setup": patched(('return ("setup", problem, "")', 'return ("exited", 127, "")')),
    "a-bad-folder-is-setup": patched(('return ("setup", problem, "")', 'return ("exited", 127, "")')),
    "time-is-limited": patched(('self.over("wall")', "os.kill(self.pid, 9)")),
    "stopping-oneself-is-over-time": patched(('self.over("wall")', "os.kill(self.pid, 9)")),
    "memory-is-limited": UNWATCHED,
    "memory-of-all-processes-counts": UNWATCHED,
    "memory-cannot-hide-in-memory-files": UNFILTERED,
    "memory-cannot-hide-in-segments": patched(("self.config.memory - segments()", "self.config.memory")),
    "memory-cannot-hide-in-sockets": patched(("- sockets()", "")),
    "processes-are-limited": UNCOUNTED,
    "threads-count-as-processes": patched(("tasks += int(line[17])", "tasks += 1"), ("if config.nproc:", "if False:")),
    "a-fork-bomb-ends": every_end("processes"),
    "files-are-limited": patched(
        ("resource.setrlimit(resource.RLIMIT_FSIZE", "(lambda *_: None)(resource.RLIMIT_FSIZE"), ('self.over("file")', "pass")
    ),
    "files-are-limited-by-signal-too": patched(('("over", 0, "file") if number == signal.SIGXFSZ else', "")),
    "disk-is-limited": ROOMY,
    "disk-counts-every-writable-folder": ROOMY,
    "empty-files-count-as-disk": patched(("or inodes >", "or 0 >")),
    "output-is-limited": patched(("self.over(limit)", "pass")),
    "report-is-limited": patched(("self.over(limit)", "pass")),
    "the-tail-of-output-is-kept": patched(("kept[len(data) - KEEP :] + data", "kept[:KEEP]")),
    "a-daemon-is-not-waited-for": patched(
        ("        finally:\n            self.kill_all()", "        finally:\n            time.sleep(7)")
    ),
    "a-daemon-does-not-live-on": "the kernel ends a pid namespace with its first process; without one the launcher refuses",
    "cancelling-leaves-no-process": ABANDON,
    "cancelling-early-leaves-no-process": ABANDON,
    "closing-leaves-no-process": Less(closes=False),
    "scratch-vanishes": SHARED,
    "stages-do-not-see-each-other": SHARED,
    "outputs-are-declared-files": patched(("os.O_NOFOLLOW | ", ""), ("| os.O_NOFOLLOW", "")),
    "outputs-are-capped": patched(
        ("and state.st_size <= min(config.file, left)", ""),
        ("resource.setrlimit(resource.RLIMIT_FSIZE", "(lambda *_: None)(resource.RLIMIT_FSIZE"),
        ("self.measure_files()", "pass"),
    ),
    "a-fresh-stage-is-never-reused": REUSE_ALL,
    "the-first-process-is-not-older": patched(("began, run = first_process()", "began, run = 1")),
    "the-nonce-reaches-the-command": patched(('config.nonce + b"\\n" + exactly', "exactly")),
    "a-reusable-stage-is-keyed-by-all-it-reads": Less(one_key=True),
    "a-spoiled-entry-is-not-used": Less(believes=True),
    "only-an-exit-is-reused": Less(stores_all=True, believes=True),
    "words-of-the-engine-prove-nothing": patched(
        ("data = serve(read_config(source), source)", "data = serve(read_config(source), source); data = b''")
    ),
    "a-missing-tree-is-the-engines-failure": Less(
        lambda c: msgspec.structs.replace(c, binds=tuple(bind for bind in c.binds if os.path.exists(bind[0])))
    ),
    # not walls of every engine: what tests/engines/test_bubblewrap.py tries
    "a-killed-gate": DEAF,
    "the-launcher-kills-only-its-own": flags(
        without=("--unshare-all", "--as-pid-1"), more=("--unshare-net", "--unshare-ipc", "--unshare-uts")
    ),
}
"""Wall to the weakening under which its attack wins, or why there is none."""
