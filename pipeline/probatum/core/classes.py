"""Every changed path has one class; where two could claim it, the strictest counts (section 0).

The built-in rules for what runs beside the tests (harness and stricter) look at the folded name (case and Unicode
normalisation taken away): on some disks CONFTEST.PY is conftest.py. Policy's globs look at the bytes.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import cast, get_args

import msgspec

from .check import Change
from .fold import folded
from .globs import compiled, text, union
from .policy import Policy
from .pyproject import compare_pyproject, compare_setup_cfg
from .records import Class

ORDER: tuple[Class, ...] = get_args(Class)
"""Strictest first."""

RANK = {name: at for at, name in enumerate(ORDER)}

WORKFLOW = """
    .github/workflows/** .github/actions/** .gitea/workflows/** .gitea/actions/** .forgejo/workflows/** .forgejo/actions/**
    .gitlab-ci.yml .gitlab-ci.yaml .gitlab/ci/** .gitlab/** **/*.gitlab-ci.yml **/jenkinsfile **/jenkinsfile.* **/*.jenkinsfile
    .jenkins/** .circleci/** azure-pipelines*.yml azure-pipelines*.yaml .azure-pipelines/** .azuredevops/** .azure/**
    .buildkite/** bitbucket-pipelines.yml bitbucket-pipelines.yaml .travis.yml .travis/** .drone.yml .drone.yaml .drone.star
    .drone.jsonnet .woodpecker.yml .woodpecker.yaml .woodpecker/** .woodpecker* .tekton/** appveyor.yml .appveyor.yml
    .appveyor/** .semaphore/** .cirrus.yml .cirrus.yaml .cirrus.star .teamcity/** .builds/** .build.yml .zuul.yaml .zuul.yml
    zuul.yaml zuul.d/** .zuul.d/** .taskcluster.yml wercker.yml codefresh.yml .codefresh/** codeship-*.yml buildspec*.yml
    cloudbuild*.yaml cloudbuild*.yml cloudbuild.json .cloudbuild/** earthfile .concourse/** .harness/** .screwdriver.yml
    screwdriver.yaml .prow.yaml .prow/** .packit.yaml .packit.yml .kokoro/** .evergreen.yml .evergreen/**
"""
"""Files that a CI system runs."""

HARNESS = """
    ci/gate.yaml noxfile.py **/noxfile.py codeowners **/codeowners .github/*.yml .github/*.yaml .github/*.json
    dagger.json .dagger/** ci_out/**
    **/conftest.py **/conftest.pyi **/conftest.pyc **/conftest.*.so **/conftest.so **/conftest.pyd
    **/pytest.ini **/.pytest.ini **/pytest.toml **/.pytest.toml **/tox.ini **/tox.toml
    **/*.pth **/*.egg-link **/*.pyc **/*.pyo **/__pycache__/** **/__pycache__ **/pyvenv.cfg **/python*._pth
    **/sitecustomize.* **/usercustomize.* **/sitecustomize **/sitecustomize/** **/usercustomize **/usercustomize/**
    **/*.dist-info/** **/*.egg-info/** **/*.dist-info **/*.egg-info
    **/.gitattributes **/.gitmodules **/.hypothesis/** **/.pytest_cache/**
"""
"""Files that decide how tests run, who must review, and what an interpreter does before a test."""

ORACLE = """
    ci/seal.lock ci/flake_leases.json ci/retry-ledger.jsonl tests/sealed/manifest.txt **/review.lock.json
