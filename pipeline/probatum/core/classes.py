"""Every changed path has one class; where two could claim it, the strictest counts (section 0).

The built-in rules for what runs beside the tests (harness and stricter) look at the folded name (case and Unicode
normalisation taken away): on some disks CONFTEST.PY is conftest.py. Policy's globs look at the bytes.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import get_args

import msgspec

from .check import Change
from .fold import folded
from .globs import pattern, simplified, text
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

LEFT = ("ci", ".ci")
"""The gate's own folders: harness where nothing more exact claims what is in them."""

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

LAST = (b"l", b"L", b"g", b"G", b".", b" ")
"""Last bytes of names that could fold to one of TABLES: spares the others the folding."""

ENDS = (".", " ")

IMPORTABLE = re.compile(r"(?P<name>[^/.]+)(?:/__init__)?(?:\.(?:py|pyc|pyw)|(?:\.[^/]*)?\.(?:so|pyd))", re.DOTALL)

Claims = Mapping[Class, Iterable[str]]


class Globs:
    """Globs of several classes, sorted by folder: what a folder decides is decided once per folder, not once per path."""

    def __init__(self, claims: Claims) -> None:
        self.whole: list[tuple[Class, re.Pattern[str]]] = []
        self.parts: list[tuple[Class, re.Pattern[str], str]] = []
        for name, globs in claims.items():
            for glob in globs:
                folder, _, last = simplified(glob).rpartition("/")
                if last == "**":
                    # "a/**" claims what lies in a folder that is a, or below it; "**" claims everything.
                    self.whole.append((name, re.compile(_some(folder) + "(?:/.*)?" if folder else ".*", re.DOTALL)))
                else:
                    self.parts.append((name, _in_folder(folder), last))
        self._names: dict[tuple[tuple[Class, str], ...], Names] = {}

    def of_folder(self, folder: str) -> tuple[Class | None, Names | None]:
        """(the strictest class that claims everything in a folder, what depends on the name there)."""
        best: Class | None = None
        for name, whole in self.whole:
            if (best is None or RANK[name] < RANK[best]) and whole.fullmatch(folder):
                best = name
        here = tuple((name, last) for name, within, last in self.parts if within.fullmatch(folder))
        if not here:
            return best, None
        if here not in self._names:
            self._names[here] = Names(here)
        return best, self._names[here]


def _in_folder(folder: str) -> re.Pattern[str]:
    """Matches the folders whose own files a glob speaks of, ``folder`` being all but its last component."""
    if folder.rpartition("/")[2] != "**":
        return re.compile(_some(folder) if folder else "", re.DOTALL)
    above = folder.rpartition("/")[0]
    return re.compile(_some(above) + "(?:/.*)?" if above else ".*", re.DOTALL)


def _some(folder: str) -> str:
    """The expression of a folder's glob, which never matches the top folder's empty name."""
    return "(?=.)" + pattern(folder)


class Names:
    """Globs of names within one folder. Most names match none: the look-ups come first, the expressions last."""

    def __init__(self, claims: Iterable[tuple[Class, str]]) -> None:
        self._exact: dict[str, Class] = {}
        self._endings: dict[str, Class] = {}
        rest: list[tuple[Class, str]] = []
        for name, glob in sorted(claims, key=lambda claim: RANK[claim[0]]):
            if "*" not in glob and "?" not in glob:
                self._exact.setdefault(glob, name)
            elif glob.startswith("*") and "*" not in glob[1:] and "?" not in glob:
                self._endings.setdefault(glob[1:], name)
            else:
                rest.append((name, glob))
        self._any_end = tuple(self._endings)
        self._rest = [(name, re.compile(pattern(glob), re.DOTALL)) for name, glob in rest]
        starts = {glob[0] for _, glob in rest}
        self._first = None if starts & {"*", "?"} else frozenset(starts)

    def of(self, name: str) -> Class | None:
        """The strictest class that claims a name."""
        best = self._exact.get(name)
        if name.endswith(self._any_end):
            for ending, found in self._endings.items():
                if name.endswith(ending):
                    best = _stricter(best, found)
        if self._first is None or name[:1] in self._first:
            for found, rest in self._rest:
                if rest.fullmatch(name):
                    return _stricter(best, found)
        return best


@functools.cache
def built_in() -> Globs:
    """The built-in globs, for folded paths; sorted once."""
    return Globs({name: globs.split() for name, globs in BUILT_IN})


class Folder(msgspec.Struct, frozen=True):
    """What is known of a path once its folder is known."""

    ours: Class | None
    our_names: Names | None
    theirs: Class | None
    their_names: Names | None
    left: bool
    top: bool


