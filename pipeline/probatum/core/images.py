"""Images are named by digest: references, the lock ``containers/images.lock.yaml``, and what an OCI layout says of one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ..errors import EvidenceCorrupt, PolicyError

LOCK = "containers/images.lock.yaml"
PLATFORM = "linux/amd64"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
PINNED = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*@sha256:[0-9a-f]{64}")
REMEDY = "a tag may move: write name@sha256:…, as probatum images lock prints it"

INDEXES = frozenset({"application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"})
MANIFESTS = frozenset({"application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"})
LAYERS: Mapping[str, str] = {
    "application/vnd.oci.image.layer.v1.tar": "",
    "application/vnd.oci.image.layer.v1.tar+gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar.gzip": "gzip",
    "application/vnd.docker.image.rootfs.diff.tar": "",
}
"""Media type of a layer to its compression."""


def wrong(ref: str) -> str:
    """Why ``ref`` names no image for good, "" when it does."""
    if PINNED.fullmatch(ref):
        return ""
    return f"the image {ref!r} is not named by digest" if "sha256:" in ref else f"the image {ref!r} is named by tag alone"


class Image(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A row of the lock. ``reference``: name and tag, where it came from. ``packages``: those that matter, with versions."""

    name: str
    reference: str
    digest: str
    platform: str = PLATFORM
    packages: dict[str, str] = {}

    @property
    def pinned(self) -> str:
        """``name@sha256:…``, as a policy or a Dockerfile names it."""
        head, _, tail = self.reference.rpartition(":")
        bare = head if head and "/" not in tail else self.reference
        return f"{bare}@{self.digest}"


class Lock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The lock of images."""

    version: int
    images: tuple[Image, ...] = ()


def parse_lock(data: bytes, where: str = LOCK) -> Lock:
    """The lock in ``data``. Raises PolicyError for anything that is not exactly one."""
    from .yaml12 import load

    value, _ = load(data, where)
    try:
        lock = msgspec.convert(value, Lock)
    except msgspec.ValidationError as error:
        raise PolicyError(where, str(error), "write it with probatum images lock") from None
    if lock.version != 1:
        raise PolicyError(where, f"version {lock.version}", "this is version 1")
    seen: set[str] = set()
    for image in lock.images:
        if not DIGEST.fullmatch(image.digest):
            raise PolicyError(where, f"{image.name}: {image.digest!r} is no digest", "write sha256: and 64 hex digits")
        if image.name in seen:
            raise PolicyError(where, f"{image.name} stands twice", "keep one")
        if "@" in image.reference:
            raise PolicyError(where, f"{image.name}: the reference holds a digest", "it has a field of its own")
        seen.add(image.name)
    return lock


def dump_lock(lock: Lock) -> bytes:
    """The lock as YAML, images and packages sorted; ``parse_lock`` reads it back."""
    out = [f"version: {lock.version}", "images:" if lock.images else "images: []"]
    for image in sorted(lock.images, key=lambda image: image.name):
        out += [f"  - name: {_quoted(image.name)}", f"    reference: {_quoted(image.reference)}"]
        out += [f"    digest: {image.digest}", f"    platform: {_quoted(image.platform)}"]
        out.append("    packages:" if image.packages else "    packages: {}")
        out += [f"      {_quoted(name)}: {_quoted(version)}" for name, version in sorted(image.packages.items())]
    return ("\n".join(out) + "\n").encode()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def froms(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, image, what is wrong with it) of every FROM of a Dockerfile that names an image."""
    stages: set[str] = set()
    joined = re.sub(r"\\\n", "  ", text)
    for number, line in enumerate(joined.splitlines(), 1):
        match = re.match(r"\s*(?:FROM|COPY\s+.*?--from=)\s*(?:--\S+\s+)*(\S+)(?:\s+AS\s+(\S+))?", line, re.IGNORECASE)
        if match is None:
            continue
        image = match[1]
        if image != "scratch" and image.lower() not in stages and not image.isdigit():
            yield number, image, f"{image} takes its name from an argument" if "$" in image else wrong(image)
        if match[2]:
            stages.add(match[2].lower())


class Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(filter(None, (self.os, self.architecture, self.variant)))


class Descriptor(msgspec.Struct, frozen=True):
    """Where a blob is named, with its digest and size (OCI image specification)."""

    mediaType: str
    digest: str
    size: int
    platform: Platform | None = None
    annotations: dict[str, str] = {}


class Index(msgspec.Struct, frozen=True):
    manifests: tuple[Descriptor, ...]
    mediaType: str = ""


class Manifest(msgspec.Struct, frozen=True):
    config: Descriptor
    layers: tuple[Descriptor, ...]
    mediaType: str = ""


class RootFS(msgspec.Struct, frozen=True):
    diff_ids: tuple[str, ...]


class Config(msgspec.Struct, frozen=True):
    rootfs: RootFS
    architecture: str = ""
    os: str = ""
    variant: str = ""


def decode(data: bytes, type_: Any, where: str) -> Any:
    """A JSON blob of a layout. Unknown fields are other people's; a wrong shape is corrupt."""
    try:
        found = msgspec.json.decode(data, type=type_)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise EvidenceCorrupt(where, f"is no {type_.__name__.lower()} of an image: {error}") from None
    for one in (*(getattr(found, "manifests", None) or ()), *getattr(found, "layers", ()), getattr(found, "config", None)):
        if isinstance(one, Descriptor) and (not DIGEST.fullmatch(one.digest) or not 0 <= one.size < 1 << 40):
            raise EvidenceCorrupt(where, f"names a blob by {one.digest[:80]!r}, size {one.size}")
    return found


def choose(index: Index, platform: str, where: str) -> Descriptor:
    """The one manifest for ``platform``. Raises EvidenceCorrupt for none, or for two."""
    fits = [one for one in index.manifests if one.platform is None or str(one.platform).startswith(platform)]
    exact = [one for one in fits if one.platform is not None] or fits
    exact = [one for one in exact if one.mediaType in MANIFESTS]
    if len(exact) != 1:
        raise EvidenceCorrupt(where, f"holds {len(exact)} images for {platform}", "name the digest of one image's manifest")
    return exact[0]


class Hostile(EvidenceCorrupt):
    """A layer that an honest builder would not write: it is refused whole."""


def member_path(name: str) -> tuple[str, ...]:
    """The parts of a member's name below the root; none for the root itself. Raises ValueError with what is wrong."""
    if "\0" in name or len(name) > 4096:
        raise ValueError("a name that no file system takes")
    if name.startswith("/"):
        raise ValueError("an absolute name")
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if ".." in parts:
        raise ValueError("a name with ..")
    return parts


def link_leaves(parts: tuple[str, ...], target: str) -> bool:
    """Whether a relative symlink at ``parts`` climbs above the root, read as text. An absolute one starts at the root."""
    depth = 0 if target.startswith("/") else len(parts) - 1
    for part in target.split("/"):
        if part == "..":
            depth -= 1
            if depth < 0:
                return True
        elif part not in ("", "."):
            depth += 1
    return False
