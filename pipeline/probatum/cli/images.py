"""``probatum images``: the pinned images, their lock, and the archives that hold them."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..core.images import Lock

LOCK = "containers/images.lock.yaml"


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("images", help="lock, check and list the pinned images and their archives")
    steps = parser.add_subparsers(metavar="STEP", required=True)

    lock = steps.add_parser("lock", help="write or renew a row of the lock from an archive; prints name@sha256:…")
    _common(lock)
    lock.add_argument("--name", required=True, metavar="NAME", help="what the row is called")
    lock.add_argument("--reference", required=True, metavar="REF", help="name and tag, where the image comes from")
    lock.add_argument("--archive", type=Path, required=True, metavar="PATH", help="an OCI archive or layout of it")
    lock.add_argument("--digest", default="", metavar="DIGEST", help="which of its images, where it holds several")
    lock.add_argument("--package", action="append", default=[], metavar="NAME", help="a package that matters (python, pytest)")
    lock.set_defaults(run=_lock)

    check = steps.add_parser("check", help="lock, Dockerfiles, policy and archives agree; exit 0 or 1")
    _common(check)
    check.set_defaults(run=_check)

    show = steps.add_parser("ls", help="list the lock's images, and where their archives are")
    _common(show)
    show.set_defaults(run=_ls)


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repo", type=Path, default=Path("."), metavar="DIR", help="the work tree (this folder)")
    parser.add_argument("--images", type=Path, metavar="DIR", help="where archives are ($PROBATUM_IMAGES, else the cache)")


def _folders(args: argparse.Namespace) -> tuple[Path, ...]:
    from ..host import images
    from ..host.git import cache_folder

    if args.images is not None:
        os.environ[images.VARIABLE] = str(args.images)
    return images.folders(cache_folder() / "images")


def _read(args: argparse.Namespace) -> Lock:
    from ..core.images import Lock, parse_lock
    from ..host.workfile import read

    data = read(args.repo, LOCK)
    return Lock(version=1) if data is None else parse_lock(data)


def _lock(args: argparse.Namespace) -> int:
    """Exit 0 and the image's name by digest on stdout."""
    import tempfile

    from ..core.images import DIGEST, Image, Lock, dump_lock
    from ..errors import Exit, UsageError
    from ..host import env_image, images, oci
    from ..host.workfile import write

    lock = _read(args)
    layout = oci.source(args.archive)
    tops = sorted({one.digest for one in oci.tops(layout)})
    if not args.digest and len(tops) != 1:
        raise UsageError(str(args.archive), f"names {len(tops)} images", f"give --digest, one of: {', '.join(tops)}")
    digest = args.digest or tops[0]
    if not DIGEST.fullmatch(digest):
        raise UsageError("--digest", f"{digest!r} is no digest", "give sha256: and 64 hex digits")
    found = oci.find(layout, digest)
    with tempfile.TemporaryDirectory(prefix="probatum-") as work:
        root = Path(work) / "root"
        images.unpack(images.Held(args.archive, layout, found), root, Path(work))
        known = env_image.versions(root)
    missing = [name for name in args.package if name not in known]
    if missing:
        raise UsageError("--package", f"{missing[0]} is not in the image", f"it has: {', '.join(sorted(known))[:300]}")
    wanted = args.package or [name for name in ("python", "python3", "pytest", "libc6") if name in known]
    image = Image(
        name=args.name,
        reference=args.reference,
        digest=digest,
        platform=f"{found.config.os}/{found.config.architecture}",
        packages={name: known[name] for name in wanted},
    )
    rest = tuple(other for other in lock.images if other.name != args.name)
    write(args.repo, LOCK, dump_lock(Lock(version=1, images=(*rest, image))), replace=True)
    print(image.pinned)
    return Exit.PASS


def _check(args: argparse.Namespace) -> int:
    """Exit 0, or 1 with one line a problem."""
    from ..core.images import froms
    from ..errors import EvidenceCorrupt, Exit
    from ..host import images, oci
    from ..report.terminal import plain

    lock = _read(args)
    digests = {image.digest for image in lock.images}
    problems = []
    folder = args.repo / "containers"
    for path in sorted(folder.rglob("*Dockerfile*")) if folder.is_dir() else ():
        for line, name, why in froms(path.read_text("utf-8", "replace")):
            where = f"{path.relative_to(args.repo)}:{line}"
            if why:
                problems.append(f"{where}: {why}")
            elif name.rpartition("@")[2] not in digests:
                problems.append(f"{where}: {name} is not in {LOCK}")
    policy = _policy(args.repo)
    if policy and policy.rpartition("@")[2] not in digests:
        problems.append(f"ci/gate.yaml: environment.image {policy} is not in {LOCK}")
    seen = 0
    for image in lock.images:
        try:
            held = images.held(image.digest, _folders(args))
            if held is None:
                continue
            seen += 1
            has = f"{held.found.config.os}/{held.found.config.architecture}"
            if has != image.platform:
                problems.append(f"{image.name}: the archive is for {has}, the lock says {image.platform}")
            oci.verify(oci.source(held.path), held.found)
        except EvidenceCorrupt as error:
            problems.append(f"{image.name}: {error.line()}")
    for problem in problems:
        print(plain(problem))
    if not problems:
        print(f"{len(lock.images)} images are pinned, {seen} of their archives are here and hold")
    return Exit.BLOCK if problems else Exit.PASS


def _policy(repo: Path) -> str:
    from ..core.policy import FILE
    from ..host.drive import load
    from ..host.workfile import read

    data = read(repo, FILE)
    return load(data).environment.image if data is not None else ""


def _ls(args: argparse.Namespace) -> int:
    """Exit 0."""
    from ..errors import EvidenceCorrupt, Exit
    from ..host import images
    from ..report.terminal import plain

    for image in _read(args).images:
        try:
            held = images.held(image.digest, _folders(args))
            where = held.path.name if held is not None else "not here"
        except EvidenceCorrupt as error:
            where = f"damaged: {error.what}"
        packages = " ".join(f"{name} {version}" for name, version in image.packages.items())
        print(plain(f"{image.name:<16} {image.pinned}  {image.platform}  {packages}  archive: {where}"))
    return Exit.PASS
