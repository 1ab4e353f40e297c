"""Pinned images on this host: archives and layouts found by digest, verified, and unpacked once into the cache."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ..core.canonical import digest_of
from ..core.images import PLATFORM, Hostile
from ..errors import EngineUnavailable, EvidenceCorrupt
from . import env_entry, oci
from .oci_layer import DISK, LOADER, SYSTEM, Budget, Layer

VARIABLE = "PROBATUM_IMAGES"
FORMAT = 1
"""Part of every key: raised when what an entry holds changes."""


class Held(msgspec.Struct, frozen=True):
    """An image that lies on this host: the layout's path and the manifest."""

    path: Path
    layout: object
    found: oci.Found


def folders(default: Path) -> tuple[Path, ...]:
    """Where archives are looked for: the variable's folder (``--images`` sets it), else ``default``."""
    told = os.environ.get(VARIABLE)
    return (Path(told).absolute(),) if told else (default,)


def layouts(folder: Path) -> Iterator[tuple[Path, oci.Source]]:
    """Every layout in ``folder``, as folders and as archives; other files are passed over."""
    if (folder / "oci-layout").is_file():
        yield folder, oci.source(folder)
        return
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.is_dir() or path.suffix in (".tar", ".oci"):
            try:
                yield path, oci.source(path)
            except EvidenceCorrupt:
                continue


def held(digest: str, where: tuple[Path, ...], archive: str = "") -> Held | None:
    """The image with this digest in one of ``where``, its manifest verified; ``archive`` names the one file to look into.

    Raises EvidenceCorrupt where a layout has the blob and it does not hold.
    """
    for folder in where:
        if archive:
            path = folder / archive
            candidates = iter([(path, oci.source(path))] if path.exists() else [])
        else:
            candidates = layouts(folder)
        for path, layout in candidates:
            if layout.has(oci.blob_name(digest)):
                return Held(path, layout, oci.find(layout, digest, PLATFORM))
    return None


def rootfs(digest: str, where: tuple[Path, ...], cache: Path, archive: str, info: Callable[[Path], bytes]) -> Path:
    """The verified entry of the image's root folder (``env`` in it): unpacked once, looked at before every use.

    ``info`` describes a root. Raises EngineUnavailable where the image is not on this host, EvidenceCorrupt where its bytes
    are not what their digests say, or hostile.
    """
    image = held(digest, where, archive)
    if image is None:
        names = ", ".join(str(folder / archive if archive else folder) for folder in where)
        remedy = f"put an OCI archive or layout of it there (skopeo copy … oci-archive:FILE), or name the folder in {VARIABLE}"
        raise EngineUnavailable(digest[:19], f"no image with this digest in {names}", remedy)

    def build(folder: Path) -> bytes:
        unpack(image, folder / "env", folder)
        return info(folder / "env")

    key = digest_of({"format": FORMAT, "manifest": image.found.digest}).removeprefix("sha256:")
    return env_entry.entry(cache / "rootfs", key, build, modes=True)


def unpack(image: Held, root: Path, work: Path, budget: Budget | None = None) -> None:
    """Lays every layer on the empty folder ``root``, each blob verified first. ``work`` holds one layer at a time."""
    budget = budget or Budget()
    root.mkdir(0o755)
    plain = work / "layer"
    layout: oci.Source = image.layout  # type: ignore[assignment]
    try:
        for one, diff_id in zip(image.found.manifest.layers, image.found.config.rootfs.diff_ids, strict=True):
            oci.layer(layout, one, diff_id, plain)
            with open(plain, "rb") as file:
                Layer(root, f"{image.path.name} {one.digest[:19]}", budget).apply(file)
            plain.unlink()
    except OSError as error:
        if error.errno not in DISK:
            raise
        raise EngineUnavailable(str(work), error.strerror or "disk error", "make room and run it again") from None
    _top(root, image.path.name)


def _top(root: Path, where: str) -> None:
    """What the engine mounts from the root is the root's own: no link there leads anywhere else."""
    if (root / "etc").is_symlink() or (root / "usr").is_symlink():
        raise Hostile(where, "its /etc or /usr is a link")
    for name in LOADER:
        if (root / name).is_symlink():
            raise Hostile(where, f"/{name} is a link")
    for name in SYSTEM:
        path = root / name
        if path.is_symlink() and os.readlink(path).lstrip("/").split("/")[0] != "usr":
            raise Hostile(where, f"/{name} is a link to {os.readlink(path)[:100]!r}")
