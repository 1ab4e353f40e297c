"""Dagger with one defence taken away at a time, by the name of the wall that must then fall."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
from collections.abc import Callable
from typing import Any

import bubblewrap_weaker as bubblewrap
import msgspec
from bubblewrap_weaker import Believing, Less, any_machine, change, families, host_environment, hosts, patched
from dagger_kit import Joining

from probatum.core.stage import Facts, Mount, Outcome, Place, Stage
from probatum.engines import sandbox
from probatum.engines.dagger_build import Build, Image


class Weaker(msgspec.Struct, frozen=True):
    """``less``: as for bubblewrap. ``text``: what else the step's text becomes."""

    less: Less = Less()
    text: Callable[[str], str] = lambda text: text


class Weak(Joining):
    """Dagger with one defence taken away."""

    weaker: Any

    @property
    def less(self) -> Less:
        found: Less = self.weaker.less
        return found

    def command(self, stage: Stage, place: Place, nonce: str) -> sandbox.Command:
        command = super().command(stage, place, nonce)
        weak = self.less.change(command)
        return msgspec.structs.replace(weak, binds=command.binds) if stage.name == "open" else weak

    def build(self, command: sandbox.Command, image: Image, carried: tuple[Mount, ...] = ()) -> Build:
        build = super().build(command, image, carried)
        text = build.text if command.stage.name == "open" else self.weaker.text(build.text)
        name = "s" + hashlib.sha256(text.encode()).hexdigest()[:20]
        return msgspec.structs.replace(build, name=name, text=text)

    async def run(self, stage: Stage, nonce: str) -> Outcome:
        return await super().run(self.less.stage(stage), nonce)

    def key(self, stage: Stage) -> str:
        return "0" * 64 if self.less.one_key else super().key(stage)

    async def open(self) -> Facts:
        facts = await super().open()
        if self.stages is not None and self.less.believes:
            self.stages = Believing(self.stages.folder)
        return facts

    async def close(self) -> None:
        if self.less.closes:
            await super().close()

    def kept(self, outcome: Outcome) -> bool:
        return self.less.stores_all or super().kept(outcome)

    async def _build(self, build: Build, folder: Any) -> bytes:
        if not self.less.abandons:
            return await super()._build(build, folder)
        return await asyncio.shield(asyncio.ensure_future(super()._build(build, folder)))


def text(old: str, new: str, less: Less | None = None) -> Weaker:
    return Weaker(less or Less(), lambda text: re.sub(old, new, text))


def launcher(*edits: tuple[str, str], also: Less | None = None) -> Weaker:
    return Weaker(patched(*edits, also=also))


UNFILTERED = change(filter=b"")
ROOT = (("    if config.uid:\n        libc = ctypes", "    if False:\n        libc = ctypes"),)
"""The command keeps the launcher's uid and capabilities."""

OPEN = (
    ("libc.prctl(_DUMPABLE_SET, zero", "libc.prctl(_DUMPABLE_SET, ctypes.c_ulong(1)"),
    ("if libc.prctl(_DUMPABLE_GET", "if False and libc.prctl(_DUMPABLE_GET"),
)
OPEN_LAUNCHER = launcher(*ROOT, *OPEN, also=UNFILTERED)
HOST_NETWORK = text("--network=none", "--network=host")
ANY_NETWORK = text("--network=none ", "")
RUNTIME = "the runtime's own filter and capabilities refuse it too, and a build step cannot ask for others"
LEAKED_LINE = launcher(("line.connect(", "os.dup2(line.fileno(), 60, inheritable=True); line.connect("))
ABANDON = Weaker(Less(abandons=True))
SHARED = text(
    r"type=tmpfs,target=/tmp,size=\d+",
    f"type=cache,id=walls-{secrets.token_hex(4)},target=/tmp",
    patched(
        ('os.mkdir("/tmp/home", 0o700)', 'os.makedirs("/tmp/home", 0o700, exist_ok=True)'),
        ('self.over("disk")', "pass"),
    ),
)

WEAKER: dict[str, Weaker | str] = {
    **{name: less if isinstance(less, str) else Weaker(less) for name, less in bubblewrap.WEAKER.items()},
    "no-network-of-the-host": HOST_NETWORK,
    "no-interface-but-loopback": ANY_NETWORK,
    "loopback-is-up": Weaker(change(filter=families(1))),
    "no-names-are-resolved": Weaker(Less(hosts)),
    "no-abstract-socket-of-the-host": HOST_NETWORK,
    "no-file-socket-of-the-host": launcher(("os.chmod(arguments[1], 0o700)", "pass")),
    "few-socket-families": RUNTIME,
    "no-family-through-high-bits": RUNTIME,
    "mounts-are-read-only": text(r"type=bind,source=\w+,target=/w/tree", "type=cache,id=walls,target=/w/tree", patched(*ROOT)),
    "mounts-stay-read-only-to-a-remount": RUNTIME,
    "mounts-cannot-be-moved-by-new-calls": RUNTIME,
    "mounts-are-an-allowlist": text("(type=bind,from=)etc", r"\1image,source=/var,target=/var --mount=\1etc"),
    "devices-are-few": launcher(*ROOT, also=UNFILTERED),
    "no-descriptor-is-inherited": LEAKED_LINE,
    "environment-is-exact": Weaker(Less(host_environment)),
    "environment-of-no-process-is-the-hosts": text("ARG RUN", "ARG RUN\nENV WALLS_CANARY=x", OPEN_LAUNCHER.less),
    "no-capabilities": launcher(("for capability in range(64):", "for capability in ():")),
    "no-new-privileges": launcher(("libc.prctl(_NO_NEW_PRIVS", "(lambda *_: 0)(_NO_NEW_PRIVS"), also=UNFILTERED),
    "no-user-namespace": RUNTIME,
    "owns-nothing-outside": launcher(*ROOT),
    "no-foreign-system-calls": Weaker(change(filter=any_machine())),
    "only-its-own-processes": "the runtime gives every container a pid namespace; without one the launcher refuses",
    "signals-do-not-reach-the-launcher": launcher(
        *ROOT, ("signal.signal(signal.SIGINT, signal.SIG_DFL)", "signal.signal(signal.SIGINT, signal.default_int_handler)")
    ),
    "launcher-cannot-be-traced": OPEN_LAUNCHER,
    "launcher-cannot-be-read": OPEN_LAUNCHER,
    "descriptors-cannot-be-stolen": OPEN_LAUNCHER,
    "launchers-limits-cannot-be-changed": launcher(*ROOT, also=UNFILTERED),
    "launcher-cannot-be-starved": launcher(*ROOT, also=UNFILTERED),
    "a-forged-result-is-not-believed": launcher(
        ("        data = serve(config, line.fileno())",
         "        sink = os.open(arguments[1] + '/result', os.O_WRONLY | os.O_CREAT, 0o600)\n"
         "        os.set_inheritable(sink, True)\n        data = serve(config, line.fileno())"),
        ("os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)\n    write(sink", "os.O_WRONLY | os.O_APPEND, 0o600)\n    write(sink"),
    ),
    "cancelling-leaves-no-process": ABANDON,
    "cancelling-early-leaves-no-process": ABANDON,
    "scratch-vanishes": SHARED,
    "stages-do-not-see-each-other": SHARED,
    "words-of-the-engine-prove-nothing": launcher(
        ("        data = serve(config, line.fileno())",
         "        data = serve(config, line.fileno())\n        data = data if config.nonce == b'open' else b'?'")
    ),
}  # fmt: skip
"""Wall to the weakening under which its attack wins, or why there is none."""
