"""The gated project's own metadata, read from base's files; nothing of base is executed to learn it.

A build would run base's own code (setup.py, hooks, modules that setup.py imports) outside every sandbox, and an agent's
merged patches are in base. So names, versions, entry points and version files are read the way the usual back ends
describe them. What they compute from git history becomes ``0.0.0+base``. Its modules are never here, and neither are its
pytest plugins: those would be candidate code that pytest loads before a test is collected.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from ..core.stage import Blob, Tree
from .env_legacy import described
from .env_sources import Files

UNKNOWN = "0.0.0+base"

_PLUGINS = "pytest11"
_SCM_FILE = """# The gate wrote this in place of the project's build; the version is not the one of a release.
__all__ = ["__version__", "__version_tuple__", "version", "version_tuple", "__commit_id__", "commit_id"]
__version__ = version = {version!r}
__version_tuple__ = version_tuple = {version_tuple!r}
__commit_id__ = commit_id = None
"""


class Project(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` is "" where base says none. ``headers``: lines of METADATA. ``points``: group to {name: target}.

    ``files``: path to content of what a build would write into the tree.
    """

    name: str = ""
    version: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    points: dict[str, dict[str, str]] = {}
    files: dict[str, str] = {}
    notes: tuple[str, ...] = ()


def read(files: Files) -> Project:
    """The project that base's pyproject.toml, setup.cfg or setup.py describes; an empty one where nothing names it."""
    tables = files.toml("pyproject.toml") if "pyproject.toml" in files else {}
    legacy = described(files)
    tool = _table(tables, "tool")
    poetry = _table(tool, "poetry")
    project = {**poetry, **_table(tables, "project")}
    name = str(project.get("name") or legacy.get("name") or _table(tool, "flit", "metadata").get("module") or "")
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        return Project()
    static = str(project.get("version") or "")
    version = static or _dynamic(name, tables, legacy, files)
    version = version if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9.+!_-]{0,99}", version) else ""
    notes = [] if version else [f"the version of {name} is computed when it is built: {UNKNOWN} stands for it"]
    points = _points(project, poetry, legacy)
    if points.pop(_PLUGINS, None):
        notes.append(f"{name} is a pytest plugin: its entry points of the group {_PLUGINS} are left out")
    version = version or UNKNOWN
    written = {} if static and not _table(tool, "setuptools_scm") else _version_files(tool, version)
    return Project(
        name=name,
        version=version,
        headers=tuple(_headers(project, legacy)),
        points=points,
        files={path: text for path, text in written.items() if path not in files},
        notes=tuple(notes),
    )


def metadata(project: Project) -> Tree:
    """``NAME-VERSION.dist-info`` as an installer would leave it."""
    folder = f"{re.sub(r'[-_.]+', '_', project.name).lower()}-{project.version}.dist-info"
    lines = [("Metadata-Version", "2.1"), ("Name", project.name), ("Version", project.version), *project.headers]
    texts = {"METADATA": "".join(f"{key}: {_flat(value)}\n" for key, value in lines), "INSTALLER": "probatum\n"}
    if project.points:
        groups = sorted(project.points.items())
        sections = ("".join(f"{key} = {_flat(target)}\n" for key, target in sorted(found.items())) for _, found in groups)
        texts["entry_points.txt"] = "\n".join(
            f"[{_flat(group)}]\n{text}" for (group, _), text in zip(groups, sections, strict=True)
        )
    texts["RECORD"] = "".join(f"{folder}/{name},,\n" for name in sorted([*texts, "RECORD"]))
    return Tree({f"{folder}/{name}".encode(): Blob(0o100644, data=text.encode()) for name, text in texts.items()})


def version_files(project: Project) -> Tree:
    """The files that a build would add to the tree."""
    return Tree({path.encode(): Blob(0o100644, data=text.encode()) for path, text in project.files.items()})