class Rules:
    """What decides a class, sorted once per gate. ``of`` makes them."""

    def __init__(self, claims: Claims, sealed: frozenset[bytes], roots: tuple[str, ...], shadows: frozenset[str]) -> None:
        self.globs = Globs(claims)
        self.sealed = sealed
        self.sealed_folders = frozenset(folder for path in sealed for folder in _folders(path))
        self.roots, self.shadows = roots, shadows
        self.folders: dict[str, Folder] = {}

    @classmethod
    def of(cls, policy: Policy, sealed: Iterable[bytes], shadows: Iterable[str] = (), test_roots: Iterable[str] = ()) -> Rules:
        """Rules of base's ``policy``; ``sealed`` are the oracle's paths, ``test_roots`` what pytest puts on sys.path.

        ``shadows``: module names that a patch must not bring to the top of sys.path: the standard library's and the
        environment's, without those that base has there already (``new_shadows``).
        """
        paths = policy.paths
        claims: Claims = {
            "workflow": paths.workflow,
            "harness": paths.harness,
            "oracle": paths.sealed,
            "environment": paths.environment,
            "cassette": paths.cassette,
            "product": paths.product,
            "proposed": paths.proposed,
            "docs": paths.docs,
        }
        return cls(
            claims, frozenset(sealed), tuple(map(folded, roots(policy, test_roots))), frozenset(map(str.casefold, shadows))
        )

    def folder(self, folder: str) -> Folder:
        """What a folder decides; asked once per folder."""
        known = self.folders.get(folder)
        if known is None:
            fold = folded(folder)
            top = any(
                f"{where}/" in self.roots or (where == "" and "" in self.roots) for where in (fold, fold.rpartition("/")[0])
            )
            left = fold.partition("/")[0] in LEFT
            known = Folder(*built_in().of_folder(fold), *self.globs.of_folder(folder), left, top and bool(self.shadows))
            self.folders[folder] = known
        return known

    def shadowed(self, path: str) -> str:
        """The module whose place at the top of sys.path this path would take, "" for none."""
        fold = folded(path)
        for root in self.roots:
            module = top_module(fold, root)
            if module in self.shadows:
                return module
        return ""


def roots(policy: Policy, test_roots: Iterable[str] = ()) -> tuple[str, ...]:
    """Prefixes of paths that are on sys.path: the top of the repository, policy's ``pythonpath``, and ``test_roots``."""
    named = {"" if root in ("", ".") else root.removeprefix("./").strip("/") + "/" for root in (".", *policy.pythonpath)}
    return tuple(sorted(named.union(test_roots)))


def roots_of_tests(modules: Iterable[bytes], files: Container[bytes]) -> frozenset[str]:
    """What pytest puts on sys.path for test modules: of each, the nearest folder upwards that is no package."""
    found = set()
    for module in modules:
        folder = module.rpartition(b"/")[0]
        while folder and folder + b"/__init__.py" in files:
            folder = folder.rpartition(b"/")[0]
        found.add(text(folder) + "/" if folder else "")
    return frozenset(found)


def top_module(path: str, root: str) -> str:
    """The module that ``path`` brings to the top of sys.path when ``root`` is on it, "" for none."""
    if path.startswith(root):
        match = IMPORTABLE.fullmatch(path, len(root))
        if match is not None:
            return match["name"]
    return ""


def new_shadows(
    policy: Policy, base: Iterable[bytes], installed: Iterable[str] = (), test_roots: Iterable[str] = ()
) -> frozenset[str]:
    """Names of the standard library and of ``installed`` modules that base's own tree does not shadow already."""
    names = {name.casefold() for name in (*sys.stdlib_module_names, *installed)}
    places = roots(policy, test_roots)
    deepest = max(root.count("/") for root in places) + 1
    for path in base:
        if path.count(b"/") <= deepest:
            for root in places:
                names.discard(top_module(text(path), root).casefold())
    return frozenset(names)


def classify(path: bytes, rules: Rules) -> Class:
    """The class of a path, by its name alone."""
    return explain(path, rules)[0]


def explain(path: bytes, rules: Rules) -> tuple[Class, str]:
    """(class, why where it is not plain policy). The strictest class that claims the path; ``other`` when none does."""
    folder, _, name = text(path).rpartition("/")
    known = rules.folders.get(folder) or rules.folder(folder)
    fold = name.lower() if name.isascii() and not name.endswith(ENDS) else folded(name)
    best = known.ours
    if known.our_names is not None:
        named = known.our_names.of(fold)
        if named is not None:
            best = _stricter(best, named)
    if path in rules.sealed:
        if best == "harness" and fold.startswith("conftest."):
            best = None
        best = _stricter(best, "oracle")
    elif path in rules.sealed_folders:  # a file where base has a folder of sealed files
        best = _stricter(best, "oracle")
    if known.top and best != "workflow":
        module = rules.shadowed(f"{folder}/{name}" if folder else name)
        if module:
            return "harness", f"it would be imported in place of {module}"
    if best is None and known.left:
        best = "harness"
    claim = known.theirs
    if known.their_names is not None:
        named = known.their_names.of(name)
        if named is not None:
            claim = _stricter(claim, named)
    if claim is not None and (best is None or RANK[claim] <= RANK[best]):
        return claim, ""
    return (best, REASON[best]) if best is not None else ("other", "")


def classify_change(change: Change, rules: Rules, read: Callable[[str], bytes]) -> tuple[Class, str]:
    """(class, why) of a change: the strictest of both sides, of its name, and of the tables that differ in it."""
    entry = change.new or change.old
    assert entry is not None
    path = entry.path
    found, why = explain(path, rules)
    compare = TABLES.get(folded(text(path.rpartition(b"/")[2]))) if path.endswith(LAST) else None
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


def _stricter(one: Class | None, other: Class | None) -> Class | None:
    if one is None or other is None:
        return one or other
    return one if RANK[one] <= RANK[other] else other
