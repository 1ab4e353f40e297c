"""One entry of the environment cache: whole or absent, verified before use.

An entry is ``envs/<key>/`` with ``env/`` (what a stage sees), ``info.json``, ``content`` and ``stamp``. It is built under
a temporary name and renamed, so a build that was killed leaves nothing that could be taken for an entry. ``content`` is
the digest of every byte in ``env/``. ``stamp`` covers names, modes, sizes and both times of change: the kernel sets ctime
whenever a file's bytes or mode change and no call sets it back, so an equal stamp means an untouched tree without reading
it again. Where the stamp differs (a cache that was copied or restored), every byte is read and compared with ``content``.
This finds damage and foreign edits; whoever can write as the gate's own user can write both files, and is not kept out by
a digest.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ..errors import EngineUnavailable

INSIDE = "/env"
"""Where the environment is in a sandbox; the project's own metadata is below it, in ``project``."""


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What an environment holds. ``packages``: name to version. ``names``: top-level modules that can be imported.

    ``project``: top-level modules of the gated project that had to stay, because pytest itself imports them.
    """

    python: str
    pytest: str
    packages: dict[str, str]
    names: tuple[str, ...]
    site: str
    project: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def private(folder: Path) -> Path:
    """``folder``, made with its parents, 0700: nobody else may name what is inside."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
    except OSError as error:
        raise EngineUnavailable(
            str(folder), f"cannot be made: {error.strerror}", "set PROBATUM_CACHE to a folder you own"
        ) from None
    return folder


def entry(envs: Path, key: str, build: Callable[[Path], bytes], *, modes: bool = False) -> Path:
    """The verified entry ``envs/key``; ``build(folder)`` fills ``folder/env`` and returns info's bytes when there is none.

    ``modes``: the files keep the modes that ``build`` gave them. A damaged entry is removed and built again. Two gates at
    once: the second waits for the first and takes its entry.
    """
    place = private(envs) / key
    if _whole(place):
        return place
    with _lock(envs / f"{key}.lock"):
        if _whole(place):
            return place
        _discard(place)
        for left in (*envs.glob(f".{key}.*"), *envs.glob(".gone.*")):
            _discard(left)
        work = envs / f".{key}.{secrets.token_hex(4)}"
        work.mkdir(mode=0o700)
        try:
            info = build(work)
            if not modes:
                _open_up(work / "env")
            content, stamp = _content(work / "env"), _stamp(work / "env")
            (work / "info.json").write_bytes(info)
            (work / "content").write_text(content)
            (work / "stamp").write_text(stamp)
            os.rename(work, place)
        except OSError as error:
            raise EngineUnavailable(
                str(envs), f"no environment can be kept: {error}", "make room or set PROBATUM_CACHE"
            ) from None
        finally:
            _discard(work)
    return place


def content(place: Path) -> str:
    """The digest of everything in a verified entry but compiled files, which hold the time of the build."""
    return (place / "content").read_text().split()[0]


def read_info(place: Path) -> Info:
    """Info of a verified entry."""
    return msgspec.json.decode((place / "info.json").read_bytes(), type=Info)


def _whole(place: Path) -> bool:
    """Is the entry there and as it was built? The stamp is compared first, the bytes only when it differs."""
    try:
        kept = (place / "content").read_text()
        if (place / "stamp").read_text() == (now := _stamp(place / "env")):
            return True
        if _content(place / "env") != kept:
            return False
        _replace(place / "stamp", now)
    except (OSError, ValueError):
        return False
    return True


def _stamp(root: Path) -> str:
    total = hashlib.sha256()
    for path, status in _walk(root):
        fact = (path, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        total.update(repr(fact).encode())
    return total.hexdigest()


def _content(root: Path) -> str:
    """Two digests: without compiled files (the same wherever the same wheels were installed), and of everything."""
    source, whole = hashlib.sha256(), hashlib.sha256()
    for path, status in _walk(root):
        full = os.path.join(os.fsencode(root), path)
        if os.path.islink(full):
            data = b"-> " + os.readlink(full)
        elif os.path.isdir(full):
            data = b"/"
        else:
            with open(full, "rb") as file:
                data = hashlib.file_digest(file, "sha256").digest()
        line = repr((path, status.st_mode, data)).encode()
        whole.update(line)
        if not path.endswith((b".pyc", b"__pycache__")):
            source.update(line)
    return f"sha256:{source.hexdigest()} {whole.hexdigest()}"


def _walk(root: Path) -> Iterator[tuple[bytes, os.stat_result]]:
    """Every file, link and folder below ``root``, in one order, with its own status."""
    start = os.fsencode(root)
    pending = [b""]
    while pending:
        folder = pending.pop()
        with os.scandir(os.path.join(start, folder)) as listing:
            found = sorted(listing, key=lambda item: item.name)
        for item in found:
            path = os.path.join(folder, item.name)
            yield path, item.stat(follow_symlinks=False)
            if item.is_dir(follow_symlinks=False):
                pending.append(path)


def _open_up(root: Path) -> None:
    """Folders 0755, files 0644 or 0755: the sandbox's uid reads them, and no umask of the caller's changes a digest."""
    os.chmod(root, 0o755)
    for path, status in list(_walk(root)):
        full = os.path.join(os.fsencode(root), path)
        if not os.path.islink(full):
            os.chmod(full, 0o755 if os.path.isdir(full) or status.st_mode & 0o100 else 0o644)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Held by one process at a time; the kernel drops it when that process dies."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _replace(path: Path, text: str) -> None:
    aside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    aside.write_text(text)
    os.replace(aside, path)


def _discard(path: Path) -> None:
    """Gone, whatever it was. A rename first, so that nobody sees half of it under its name."""
    if path.is_symlink() or path.is_file():
        path.unlink()
    elif path.name.startswith(".gone."):
        shutil.rmtree(path, ignore_errors=True)
    elif path.exists():
        aside = path.with_name(f".gone.{secrets.token_hex(4)}")
        os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)