def _points(project: Mapping[str, Any], poetry: Mapping[str, Any], legacy: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    declared: dict[str, Any] = {
        **legacy.get("entry_points", {}),
        **_table(poetry, "plugins"),
        **_table(project, "entry-points"),
    }
    for group, key in (("console_scripts", "scripts"), ("gui_scripts", "gui-scripts")):
        if _table(project, key):
            declared[group] = _table(project, key)
    found: dict[str, dict[str, str]] = {}
    for group, entries in declared.items():
        if isinstance(entries, dict):
            plain = {str(name): str(target) for name, target in entries.items() if isinstance(target, str)}
            if plain:
                found[str(group)] = plain
    return found


def _headers(project: Mapping[str, Any], legacy: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Core metadata 2.1, as far as base states it."""
    summary = project.get("description") or legacy.get("description")
    if isinstance(summary, str):
        yield "Summary", summary
    for role in ("author", "maintainer"):
        people = [item for item in _list(project.get(f"{role}s")) if isinstance(item, dict)]
        names = [item["name"] for item in people if "name" in item and "email" not in item]
        mails = [f"{item['name']} <{item['email']}>" if "name" in item else item["email"] for item in people if "email" in item]
        for suffix, values in (("", names), ("-email", mails)):
            if values:
                yield role.capitalize() + suffix, ", ".join(values)
    licence = project.get("license")
    if isinstance(licence, str):
        yield "License-Expression", licence
    elif isinstance(licence, dict) and isinstance(licence.get("text"), str):
        yield "License", licence["text"]
    if _list(project.get("keywords")):
        yield "Keywords", ",".join(map(str, project["keywords"]))
    for line in _list(project.get("classifiers")):
        yield "Classifier", str(line)
    for label, url in _table(project, "urls").items():
        yield "Project-URL", f"{label}, {url}"
    if isinstance(project.get("requires-python"), str):
        yield "Requires-Python", project["requires-python"]
    for line in _list(project.get("dependencies")):
        yield "Requires-Dist", str(line)
    for extra, lines in _table(project, "optional-dependencies").items():
        yield "Provides-Extra", str(extra)
        for line in _list(lines):
            requirement, _, marker = str(line).partition(";")
            condition = f"({marker.strip()}) and " if marker.strip() else ""
            yield "Requires-Dist", f"{requirement.strip()} ; {condition}extra == '{extra}'"


def _dynamic(name: str, tables: Mapping[str, Any], legacy: Mapping[str, Any], files: Files) -> str:
    """A version that base's files state somewhere else than in a version key; "" where they do not."""
    tool = _table(tables, "tool")
    setuptools = _table(tool, "setuptools", "dynamic").get("version")
    if isinstance(setuptools, dict):
        return (
            _attribute(str(setuptools["attr"]), files) if "attr" in setuptools else _first_line(setuptools.get("file"), files)
        )
    for table, path, pattern in (
        (_table(tool, "hatch", "version"), "path", "pattern"),
        (_table(tool, "pdm", "version"), "path", ""),
    ):
        if isinstance(table.get(path), str) and table[path] in files:
            return _assigned(files.text(table[path]), table.get(pattern) if pattern else None)
    if str(_table(tables, "build-system").get("build-backend", "")).startswith("flit"):
        module = _table(tool, "flit", "module").get("name") or _table(tool, "flit", "metadata").get("module") or name
        return _attribute(str(module).replace("-", "_") + ".__version__", files)
    stated = str(legacy.get("version") or "")
    if stated.startswith("attr:"):
        return _attribute(stated.removeprefix("attr:").strip(), files)
    if stated.startswith("file:"):
        return _first_line(stated.removeprefix("file:").strip(), files)
    return stated


def _attribute(dotted: str, files: Files) -> str:
    """``package.module.NAME`` as a constant in that module, looked for at the root and in src."""
    parts, attribute = dotted.split(".")[:-1], dotted.split(".")[-1]
    for root in ("", "src/", "lib/"):
        for tail in ("/__init__.py", ".py"):
            path = root + "/".join(parts) + tail
            if path in files:
                return _constant(files.text(path), attribute)
    return ""


def _constant(text: str, attribute: str) -> str:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == attribute for target in targets):
            value = getattr(node, "value", None)
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                return value.value
            if isinstance(value, ast.Tuple) and all(isinstance(item, ast.Constant) for item in value.elts):
                return ".".join(str(item.value) for item in value.elts if isinstance(item, ast.Constant))
    return ""


def _assigned(text: str, pattern: Any) -> str:
    """hatch's rule: the group ``version`` of a pattern, else what ``__version__`` or ``VERSION`` is set to."""
    default = r"""(?im)^(?:__version__|version)(?:\s*:\s*str)?\s*=\s*(['"])v?(?P<version>.+?)\1"""
    try:
        match = re.search(pattern if isinstance(pattern, str) and len(pattern) < 200 else default, text[:20_000], re.MULTILINE)
        return match["version"] if match else ""
    except (re.error, IndexError):
        return ""


def _first_line(path: Any, files: Files) -> str:
    name = path[0] if isinstance(path, list) and path else path
    return files.text(name).strip().split("\n")[0].strip() if isinstance(name, str) and name in files else ""


def _version_files(tool: Mapping[str, Any], version: str) -> dict[str, str]:
    scm, vcs, pdm = (
        _table(tool, "setuptools_scm"),
        _table(tool, "hatch", "build", "hooks", "vcs"),
        _table(tool, "pdm", "version"),
    )
    wanted: list[tuple[Any, Any]] = [
        (scm.get("write_to"), scm.get("write_to_template")),
        (scm.get("version_file"), scm.get("version_file_template")),
        (vcs.get("version-file"), vcs.get("template")),
        (_table(tool, "hatch", "build", "hooks", "version").get("path"), None),
        (pdm.get("write_to"), pdm.get("write_template")),
    ]
    parts = tuple(int(part) if part.isdigit() else part for part in re.split(r"[.+]", version))
    found: dict[str, str] = {}
    for path, template in wanted:
        if not isinstance(path, str) or path.startswith("/") or posixpath.normpath(path).startswith(".."):
            continue
        text = template if isinstance(template, str) else _SCM_FILE if path.endswith(".py") else "{version}\n"
        values: dict[str, Callable[[], str]] = {
            "{version}": lambda: version,
            "{version!r}": lambda: repr(version),
            "{version_tuple}": lambda: repr(parts),
            "{version_tuple!r}": lambda: repr(parts),
        }
        for mark, value in values.items():
            text = text.replace(mark, value())
        found[posixpath.normpath(path)] = text.replace("{{", "{").replace("}}", "}").replace("{}", version, 1)
    return found


def _table(tables: Mapping[str, Any], *names: str) -> dict[str, Any]:
    found: Any = tables
    for name in names:
        found = found.get(name) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _flat(text: Any) -> str:
    return " ".join(str(text).split())
