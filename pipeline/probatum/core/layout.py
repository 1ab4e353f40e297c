"""Where a repository keeps its product and its tests, guessed from the paths of one tree. A human reads the guess."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from .globs import text, wrong
from .policy import MANIFEST
from .static_tests import Conventions

TEST_FOLDERS = ("tests", "test", "testing")
DATA_FOLDERS = ("fixtures", "testdata", "test_data", "test-data", "tests_data", "testing_data")
DOC_FOLDERS = ("docs", "doc", "documentation", "examples", "changelog.d", "newsfragments", "news", "changes")
DOC_FILES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "README", "CHANGELOG", "CHANGES", "HISTORY", "NEWS", "AUTHORS",
             "CONTRIBUTING", "CODE_OF_CONDUCT", "SECURITY", "CITATION", "TODO")  # fmt: skip
_NOT_PRODUCT = {*TEST_FOLDERS, *DATA_FOLDERS, *DOC_FOLDERS, "ci", "benchmark", "benchmarks", "scripts", "tools", "tasks", "bin"}
_NOT_MODULES = {"setup.py", "noxfile.py", "conftest.py", "tasks.py", "dodo.py", "hatch_build.py", "conf.py", "fabfile.py"}


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """``kind`` is strict, in-place, or none where no test is found; the globs go into paths of ci/gate.yaml as they are."""

    kind: str
    product: tuple[str, ...] = ()
    sealed: tuple[str, ...] = ()
    docs: tuple[str, ...] = ()
    pythonpath: tuple[str, ...] = (".",)


def detect(paths: Iterable[bytes], rules: Conventions) -> Layout:
    """The layout of a tree with these ``paths``; ``rules`` tell test modules. Names that no glob can spell are left out."""
    files = sorted(text(path) for path in paths)
    if MANIFEST in files or any(name.startswith("tests/sealed/") for name in files):
        return Layout(kind="strict")
    modules = [name for name in files if rules.is_module(name.encode("utf-8", "surrogateescape"))]
    below = tuple(path.strip("./") + "/" for path in rules.testpaths if path.strip("./"))
    modules = [name for name in modules if name.startswith(below)] or modules
    sealed = _sealed(files, modules)
    if not sealed:
        return Layout(kind="none")
    product, roots = _product(files, set(modules))
    named = [root.strip("/").removeprefix("./") or "." for root in rules.pythonpath]
    pythonpath = tuple(dict.fromkeys(root for root in (*named, *roots) if root.isprintable() and ".." not in root))
    return Layout(kind="in-place", product=product, sealed=sealed, docs=_docs(files), pythonpath=pythonpath)


def _sealed(files: list[str], modules: list[str]) -> tuple[str, ...]:
    """The outermost folder called tests above each test module, whole; a module beside product code by its name's kind."""
    found: set[str] = set()
    for name in modules:
        parts = name.split("/")
        at = next((index for index, part in enumerate(parts[:-1]) if part.lower() in TEST_FOLDERS), None)
        if at is not None:
            found.add("/".join(parts[: at + 1]) + "/**")
            continue
        folder = "".join(f"{part}/" for part in parts[:-1])
        base = parts[-1]
        kind = "test_*.py" if base.startswith("test_") else "*_test.py" if base.endswith("_test.py") else base
        found |= {folder + kind}
        if f"{folder}conftest.py" in files:
            found.add(f"{folder}conftest.py")
    if found:
        tops = {name.split("/")[0] for name in files if "/" in name}
        found |= {f"{top}/**" for top in tops if top.lower() in (*DATA_FOLDERS, *TEST_FOLDERS)}
        found |= {"conftest.py"} & set(files)
    return _spelt(found)


def _product(files: list[str], modules: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """``src/**`` and its place on sys.path, else the packages and modules at the top."""
    if any(name.startswith("src/") and name.endswith((".py", ".pyx", ".c", ".rs")) for name in files):
        roots = (".",) if "src/__init__.py" in files else ("src", ".")
        return ("src/**",), roots
    found: set[str] = set()
    for name in files:
        top, _, rest = name.partition("/")
        if not rest:
            plain = name.endswith(".py") and name not in modules and name not in _NOT_MODULES
            found |= {name} if plain and not name.startswith(("test_", ".")) else set()
        elif rest.endswith((".py", ".pyi", ".pyx")) and top.isidentifier() and top.lower() not in _NOT_PRODUCT:
            found.add(f"{top}/**")
    packages = {glob for glob in found if f"{glob.removesuffix('/**')}/__init__.py" in files}
    modules_at_top = {glob for glob in found if "/" not in glob}
    return _spelt(packages | modules_at_top or found), (".",)


def _docs(files: list[str]) -> tuple[str, ...]:
    tops = {name.split("/")[0] for name in files if "/" in name}
    found = {f"{top}/**" for top in tops if top.lower() in DOC_FOLDERS}
    found |= {"docs/**", "*.md", "*.rst"}
    for name in files:
        stem = re.split(r"[._-]", name)[0]
        if "/" not in name and not name.endswith((".md", ".rst", ".py")) and stem.upper() in DOC_FILES:
            found.add(name)
    return _spelt(found)


def _spelt(globs: Iterable[str]) -> tuple[str, ...]:
    """Globs that policy can hold, each once, folders before what they hold already."""
    kept: list[str] = []
    for glob in sorted(set(globs), key=lambda one: (one.count("/"), one)):
        inside = any(glob != one and one.endswith("/**") and glob.startswith(one.removesuffix("**")) for one in kept)
        if not wrong(glob) and glob.isprintable() and not inside:
            kept.append(glob)
    return tuple(kept)
