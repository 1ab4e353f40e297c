"""pyproject.toml and setup.cfg are compared table by table: each table that differs has a class, and the file has them all.

Dependencies and build tables are environment; what pytest and the gate read is harness; the rest is other. A side that
cannot be read, or that two readers could read differently, makes the file harness.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from .records import Class

LIMIT = 1 << 20
"""Bytes; a longer file is not read, and so of the strictest class."""

TOOLS = """
    bumpversion cibuildwheel conda-lock cython distutils enscons flit hatch jupyter-packaging maturin meson-python mypyc pbr pdm
    pip-tools pipenv pixi poetry poetry-dynamic-versioning poetry-version-plugin py-build-cmake rye scikit-build
    scikit-build-core setuptools setuptools-git-versioning setuptools-rust setuptools_scm setuptools-scm sip uv
    uv-dynamic-versioning versioneer versioningit whey
"""

PROJECT = "dependencies optional-dependencies requires-python dynamic scripts gui-scripts import-names import-namespaces"

ENVIRONMENT = frozenset(
    {
        "build-system",
        "dependency-groups",
        *(f"project.{key}" for key in PROJECT.split()),
        *(f"tool.{tool}" for tool in TOOLS.split()),
    }
)
"""Tables that decide what is installed and how it is built."""

HARNESS = frozenset({"project.entry-points", "tool.pytest", "tool.probatum", "tool.nox", "tool.tox", "tool.dagger"})
"""Tables that decide how tests run. Entry points are here because ``pytest11`` is one."""

SECTIONS = (
    "metadata",
    "options",
    "files",
    "entry_points",
    "build",
    "bdist",
    "sdist",
    "egg_info",
    "install",
    "extras",
    "global",
)
"""Prefixes of setup.cfg sections that decide what is installed and how it is built."""

STRICTEST: frozenset[Class] = frozenset({"harness", "environment"})


def compare_pyproject(old: bytes | None, new: bytes | None) -> frozenset[Class]:
    """The classes of what differs between two pyproject.toml files; None is a side that is not there."""
    try:
        before, after = (dict(_tables(_toml(side))) for side in (old, new))
    except (ValueError, RecursionError):
        return STRICTEST
    found: set[Class] = set()
    for name in before.keys() | after.keys():
        if before.get(name) != after.get(name):
            found.add("harness" if name in HARNESS else "environment" if name in ENVIRONMENT else "other")
    return frozenset(found or {"other"})


def compare_setup_cfg(old: bytes | None, new: bytes | None) -> frozenset[Class]:
    """The classes of what differs between two setup.cfg files, under every reading of where a section starts."""
    try:
        before, after = (_text(side) for side in (old, new))
    except ValueError:
        return STRICTEST
    found: set[Class] = set()
    for unusual_ends in (False, True):
        for indented in (False, True):
            first, second = (_sections(side, unusual_ends, indented) for side in (before, after))
            for name in first.keys() | second.keys():
                if first.get(name) != second.get(name):
                    found.add(_section_class(name))
    return frozenset(found or {"other"})


def _text(data: bytes | None) -> str:
    if data is None:
        return ""
    if len(data) > LIMIT:
        raise ValueError("too long")
    return data.decode("utf-8")


def _toml(data: bytes | None) -> Mapping[str, Any]:
    return tomllib.loads(_text(data).replace("\r\n", "\n"))


def _tables(top: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(table name, its value): tables of [project] and [tool] one by one, everything else whole.

    Values are compared as text, so that ``1``, ``1.0`` and ``true`` differ.
    """
    for name, value in top.items():
        if name in ("project", "tool") and isinstance(value, dict):
            for key, item in value.items():
                yield f"{name}.{key}", _spelled(item)
        else:
            yield name, _spelled(value)


def _spelled(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{_spelled(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_spelled, value)) + "]"
    return repr(value)


def _sections(text: str, unusual_ends: bool, indented: bool) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    current = found.setdefault("", [])
    for line in text.splitlines() if unusual_ends else text.replace("\r\n", "\n").replace("\r", "\n").split("\n"):
        start = line.lstrip() if indented else line
        if start.startswith("["):
            current = found.setdefault(start[1:].partition("]")[0].strip().casefold(), [])
            current.append("[")
        elif line.strip() and line.lstrip()[0] not in "#;":
            current.append(line.rstrip())
    return found


def _section_class(name: str) -> Class:
    if "pytest" in name or name in ("aliases", "", "tool:nox", "tox", "tox:tox"):
        return "harness"
    return "environment" if name.startswith(SECTIONS) else "other"