"""

ENVIRONMENT = """
    **/requirements*.txt **/requirements*.in requirements/** **/constraints*.txt **/constraints*.in **/uv.lock
    **/poetry.lock **/pdm.lock **/pipfile **/pipfile.lock **/pylock*.toml **/pixi.lock **/pixi.toml conda-lock.yml
    environment*.yml environment*.yaml setup.py hatch_build.py _build_backend/** manifest.in uv.toml poetry.toml pdm.toml
    .pip.conf pip.conf **/dockerfile **/dockerfile.* **/*.dockerfile **/containerfile **/containerfile.* **/.dockerignore
    docker-compose*.yml docker-compose*.yaml compose*.yml compose*.yaml **/images.lock.yaml containers/** .devcontainer/**
    .devcontainer.json .python-version .python-versions .tool-versions .mise.toml mise.toml .mise/** runtime.txt
    flake.nix flake.lock shell.nix default.nix .envrc meson.build meson_options.txt cmakelists.txt cargo.toml cargo.lock
    rust-toolchain rust-toolchain.toml
"""

LEFT = "ci/** .ci/**"
"""The gate's own folder: harness where nothing more exact claims it."""

BUILT_IN: tuple[tuple[Class, str], ...] = (
    ("workflow", WORKFLOW),
    ("harness", HARNESS),
    ("oracle", ORACLE),
    ("environment", ENVIRONMENT),
)

REASON: dict[Class, str] = {
    "workflow": "a CI system runs it",
    "harness": "it decides how tests run, or what runs before them",
    "oracle": "it is part of the oracle",
    "environment": "it decides what is installed or built",
}

TABLES = {"pyproject.toml": compare_pyproject, "setup.cfg": compare_setup_cfg}
"""Files whose class depends on what differs in them, anywhere."""

IMPORTABLE = re.compile(r"(?P<name>[^/.]+)(?:/__init__)?(?:\.(?:py|pyc|pyw)|(?:\.[^/]*)?\.(?:so|pyd))", re.DOTALL)


class BuiltIn(msgspec.Struct, frozen=True):
    """The built-in globs, sorted by what they look at, so that a plain path costs two look-ups and one match."""

    names: re.Pattern[str]
    folders: re.Pattern[str]
    tops: re.Pattern[str]
    first: re.Pattern[str]
    left: re.Pattern[str]


@functools.cache
def built_in() -> BuiltIn:
    """Compiled once."""
    names: dict[Class, list[str]] = {}
    folders: dict[Class, list[str]] = {}
    tops: dict[Class, list[str]] = {}
    for name, globs in BUILT_IN:
        for glob in globs.split():
            bare = glob.removeprefix("**/")
            if bare == glob:
                tops.setdefault(name, []).append(glob)
            elif bare.endswith("/**"):
                folders.setdefault(name, []).append(bare.removesuffix("/**"))
            else:
                names.setdefault(name, []).append(bare)
    firsts = [glob.partition("/")[0] for globs in tops.values() for glob in globs]
    return BuiltIn(_named(names), _named(folders), _named(tops), compiled(sorted(set(firsts))), compiled(LEFT.split()))


def _named(claims: Mapping[Class, Iterable[str]]) -> re.Pattern[str]:
    """One expression whose ``lastgroup`` is the strictest class that claims a path."""
    parts = [f"(?P<{name}>{union(claims[name])})" for name in ORDER if claims.get(name)]
    return re.compile("|".join(parts) or r"(?!)", re.DOTALL)


class Rules:
    """What decides a class, compiled once per gate."""

    def __init__(
        self,
        claims: re.Pattern[str],
        sealed: frozenset[bytes],
        sealed_folders: frozenset[bytes],
        roots: tuple[str, ...],
        shadows: frozenset[str],
    ) -> None:
        self.claims, self.sealed, self.sealed_folders, self.roots, self.shadows = claims, sealed, sealed_folders, roots, shadows
        self.folders: dict[str, Class | None] = {}

    @classmethod
    def of(cls, policy: Policy, sealed: Iterable[bytes], shadows: Iterable[str] = ()) -> Rules:
        """Rules of base's ``policy``; ``sealed`` are the oracle's paths.

        ``shadows``: module names that a patch must not bring to the top of sys.path: the standard library's and the
        environment's, without those that base has there already (``new_shadows``).
        """
        paths, sealed = policy.paths, frozenset(sealed)
        folders = frozenset(folder for path in sealed for folder in _folders(path))
        claims: dict[Class, Iterable[str]] = {
            "workflow": paths.workflow,
            "harness": paths.harness,
            "oracle": paths.sealed,
            "environment": paths.environment,
            "cassette": paths.cassette,
            "product": paths.product,
            "proposed": paths.proposed,
            "docs": paths.docs,
        }
        return cls(_named(claims), sealed, folders, roots(policy), frozenset(map(str.casefold, shadows)))


