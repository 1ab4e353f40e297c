"""One stage as a target of a Dockerfile: what it mounts from where, as a value. No string of a candidate is in its text.

The root is empty; the image's folders, the trees and the interpreter are read-only mounts in it, as bubblewrap's sandboxes
have them. What differs from run to run (nonce, command, stdin) comes on the line, so that the context stays the same.
"""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ..core.stage import Mount, Stage
from ..errors import EngineUnavailable, UsageError
from . import machine
from .sandbox import Command

VARIABLE = "PROBATUM_RUNNER_IMAGE"

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

LARGEST = 16 << 20
"""Bytes of our own records that travel with the configuration instead of in a context."""
"""Bytes of configuration in one secret, which the engine limits to 128,000 characters; and how many are worth it."""

_RECORD = re.compile(rb"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_PLAIN = re.compile(r"/[A-Za-z0-9._/@+:~-]*")
_PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")
_FRESH = range(0x6000_0000, 0x7000_0000)


class Image(msgspec.Struct, frozen=True):
    """A runner image by digest: which of SYSTEM are folders in it, which are links (path, text), which of LOADER it has."""

    ref: str
    folders: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    loader: tuple[str, ...]

    @classmethod
    def of(cls, ref: str, found: dict[str, bool]) -> Image:
        """``found``: path of SYSTEM and LOADER to whether it is a link, which where usr is merged leads there."""
        system = [path for path in SYSTEM if path in found]
        return cls(
            ref,
            folders=tuple(path for path in system if not found[path]),
            links=tuple((path, f"usr{path}") for path in system if found[path]),
            loader=tuple(path for path in LOADER if path in found),
        )


class Source(msgspec.Struct, frozen=True):
    """A host folder and its name in a context."""

    name: str
    path: str
    kind: int


class Build(msgspec.Struct, frozen=True, kw_only=True):
    """A target of a Dockerfile, and the configuration that its launcher gets."""

    name: str
    text: str
    sources: tuple[Source, ...]
    config: bytes

    @classmethod
    def of(cls, command: Command, image: Image, carried: tuple[Mount, ...] = ()) -> Build:
        """The build of ``command``: same walls, other means. ``carried`` trees travel with the configuration."""
        trees = {mount.target for mount in command.stage.mounts}
        mounts, sources = [], []
        for source, target in command.binds:
            if target in (*SYSTEM, *LOADER):
                continue
            name = "d" + hashlib.sha256(source.encode("utf-8", "surrogateescape")).hexdigest()[:20]
            kind = TREE if target in trees else PREFIX if source == target else FOLDER
            sources.append(Source(name, source, kind))
            mounts.append((target, f"type=bind,source={name},target={_plain(target)}"))
        mounts += [(path, f"type=bind,from=image,source={path},target={path}") for path in image.folders]
        mounts.append(("/etc", "type=bind,from=etc,source=/,target=/etc"))
        mounts.append((f"{HOME}/line", f"type=ssh,id=line,target={HOME}/line,mode=0600,required=true"))
        mounts += [(target, f"type=tmpfs,target={_plain(target)},size={size}") for target, size in command.spaces]
        mounts += [(target, f"type=tmpfs,target={target},size=4096") for target in HIDDEN]
        steps = "".join(f" --mount={text}" for _, text in sorted(mounts, key=lambda mount: mount[0].split("/")))
        argv = json.dumps([machine.interpreter(), "-I", "-S", "-B", f"{HOME}/launcher", "folder", HOME])
        text = f"ARG RUN\nRUN --network=none{steps} {argv}\n"
        name = "s" + hashlib.sha256((image.ref + text).encode()).hexdigest()[:20]
        return cls(name=name, text=text, sources=tuple(sources), config=configuration(command, carried))


def dockerfile(image: Image, builds: Iterable[Build]) -> str:
    """One Dockerfile with a target for each build."""
    known = {build.name: build.text for build in builds}
    targets = "".join(f"FROM root AS {name}\n{text}" for name, text in sorted(known.items()))
    loader = "".join(f"COPY --from=image {path} {path.removeprefix('/etc')}\n" for path in image.loader)
    return (
        f"FROM {image.ref} AS image\n"
        f"FROM scratch AS etc\n{loader}COPY {BOX}/etc /\n"
        f"FROM scratch AS root\nCOPY {BOX}/root /\n{targets}"
    )


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
    """The launcher's configuration, with what bubblewrap itself does elsewhere: uid, closed folders, filter."""
    number = random.SystemRandom().choice(_FRESH)
    data = command.config(machine.Uid(number, number, True))
    rows = [("uid", str(number)), *(("closed", path) for path in UNWRITABLE), ("filter", command.filter.hex())]
    for mount in carried:
        for path, blob in mount.tree.files.items():
            text = base64.b64encode(blob.data or b"").decode("ascii")
            rows.append(("carried", f"{_plain(mount.target)}/{path.decode('ascii')}\n{text}"))
    more = b"".join(f"{key}={value}\0".encode() for key, value in rows)
    return (int.from_bytes(data[:8], "big") + len(more)).to_bytes(8, "big") + more + data[8:]


def box(folder: Path, command: Command, image: Image) -> None:
    """Lays out what every stage on an image shares: /etc, the launcher, and the links at the root."""
    etc, root = folder / "etc", folder / "root"
    (root / HOME.lstrip("/")).mkdir(parents=True)
    etc.mkdir()
    (etc / "resolv.conf").write_bytes(b"")
    for target, data in command.files:
        if target.startswith("/etc/"):
            (etc / target.removeprefix("/etc/")).write_bytes(data)
        else:
            (root / HOME.lstrip("/") / "launcher").write_bytes(data)
    for path, target in image.links:
        (root / path.lstrip("/")).symlink_to(target)


def _plain(path: str) -> str:
    """A path that means itself in a Dockerfile."""
    if not _PLAIN.fullmatch(path):
        what = f"the path {path!r} cannot be written into a Dockerfile"
        raise EngineUnavailable("dagger", what, "rename it, or use --engine bubblewrap")
    return path


def pinned(ref: str) -> str:
    """``ref`` where it names an image by digest. Raises UsageError for none, and for a tag, which may move."""
    if not ref:
        raise UsageError("--engine dagger", "no runner image is named", f"set environment.image in policy or {VARIABLE}")
    if not _PINNED.fullmatch(ref):
        raise UsageError("--engine dagger", f"the image {ref!r} is not named by digest", "write name@sha256:…; a tag may move")
    return ref
