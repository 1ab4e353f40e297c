"""An OCI layout, as a folder or an archive: every blob is verified before it is used."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import stat
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

import msgspec

from ..core.canonical import digest
from ..core.images import DIGEST, INDEXES, LAYERS, MANIFESTS, PLATFORM, Config, Descriptor, Index, Manifest, choose, decode
from ..errors import EvidenceCorrupt

SMALL = 4 << 20
"""Bytes of an index, a manifest or a configuration."""

LAYER, CHUNK = 8 << 30, 1 << 20
"""Bytes of one layer, uncompressed."""


class Source(Protocol):
    """Where blobs come from. ``open`` raises KeyError for one that is not there."""

    where: str

    def has(self, name: str) -> bool: ...
    def open(self, name: str) -> contextlib.AbstractContextManager[tuple[IO[bytes], int]]: ...


class Folder:
    """A layout folder; no link in it is followed."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, path.name

    def has(self, name: str) -> bool:
        """Whether the file is there."""
        return (self.path / name).is_file()

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """(file, size)."""
        try:
            handle = os.open(self.path / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            raise KeyError(name) from None
        with open(handle, "rb") as file:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise KeyError(name)
            yield file, state.st_size


class Archive:
    """A layout in an uncompressed tar. A name twice, or anything but files and folders under a layout's names, is refused."""

    def __init__(self, path: Path) -> None:
        self.path, self.where = path, path.name
        self._at: dict[str, tuple[int, int]] = {}
        try:
            with tarfile.open(path, "r:") as archive:
                for member in archive:
                    name = member.name.removeprefix("./")
                    if not member.isreg():
                        continue
                    if name in self._at:
                        raise EvidenceCorrupt(self.where, f"holds {name[:100]!r} twice")
                    self._at[name] = (member.offset_data, member.size)
        except (tarfile.TarError, OSError, ValueError) as error:
            raise EvidenceCorrupt(
                self.where, f"is no OCI archive: {error}", "make it with: skopeo copy … oci-archive:FILE"
            ) from None

    def has(self, name: str) -> bool:
        """Whether a file of that name is in it."""
        return name in self._at

    @contextlib.contextmanager
    def open(self, name: str) -> Iterator[tuple[IO[bytes], int]]:
        """(file, size)."""
        offset, size = self._at[name]
        with open(self.path, "rb") as file:
            file.seek(offset)
            yield file, size


def source(path: Path) -> Source:
    """The layout at ``path``. Raises EvidenceCorrupt when it is none."""
    found: Source = Folder(path) if path.is_dir() else Archive(path)
    if not found.has("oci-layout") or not found.has("index.json"):
        raise EvidenceCorrupt(
            path.name, "is no OCI layout: no oci-layout or no index.json", "skopeo copy … oci:DIR or oci-archive:FILE"
        )
    return found


def blob_name(name: str) -> str:
    """Where a layout keeps a blob."""
    return f"blobs/sha256/{name.removeprefix('sha256:')}"


def small(layout: Source, name: str, size: int = -1) -> bytes:
    """A verified blob that is JSON. Raises EvidenceCorrupt for a missing, too large or wrong one."""
    try:
        with layout.open(blob_name(name)) as (file, found):
            if found > SMALL or size not in (-1, found):
                raise EvidenceCorrupt(layout.where, f"{name[:19]} is {found} bytes, {size} announced, {SMALL} the most")
            data = file.read(found)
    except KeyError:
        raise EvidenceCorrupt(layout.where, f"has no blob {name[:19]}", "copy the image again, with all its blobs") from None
    if digest(data) != name:
        raise EvidenceCorrupt(layout.where, f"the blob {name[:19]} has another digest: {digest(data)[:19]}", "copy it again")
    return data


class Found(msgspec.Struct, frozen=True):
    """An image in a layout, its small blobs verified. ``digest``: the manifest's."""

    digest: str
    manifest: Manifest
    config: Config


def find(layout: Source, name: str, platform: str = PLATFORM) -> Found:
    """The image that the digest ``name`` means: a manifest's, or an index's with one manifest for ``platform``."""
    data = small(layout, name)
    kind = decode(data, Kind, layout.where)
    if kind.mediaType in INDEXES or (not kind.mediaType and kind.manifests is not None):
        chosen = choose(decode(data, Index, layout.where), platform, layout.where)
        name, data = chosen.digest, small(layout, chosen.digest, chosen.size)
        kind = decode(data, Kind, layout.where)
    if kind.mediaType and kind.mediaType not in MANIFESTS:
        raise EvidenceCorrupt(layout.where, f"{name[:19]} is a {kind.mediaType!r}, no image", "name an image's digest")
    manifest: Manifest = decode(data, Manifest, layout.where)
    config: Config = decode(small(layout, manifest.config.digest, manifest.config.size), Config, layout.where)
    has = f"{config.os}/{config.architecture}"
    if has != platform:
        raise EvidenceCorrupt(layout.where, f"{name[:19]} is for {has}, this needs {platform}")
    if len(manifest.layers) != len(config.rootfs.diff_ids):
        raise EvidenceCorrupt(layout.where, f"{len(manifest.layers)} layers, {len(config.rootfs.diff_ids)} announced")
    return Found(name, manifest, config)


class Kind(msgspec.Struct, frozen=True):
    """What a blob says that it is."""

    mediaType: str = ""
    manifests: tuple[object, ...] | None = None


def tops(layout: Source) -> tuple[Descriptor, ...]:
    """What index.json names. Its digest is nobody's promise: only digests that are asked for count."""
    with layout.open("index.json") as (file, size):
        if size > SMALL:
            raise EvidenceCorrupt(layout.where, "index.json is too large")
        index: Index = decode(file.read(size), Index, layout.where)
    return index.manifests


def layer(layout: Source, one: Descriptor, diff_id: str, into: Path, most: int = LAYER) -> None:
    """The uncompressed tar of a layer in ``into``: both digests verified, ``most`` bytes at most."""
    kind = LAYERS.get(one.mediaType)
    if kind is None:
        raise EvidenceCorrupt(
            layout.where, f"a layer of the kind {one.mediaType[:80]!r}", "recompress it with gzip: skopeo copy"
        )
    if not DIGEST.fullmatch(diff_id):
        raise EvidenceCorrupt(layout.where, f"{diff_id[:80]!r} is no digest")
    packed, plain, written = hashlib.sha256(), hashlib.sha256(), 0
    try:
        with layout.open(blob_name(one.digest)) as (file, size), open(into, "xb") as out:
            if size != one.size:
                raise EvidenceCorrupt(layout.where, f"layer {one.digest[:19]} is {size} bytes, {one.size} announced")
            counted = _Counted(file, size, packed)
            reader: IO[bytes] = gzip.GzipFile(fileobj=counted) if kind == "gzip" else counted  # type: ignore[call-overload,assignment]
            while part := reader.read(CHUNK):
                written += len(part)
                if written > most:
                    raise EvidenceCorrupt(layout.where, f"layer {one.digest[:19]} is over {most} bytes when it is unpacked")
                plain.update(part)
                out.write(part)
            while counted.read(CHUNK):
                pass
    except KeyError:
        raise EvidenceCorrupt(
            layout.where, f"has no layer {one.digest[:19]}", "copy the image again, with all its blobs"
        ) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise EvidenceCorrupt(layout.where, f"layer {one.digest[:19]} cannot be unpacked: {error}", "copy it again") from None
    for what, found, wanted in (("blob", packed, one.digest), ("content", plain, diff_id)):
        if "sha256:" + found.hexdigest() != wanted:
            raise EvidenceCorrupt(layout.where, f"layer {one.digest[:19]}: its {what} has another digest", "copy it again")


def verify(layout: Source, found: Found) -> None:
    """Every layer's bytes are what the manifest says. Raises EvidenceCorrupt."""
    for one in found.manifest.layers:
        total = hashlib.sha256()
        try:
            with layout.open(blob_name(one.digest)) as (file, size):
                counted = _Counted(file, size, total)
                while counted.read(CHUNK):
                    pass
        except KeyError:
            raise EvidenceCorrupt(layout.where, f"has no layer {one.digest[:19]}", "copy the image again") from None
        if size != one.size or "sha256:" + total.hexdigest() != one.digest:
            raise EvidenceCorrupt(layout.where, f"layer {one.digest[:19]}: its blob has another digest", "copy it again")


class _Counted:
    """A part of a file, hashed as it is read."""

    def __init__(self, file: IO[bytes], size: int, total: hashlib._Hash) -> None:
        self.file, self.left, self.total = file, size, total

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(self.left if size < 0 else min(size, self.left))
        self.left -= len(data)
        self.total.update(data)
        return data
