"""An environment that is a pinned image: its own interpreter and packages, nothing installed, nothing executed to look."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from ..core.policy import Environment
from ..core.stage import Place, Runtime, Tree
from ..errors import EngineUnavailable, PolicyError
from . import images
from .env_entry import Info, read_info
from .env_project import read as read_project
from .env_project import version_files
from .env_sources import Files

PYTHONS = ("usr/local/bin", "usr/bin")
_REMEDY = "use an image that has one, or name another environment in policy"


class Image(msgspec.Struct, frozen=True):
    """What ``env.environment`` needs of an image."""

    runtime: Runtime
    place: Place
    info: Info
    generated: Tree


def environment(policy: Environment, base: Tree, read: Callable[[str], bytes], cache: Path, archives: Path) -> Image:
    """The image's root, unpacked once. Raises PolicyError where it cannot run tests, EngineUnavailable where it is not here."""
    digest = policy.image.rpartition("@")[2]
    python = policy.python
    place = images.rootfs(
        digest, images.folders(archives), cache, policy.archive, lambda root: msgspec.json.encode(look(root, ""))
    )
    root = place / "env"
    info = look(root, python) if python else read_info(place)
    if not info.pytest:
        raise PolicyError("environment.image", f"{policy.image[:60]} holds no pytest for Python {info.python}", _REMEDY)
    own = os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
    if own.startswith("/usr/"):
        what = f"the gate's own interpreter {own} lies in /usr, which the image replaces"
        raise EngineUnavailable("environment.image", what, "install probatum on a Python outside /usr (uv python install)")
    project = read_project(Files(base, read))
    name = interpreter(root, python)
    inside = f"/{name}"
    return Image(
        runtime=Runtime("image", policy.image),
        place=Place(python=inside, rootfs=str(root), path=os.path.dirname(inside) if "local" in inside else ""),
        info=info,
        generated=version_files(project) if project.name else Tree({}),
    )


def interpreter(root: Path, wanted: str) -> str:
    """The path below ``root`` of its ``pythonX.Y``, or of its python3. Raises PolicyError where there is none."""
    minor = ".".join(wanted.split(".")[:2])
    for folder in PYTHONS:
        name = f"{folder}/python{minor or '3'}"
        if os.path.lexists(root / name):
            return name
    raise PolicyError("environment.image", f"the image holds no python{minor or '3'} in /usr/bin or /usr/local/bin", _REMEDY)


def look(root: Path, wanted: str) -> Info:
    """What can be imported in ``root``: read from its folders, nothing of it is executed."""
    name = interpreter(root, wanted)
    real = name
    for _ in range(8):
        if not (root / real).is_symlink():
            break
        target = os.readlink(root / real)
        real = target.lstrip("/") if target.startswith("/") else os.path.normpath(f"{os.path.dirname(real)}/{target}")
    match = re.search(r"python(3\.[0-9]+)", real)
    if match is None:
        raise PolicyError("environment.image", f"/{name} does not say which Python it is", "name it: environment.python")
    minor = match[1]
    packages: dict[str, str] = {}
    names: set[str] = set()
    prefix = "usr/local" if name.startswith("usr/local") else "usr"
    site = ""
    for folder in _sites(prefix, minor):
        if not (root / folder).is_dir() or (root / folder).is_symlink():
            continue
        site = site or folder
        for entry in os.scandir(root / folder):
            stem, _, kind = entry.name.rpartition(".")
            if kind in ("dist-info", "egg-info") and "-" in stem:
                package, version = stem.split("-")[:2]
                packages.setdefault(re.sub(r"[-_.]+", "-", package).lower(), version)
            elif (top := entry.name.split(".")[0]).isidentifier():
                names.add(top)
    library = root / prefix / "lib" / f"python{minor}"
    names |= {found.name.split(".")[0] for found in os.scandir(library)} if library.is_dir() else set()
    return Info(
        python=minor, pytest=packages.get("pytest", ""), packages=dict(sorted(packages.items())),
        names=tuple(sorted(name for name in names if name.isidentifier())), site=site,
    )  # fmt: skip


def _sites(prefix: str, minor: str) -> Iterator[str]:
    """Site folders, in the order of sys.path."""
    yield f"{prefix}/lib/python{minor}/site-packages"
    if prefix == "usr":
        yield f"usr/local/lib/python{minor}/dist-packages"
        yield "usr/lib/python3/dist-packages"


def versions(root: Path) -> dict[str, str]:
    """Package to version: what dpkg's status lists, and what the default interpreter could import."""
    found: dict[str, str] = {}
    status = root / "var/lib/dpkg/status"
    if status.is_file() and not status.is_symlink():
        name = ""
        for line in status.read_text("utf-8", "replace").splitlines():
            if line.startswith("Package: "):
                name = line[9:].strip()
            elif line.startswith("Version: ") and name:
                found[name] = line[9:].strip()
    try:
        info = look(root, "")
    except PolicyError:
        return found
    return {**found, **info.packages, "python": info.python}
