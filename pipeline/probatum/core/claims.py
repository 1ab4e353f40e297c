"""The built-in globs of the classes, and globs sorted so that what a folder decides is decided once per folder."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import get_args

from .globs import pattern, simplified
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

BUILT_IN: tuple[tuple[Class, str], ...] = (
    ("workflow", WORKFLOW),
    ("harness", HARNESS),
    ("oracle", ORACLE),
    ("environment", ENVIRONMENT),
)

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
                    best = stricter(best, found)
        if self._first is None or name[:1] in self._first:
            for found, rest in self._rest:
                if rest.fullmatch(name):
                    return stricter(best, found)
        return best


@functools.cache
def built_in() -> Globs:
    """The built-in globs, for folded paths; sorted once."""
    return Globs({name: globs.split() for name, globs in BUILT_IN})


def stricter(one: Class | None, other: Class | None) -> Class | None:
    """The stricter of two classes, either of which may be none."""
    if one is None or other is None:
        return one or other
    return one if RANK[one] <= RANK[other] else other