def roots(policy: Policy) -> tuple[str, ...]:
    """Prefixes of paths that are on sys.path: the top of the repository and policy's ``pythonpath``."""
    return tuple(
        sorted({"" if root in ("", ".") else root.removeprefix("./").strip("/") + "/" for root in (".", *policy.pythonpath)})
    )


def top_module(path: str, root: str) -> str:
    """The module that ``path`` brings to the top of sys.path when ``root`` is on it, "" for none."""
    if path.startswith(root):
        match = IMPORTABLE.fullmatch(path, len(root))
        if match is not None:
            return match["name"]
    return ""


def new_shadows(policy: Policy, base: Iterable[bytes], installed: Iterable[str] = ()) -> frozenset[str]:
    """Names of the standard library and of ``installed`` modules that base's own tree does not shadow already."""
    names = {name.casefold() for name in (*sys.stdlib_module_names, *installed)}
    for path in base:
        if path.count(b"/") <= 4:
            for root in roots(policy):
                names.discard(top_module(text(path), root).casefold())
    return frozenset(names)


def classify(path: bytes, rules: Rules) -> Class:
    """The class of a path, by its name alone."""
    return explain(path, rules)[0]


def explain(path: bytes, rules: Rules) -> tuple[Class, str]:
    """(class, why where it is not plain policy). The strictest class that claims the path; ``other`` when none does."""
    plain = text(path)
    fold = folded(plain)
    ours = built_in()
    folder, _, name = fold.rpartition("/")
    if folder not in rules.folders:
        rules.folders[folder] = _of_folder(folder, ours)
    best = rules.folders[folder]
    named = ours.names.fullmatch(name)
    if named is not None:
        best = _stricter(best, named.lastgroup)
    if not folder or ours.first.fullmatch(fold, 0, fold.index("/")):
        top = ours.tops.fullmatch(fold)
        if top is not None:
            best = _stricter(best, top.lastgroup)
    if path in rules.sealed:
        if best == "harness" and name.startswith("conftest."):
            best = None
        best = _stricter(best, "oracle")
    elif path in rules.sealed_folders:  # a file where base has a folder of sealed files
        best = _stricter(best, "oracle")
    claim = rules.claims.fullmatch(plain)
    if best != "workflow" and rules.shadows:
        for root in rules.roots:
            if fold.startswith(root) and fold[len(root) :].partition("/")[0].partition(".")[0] in rules.shadows:
                module = top_module(fold, root)
                if module in rules.shadows:
                    return "harness", f"it would be imported in place of {module}"
    if best is None and ours.left.fullmatch(fold):
        best = "harness"
    if claim is not None:
        claimed = cast(Class, claim.lastgroup)
        if best is None or RANK[claimed] <= RANK[best]:
            return claimed, ""
    return (best, REASON[best]) if best is not None else ("other", "")


def classify_change(change: Change, rules: Rules, read: Callable[[str], bytes]) -> tuple[Class, str]:
    """(class, why) of a change: the strictest of both sides, of its name, and of the tables that differ in it."""
    found, why = explain(change.path, rules)
    compare = TABLES.get(folded(text(change.path)).rpartition("/")[2])
    if compare is None:
        return found, why
    sides = []
    for entry in (change.old, change.new):
        if entry is not None and entry.mode not in (0o100644, 0o100755):
            return _strictest([found, "harness"]), "it is no plain file"
        sides.append(None if entry is None else read(entry.oid))
    differing = compare(*sides)
    worst = _strictest([found, *differing])
    return (
        worst,
        why if worst == found and why else f"what differs in it: {', '.join(name for name in ORDER if name in differing)}",
    )


def _folders(path: bytes) -> Iterator[bytes]:
    while path := path.rpartition(b"/")[0]:
        yield path


def _strictest(classes: Iterable[Class]) -> Class:
    return min(classes, key=RANK.__getitem__)


def _stricter(one: Class | None, other: str | None) -> Class:
    found = cast(Class, other)
    return found if one is None or RANK[found] < RANK[one] else one


def _of_folder(folder: str, ours: BuiltIn) -> Class | None:
    best: Class | None = None
    for part in folder.split("/"):
        match = ours.folders.fullmatch(part)
        if match is not None:
            best = _stricter(best, match.lastgroup)
    return best
