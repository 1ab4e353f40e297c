"""Hand-made OCI layouts: layers from (name, kind, content) rows, honest or not."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

KINDS = {
    "file": tarfile.REGTYPE,
    "dir": tarfile.DIRTYPE,
    "link": tarfile.SYMTYPE,
    "hard": tarfile.LNKTYPE,
    "char": tarfile.CHRTYPE,
    "pipe": tarfile.FIFOTYPE,
}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
Row = tuple[Any, ...]


def layer(rows: Iterable[Row]) -> bytes:
    """A tar. A row: name, kind (file, dir, link, hard, char, pipe), content or target, and a mode where wanted."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, kind, *rest in rows:
            member = tarfile.TarInfo(name)
            member.type = KINDS[kind]
            member.mtime = 1_600_000_000
            member.mode = rest[1] if len(rest) > 1 else 0o755 if kind == "dir" else 0o644
            data = b""
            if kind == "file":
                data = rest[0] if rest and isinstance(rest[0], bytes) else (rest[0] if rest else "").encode()
                member.size = len(data)
            elif kind in ("link", "hard"):
                member.linkname = rest[0]
            archive.addfile(member, io.BytesIO(data))
    return out.getvalue()


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def blob(layout: Path, data: bytes) -> str:
    """Its digest; the blob is in the layout."""
    place = layout / "blobs/sha256"
    place.mkdir(parents=True, exist_ok=True)
    (place / digest(data)[7:]).write_bytes(data)
    return digest(data)


def image(layout: Path, layers: Iterable[bytes], *, packed: bool = True, os_: str = "linux", diff_ids: Any = None) -> str:
    """The digest of a new image in ``layout``; index.json names it too."""
    rows, ids = [], []
    for plain in layers:
        data = gzip.compress(plain, 1, mtime=0) if packed else plain
        kind = "application/vnd.oci.image.layer.v1.tar" + ("+gzip" if packed else "")
        rows.append({"mediaType": kind, "digest": blob(layout, data), "size": len(data)})
        ids.append(digest(plain))
    config = {"architecture": "amd64", "os": os_, "rootfs": {"type": "layers", "diff_ids": diff_ids or ids}, "config": {}}
    raw = json.dumps(config).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": blob(layout, raw), "size": len(raw)},
        "layers": rows,
    }
    raw = json.dumps(manifest).encode()
    name = blob(layout, raw)
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    index = {"schemaVersion": 2, "manifests": [{"mediaType": MANIFEST, "digest": name, "size": len(raw)}]}
    (layout / "index.json").write_text(json.dumps(index))
    return name


def archive(layout: Path, into: Path) -> Path:
    """The layout as an OCI archive."""
    with tarfile.open(into, "w") as out:
        for path in sorted(layout.rglob("*")):
            out.add(path, str(path.relative_to(layout)), recursive=False)
    return into


def from_packages(work: Path) -> tuple[bytes, str]:
    """(a layer with Python and pytest from distribution packages, "") or (nothing, why there is none)."""
    if shutil.which("mmdebstrap") is None:
        return b"", "no mmdebstrap here"
    made = work / "packages.tar"
    wanted = "--include=python3-pytest,libc6,libffi8,zlib1g,libssl3"
    hooks = "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr"
    command = ["mmdebstrap", "--quiet", "--variant=extract", wanted, hooks, "bookworm", str(made)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return b"", "mmdebstrap took over 300 s"
    if done.returncode:
        return b"", f"mmdebstrap: {(done.stderr.strip().splitlines() or ['failed'])[-1][:200]}"
    out = io.BytesIO()
    with tarfile.open(made) as source, tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in source:
            if not member.name.startswith(("./dev/", "./usr/share/doc/", "./usr/share/locale/")):
                target.addfile(member, source.extractfile(member) if member.isreg() else None)
    made.unlink()
    return out.getvalue(), ""


def from_this_machine(work: Path) -> tuple[bytes, str]:
    """(a layer with this machine's /usr/bin/python3 and the tests' own pytest, "") or (nothing, why there is none)."""
    real = Path("/usr/bin/python3").resolve()
    if not re.fullmatch(r"/usr/bin/python3\.[0-9]+", str(real)) or not (library := Path("/usr/lib") / real.name).is_dir():
        return b"", "no mmdebstrap, and no python3 in /usr/bin"
    rows: dict[str, Row] = {name: (name, "link", f"usr/{name}") for name in ("bin", "lib", "lib64")}
    rows["usr/bin/python3"] = ("usr/bin/python3", "link", real.name)

    def add(path: Path, name: str) -> None:
        rows.setdefault(name, (name, "file", path.read_bytes(), 0o755 if os.access(path, os.X_OK) else 0o644))

    own = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    objects = [real, own, *library.glob("lib-dynload/*.so"), *own.parent.parent.glob("lib/python3*/lib-dynload/*.so")]
    for line in subprocess.run(["ldd", *map(str, objects)], capture_output=True, text=True).stdout.splitlines():
        match = re.match(r"\s*(?:\S+ => )?(/\S+) \(0x", line)
        if match and match[1].startswith(("/lib", "/usr/lib")):
            add(Path(match[1]), "usr/" + match[1].removeprefix("/usr").lstrip("/"))
    add(real, f"usr/bin/{real.name}")
    for path in library.rglob("*"):
        if path.is_file() and not path.is_symlink() and "__pycache__" not in path.parts and "test" not in path.parts:
            add(path, str(path).lstrip("/"))
    site = Path(pytest.__file__).parent.parent
    add(site / "py.py", "usr/lib/python3/dist-packages/py.py")
    for top in (
        "pytest",
        "_pytest",
        "pluggy",
        "iniconfig",
        "packaging",
        "pygments",
        "pytest-*.dist-info",
        "pluggy-*.dist-info",
    ):
        for path in (found for folder in site.glob(top) for found in folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                add(path, f"usr/lib/python3/dist-packages/{path.relative_to(site)}")
    return layer(rows.values()), ""
