"""One stage as a target of a Dockerfile: what it mounts from where, as a value. No string of a candidate is in its text.

The root is empty; the image's folders, the trees and the interpreter are read-only mounts in it, as bubblewrap's sandboxes
have them. What differs from run to run (nonce, command, stdin) comes as secrets, so that the context stays the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import zlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..core.stage import Mount, Stage
from ..errors import EngineUnavailable
from . import machine
from .sandbox import Command

HOME = "/.launcher"
"""Only root may enter it: launcher, configuration and result."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
LOADER = ("/etc/ld.so.cache", "/etc/alternatives")
HIDDEN = ("/sys", "/sys/fs/cgroup")
"""What the engine mounts and no stage may see: empty folders lie over it."""

UNWRITABLE = (*HIDDEN, "/dev/mqueue")
BOX = "box"
PREFIX, FOLDER, TREE = 0, 1, 2
"""Kinds of sources: an interpreter's prefix, another folder of a runtime, a tree of the patch."""

PIECE, MOST_PIECES = 72_000, 16
LARGEST = 16 << 20
"""Bytes of configuration in one secret, which the engine limits to 128,000 characters; and how many are worth it."""

_RECORD = re.compile(rb"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PLAIN = re.compile(r"/[A-Za-z0-9._/@+:~-]*")
_FRESH = range(0x6000_0000, 0x7000_0000)


class Image(msgspec.Struct, frozen=True):
    """A runner image by digest, and which of SYSTEM, LOADER and its other top-level folders it has."""

    ref: str
    folders: tuple[str, ...]


class Source(msgspec.Struct, frozen=True):
    """A host folder and its name in a context."""

    name: str
    path: str
    kind: int


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A target of a Dockerfile. ``pieces``: the configuration, as text."""

    name: str
    text: str
    sources: tuple[Source, ...]
    pieces: tuple[str, ...]
    deadline: int

    @classmethod
    def of(cls, command: Command, image: Image, carried: tuple[Mount, ...] = ()) -> Build:
        """The build of ``command``: same walls, other means. ``carried`` trees travel with the configuration."""
        pieces = tuple(_pieces(configuration(command, carried)))
        mounts, sources = [], []
        trees = {mount.target for mount in command.stage.mounts}
        for source, target in command.binds:
            if target in (*SYSTEM, *LOADER):
                continue
            name = name_of(source)
            kind = TREE if target in trees else PREFIX if source == target else FOLDER
            sources.append(Source(name, source, kind))
            mounts.append((target, f"type=bind,source={name},target={_plain(target)}"))
        for target in image.folders:
            mounts.append((target, f"type=bind,from=image,source={target},target={target}"))
        mounts.append(("/etc", f"type=bind,source={BOX}/etc,target=/etc"))
        mounts.append(("/etc/resolv.conf", f"type=bind,source={BOX}/etc/resolv.conf,target=/etc/resolv.conf"))
        mounts.append(("/etc/hosts", f"type=bind,source={BOX}/etc/hosts,target=/etc/hosts"))
        mounts.append((f"{HOME}/line", f"type=ssh,id=line,target={HOME}/line,mode=0600,required=true"))
        mounts.append((f"{HOME}/launcher", f"type=bind,source={BOX}/launcher,target={HOME}/launcher"))
        mounts += [(target, f"type=tmpfs,target={_plain(target)},size={size}") for target, size in command.spaces]
        mounts += [(target, f"type=tmpfs,target={target},size=4096") for target in HIDDEN]
        if len(pieces) <= MOST_PIECES:
            for index in range(len(pieces)):
                target = f"{HOME}/config.{index}"
                mounts.append((target, f"type=secret,id=${{RUN}}.{index},target={target},mode=0400,required=true"))
        else:
            mounts.append((f"{HOME}/config.0", f"type=bind,source=config,target={HOME}/config.0"))
        mounts.sort(key=lambda mount: mount[0].split("/"))
        argv = json.dumps([machine.interpreter(), "-I", "-S", "-B", f"{HOME}/launcher", "folder", HOME])
        steps = "".join(f" --mount={text}" for _, text in mounts)
        text = f"ARG RUN\nRUN --network=none{steps} {argv}\n"
        name = "s" + hashlib.sha256((image.ref + text).encode()).hexdigest()[:20]
        deadline = command.stage.limits.wall
        return cls(name=name, text=text, sources=tuple(sources), pieces=pieces, deadline=deadline)

    @property
    def by_context(self) -> bool:
        """Whether the configuration is too large for secrets and travels in a context of its own."""
        return len(self.pieces) > MOST_PIECES


def dockerfile(image: Image, builds: Iterable[Build]) -> str:
    """One Dockerfile with a target for each build."""
    known = {build.name: build.text for build in builds}
    targets = "".join(f"FROM scratch AS {name}\n{text}" for name, text in sorted(known.items()))
    return f"FROM {image.ref} AS image\n{targets}"


def carried(stage: Stage) -> tuple[Mount, ...]:
    """Small trees of our own records: they travel with the configuration, since a new context is hashed as a whole."""
    if stage.trust != "trusted":
        return ()
    plain = [
        mount
        for mount in stage.mounts
        if all(blob.data is not None and blob.mode == 0o100644 for blob in mount.tree.files.values())
        and all(_RECORD.fullmatch(path) for path in mount.tree.files)
    ]
    size = sum(len(blob.data or b"") for mount in plain for blob in mount.tree.files.values())
    return tuple(plain) if size <= LARGEST else ()


def configuration(command: Command, carried: tuple[Mount, ...]) -> bytes:
    """The launcher's configuration, with what bubblewrap itself does elsewhere: uid, closed folders, filter; compressed."""
    number = random.SystemRandom().choice(_FRESH)
    data = command.config(machine.Uid(number, number, True))
    rows = [("uid", str(number)), *(("closed", path) for path in UNWRITABLE), ("filter", command.filter.hex())]
    for mount in carried:
        for path, blob in mount.tree.files.items():
            text = base64.b64encode(blob.data or b"").decode("ascii")
            rows.append(("file", f"{_plain(mount.target)}/{path.decode('ascii')}\n{text}"))
    more = b"".join(f"{key}={value}\0".encode() for key, value in rows)
    return zlib.compress((int.from_bytes(data[:8], "big") + len(more)).to_bytes(8, "big") + more + data[8:], 1)


def box(folder: Path, command: Command) -> None:
    """Lays out what every stage of a gate shares: /etc and the launcher."""
    etc = folder / "etc"
    (etc / "alternatives").mkdir(parents=True)
    for name in ("resolv.conf", "ld.so.cache"):
        (etc / name).write_bytes(b"")
    for target, data in command.files:
        if target.startswith("/etc/"):
            (etc / target.removeprefix("/etc/")).write_bytes(data)
        else:
            (folder / "launcher").write_bytes(data)


def name_of(source: str) -> str:
    """What a host folder is called in a context: ours, never the candidate's."""
    return "d" + hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:20]


def _pieces(data: bytes) -> Iterable[str]:
    for at in range(0, len(data), PIECE):
        yield base64.b64encode(data[at : at + PIECE]).decode("ascii")


def _plain(path: str) -> str:
    """A path that means itself in a Dockerfile."""
    if not _PLAIN.fullmatch(path):
        what = f"the path {path!r} cannot be written into a Dockerfile"
        raise EngineUnavailable("dagger", what, "rename it, or use --engine bubblewrap")
    return path
