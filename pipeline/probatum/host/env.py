"""The environment lane: what candidate code runs on, built from base's files, and where runtimes live on this host."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from ..core.canonical import digest, digest_of
from ..core.policy import Policy
from ..core.stage import Place, Runtime, Tree
from . import env_entry, env_project
from .env_entry import INSIDE, read_info
from .env_python import Python, find, find_uv, own
from .env_sources import Files, wanted

FORMAT = 1
"""Part of every key: raised when what an entry holds changes."""

GATE = "/gate"
"""Where our own code is in a trusted stage."""


class Built(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that is ready.

    ``runtime.ref`` covers interpreter, installed files and the project's metadata. ``names``: top-level modules that a new
    file of the tree would shadow (installed ones and the standard library's). ``generated``: files that a build would have
    written into the tree (version files); they belong into every scored tree. ``self_import``: modules of the gated project
    that pytest itself imports, so that an in-process run cannot judge them. ``notes``: one line each, for the report.
    ``inputs``: base's paths that decided what is installed, whatever their names: a change of one is a change of class
    environment.
    """

    runtime: Runtime
    place: Place
    names: frozenset[str]
    generated: Tree
    python: str
    pytest: str
    packages: Mapping[str, str]
    self_import: tuple[str, ...]
    notes: tuple[str, ...]
    inputs: tuple[str, ...]


def environment(policy: Policy, base: Tree, read: Callable[[str], bytes], cache: Path, archives: Path | None = None) -> Built:
    """The environment that base's policy and files call for, from the cache or built now.

    ``read`` gives a blob by object id; ``cache`` is the gate's cache folder; ``archives`` holds images (``cache/images``).
    Nothing of base is executed: what a build would
    compute (versions, entry points, version files) is read from its files. Raises PolicyError where base names what it has
    not, EngineUnavailable where the environment cannot be built here.
    """
    if policy.environment.image:
        return _image(policy, base, read, cache, archives or cache / "images")
    uv = find_uv()
    files = Files(base, read)
    python = find(policy.environment.python, uv)
    want = wanted(policy.environment, files)
    project = env_project.read(files)
    key = _key(
        {
            "python": _binary(python),
            "want": msgspec.structs.replace(want, inputs=()),
            "project": project.name,
            "with": "uv" if uv else "pip",
        }
    )
    envs = env_entry.private(cache) / "envs"

    def build(folder: Path) -> bytes:
        from .env_build import build

        return build(folder, python, want, project.name, cache / "uv", uv)

    place = env_entry.entry(envs, key, build)
    info = read_info(place)
    binds = [*python.binds, (str(place / "env"), INSIDE)]
    parts = [env_entry.content(place), python.build, python.executable]
    generated = Tree({})
    if policy.environment.metadata and project.name:
        tree = env_project.metadata(project)
        generated = env_project.version_files(project)
        inside = env_entry.entry(envs, _key({"metadata": tree.digest}), functools.partial(_write, tree))
        binds.append((str(inside / "env"), f"{INSIDE}/project"))
        parts.append(tree.digest)
    return Built(
        runtime=Runtime("environment", digest_of(parts)),
        place=Place(python=f"{INSIDE}/bin/python", binds=tuple(binds), path=f"{INSIDE}/bin"),
        names=frozenset(info.names) | frozenset(python.stdlib),
        generated=generated, python=info.python, pytest=info.pytest, packages=info.packages,
        self_import=info.project, notes=(*info.notes, *project.notes), inputs=want.inputs,
    )  # fmt: skip


def _image(policy: Policy, base: Tree, read: Callable[[str], bytes], cache: Path, archives: Path) -> Built:
    from . import env_image

    image = env_image.environment(policy.environment, base, read, cache, archives)
    info = image.info
    return Built(
        runtime=image.runtime, place=image.place, names=frozenset(info.names) | frozenset(sys.stdlib_module_names),
        generated=image.generated, python=info.python, pytest=info.pytest, packages=info.packages, self_import=(),
        notes=("the environment is the pinned image; the project's own metadata is not in it",), inputs=(),
    )  # fmt: skip


def gate_place() -> tuple[Runtime, Place]:
    """Our own interpreter with our own package and msgspec, read-only at neutral paths, and nothing else of ours."""
    python = own()
    package, parser = _folder("probatum"), _folder("msgspec")
    total = hashlib.sha256(f"{python.build}\n{python.executable}\n".encode())
    for root in (package, parser):
        for path in sorted(root.rglob("*")):
            if path.suffix in (".py", ".so", ".json", ".md", ".txt"):
                total.update(f"{path.relative_to(root.parent)}\n".encode() + hashlib.sha256(path.read_bytes()).digest())
    binds = (*python.binds, (str(package), f"{GATE}/probatum"), (str(parser), f"{GATE}/msgspec"))
    return Runtime("gate", "sha256:" + total.hexdigest()), Place(python=python.executable, binds=binds)


def gate_argv(*arguments: str) -> tuple[str, ...]:
    """The command that runs ``probatum ARGUMENTS`` in a trusted stage: isolated, no site folder, no file of the stage's."""
    start = f"import sys; sys.path.append({GATE!r}); from probatum.cli import main; raise SystemExit(main(sys.argv[1:]))"
    return ("{python}", "-I", "-B", "-S", "-c", start, *arguments)


def places(*known: tuple[Runtime, Place]) -> Callable[[Runtime], Place]:
    """What an engine asks: where a runtime lives. An unknown one is a KeyError, a bug of ours."""
    return dict(known).__getitem__


def _key(parts: object) -> str:
    return digest_of({"format": FORMAT, "parts": msgspec.to_builtins(parts)}).removeprefix("sha256:")


def _binary(python: Python) -> dict[str, object]:
    """What tells one interpreter from another that was put in its place."""
    status = os.stat(python.executable)
    return {
        "executable": python.executable, "version": python.version, "build": python.build, "abi": python.abi,
        "platform": python.platform, "size": status.st_size, "mtime_ns": status.st_mtime_ns,
    }  # fmt: skip


def _folder(package: str) -> Path:
    module = sys.modules.get(package) or __import__(package)
    assert module.__file__ is not None
    return Path(os.path.realpath(module.__file__)).parent


def _write(tree: Tree, folder: Path) -> bytes:
    root = folder / "env"
    root.mkdir()
    for path, blob in tree.files.items():
        target = root / os.fsdecode(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(blob.data or b"")
    return digest(b"").encode()
