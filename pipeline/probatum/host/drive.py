"""Puts a gate's parts together on this host: repository, environment, engine, event loop, signals."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path

import anyio

from .. import checks
from .. import gate as steps
from ..core import canonical
from ..core.check import Note, Patch
from ..core.policy import BUILT_IN, Policy
from ..core.records import Decision, PatchBody
from ..core.stage import Engine, Place, Runtime
from ..core.suite import probe_tree
from ..errors import EngineUnavailable, UsageError
from . import env
from .git import cache_folder
from .interrupt import like_interrupt
from .observe import Base, look, observe
from .tree import Trees
from .workspace import Workspace

DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def hosted(repo: Path) -> Iterator[tuple[Workspace, Path]]:
    """The repository's workspace and an empty work folder; on leaving, nothing of either is left.

    SIGTERM ends it as a ^C does. A disk that is full or broken is an EngineUnavailable.
    """
    like_interrupt()
    work = Path(tempfile.mkdtemp(prefix="probatum-"))
    try:
        with Workspace(repo, cache_folder()) as workspace:
            yield workspace, work
    except OSError as error:
        if error.errno in DISK:
            where = str(error.filename or work)
            raise EngineUnavailable(where, error.strerror or "disk error", "make room and run it again") from None
        raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def observed(workspace: Workspace, base: Base, built: env.Built) -> tuple[Patch, PatchBody]:
    """The patch as the checks plan from it, on the environment ``built``, with a fresh seed and this moment's clock."""
    return observe(
        workspace,
        base,
        environment=built.runtime,
        probe=probe_tree(probe_files()),
        generated=built.generated,
        installed=built.names,
        inputs=built.inputs,
        self_import=built.self_import,
        seed=secrets.token_hex(16),
        now=int(time.time()),
    )


def policy_digest(base: Base) -> str:
    """What every record of a gate names as its policy: where it stands, and what it says."""
    return canonical.digest_of([base.source, steps.plain(base.policy)])


def gate(request: steps.Request, progress: steps.Progress) -> Decision:
    """One gate from request to decision. Raises ProbatumError where it could not judge, KeyboardInterrupt on ^C or SIGTERM."""
    with hosted(request.repo) as (workspace, work):
        base = look(workspace, request.base or None, request.head or None, load)
        if base.source == BUILT_IN:
            progress.note(f"no ci/gate.yaml at base: the {BUILT_IN} applies")
        cache = cache_folder()
        built = env.environment(base.policy, base.base, workspace.objects.read, cache)
        for line in built.notes:
            progress.note(line)
        patch, body = observed(workspace, base, built)
        note = Note(kind="patch", part="", body=body, input_digest=canonical.digest_of([base.base.digest, base.merged.digest]))
        seen = steps.Seen(patch=patch, note=note, policy_source=base.source, policy_digest=policy_digest(base))
        runtime, place = env.gate_place()
        trees = Trees(workspace.objects.read, work / "trees", workspace.objects.many)
        places = env.places((runtime, place), (built.runtime, built.place))
        engine = choose_engine(request.engine, base.policy, trees, places, cache)
        return anyio.run(steps.run, request, seen, engine, runtime, progress)


def load(data: bytes) -> Policy:
    """Base's ``ci/gate.yaml``, each check's part read by the check's own Options."""
    from ..core.yaml12 import load_policy

    return load_policy(data, {name: checks.load(name).Options for name in checks.names()})


def choose_engine(
    asked: str, policy: Policy, trees: Trees, places: Callable[[Runtime], Place], cache: Path, capacity: int = 0
) -> Engine:
    """``--engine``, else policy's, else Dagger where a Dagger session is in the environment, else bubblewrap.

    Raises UsageError when policy demands another or nobody knows it. ``capacity``: how many stages run at once (0: the
    engine's own).
    """
    demanded = "" if policy.engine == "any" else policy.engine
    if asked and demanded and asked != demanded:
        raise UsageError(f"--engine {asked}", f"base's policy demands {demanded}", "leave --engine out")
    name = asked or demanded or ("dagger" if os.environ.get("DAGGER_SESSION_PORT") else "bubblewrap")
    if name == "bubblewrap":
        from ..engines.bubblewrap import Bubblewrap

        return Bubblewrap(trees=trees, places=places, cache=cache, capacity=capacity)
    if name == "dagger":
        from ..engines.dagger import Dagger

        return Dagger(trees=trees, places=places, cache=cache, capacity=capacity, image=policy.environment.image)
    raise UsageError(f"engine {name}", "is not known", "use bubblewrap or dagger")


def probe_files() -> Mapping[str, bytes]:
    """The probe's sources, by name."""
    folder = resources.files("probatum.probe")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name.endswith(".py")}
