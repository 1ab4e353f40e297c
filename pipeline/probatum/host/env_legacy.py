"""What setup.cfg, setup.py and poetry's tables say of a project, as far as it is written out; nothing is run."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .env_sources import Files

_WANTED = ("name", "version", "description", "entry_points", "install_requires", "extras_require", "tests_require")


def described(files: Files) -> dict[str, Any]:
    """Keys of setup(): ``entry_points`` as {group: {name: target}}, ``install_requires`` as a list, ``extras_require`` as

    {extra: list}. setup.cfg goes before setup.py.
    """
    return {**_setup_py(files), **_setup_cfg(files)}


def _setup_cfg(files: Files) -> dict[str, Any]:
    if "setup.cfg" not in files:
        return {}
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(files.text("setup.cfg"))
    except configparser.Error:
        return {}
    found: dict[str, Any] = dict(parser.items("metadata")) if parser.has_section("metadata") else {}
    if parser.has_section("options.entry_points"):
        raw = parser.items("options.entry_points")
        found["entry_points"] = {group: _entry_lines(lines.splitlines()) for group, lines in raw}
    if parser.has_section("options"):
        for key in ("install_requires", "tests_require"):
            if parser.has_option("options", key):
                found[key] = _lines(parser.get("options", key))
    if parser.has_section("options.extras_require"):
        found["extras_require"] = {extra: _lines(text) for extra, text in parser.items("options.extras_require")}
    return found


def _setup_py(files: Files) -> dict[str, Any]:
    """Literal arguments of the call of ``setup`` in setup.py, constants of the module put in."""
    if "setup.py" not in files:
        return {}
    try:
        tree = ast.parse(files.text("setup.py"))
    except (SyntaxError, ValueError, RecursionError):
        return {}
    constants: dict[str, str] = {}
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                constants[node.targets[0].id] = node.value.value
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "setup":
            for keyword in node.keywords:
                if keyword.arg in _WANTED:
                    if isinstance(keyword.value, ast.Name):
                        found[keyword.arg] = constants.get(keyword.value.id)
                        continue
                    try:
                        found[keyword.arg] = ast.literal_eval(keyword.value)
                    except (ValueError, TypeError, RecursionError):
                        continue
    points = found.get("entry_points")
    if isinstance(points, dict):
        found["entry_points"] = {
            str(group): _entry_lines(lines if isinstance(lines, list) else str(lines).splitlines())
            for group, lines in points.items()
        }
    else:
        found.pop("entry_points", None)
    for key in ("install_requires", "tests_require"):
        found[key] = _lines(found.get(key))
    extras = found.get("extras_require")
    found["extras_require"] = {str(k): _lines(v) for k, v in extras.items()} if isinstance(extras, dict) else {}
    return {key: value for key, value in found.items() if value}


def _entry_lines(lines: list[Any]) -> dict[str, str]:
    pairs = (str(line).partition("=") for line in lines if "=" in str(line))
    return {name.strip(): target.strip() for name, _, target in pairs}


def _lines(value: Any) -> list[str]:
    items = value if isinstance(value, (list, tuple)) else str(value or "").splitlines()
    return [text for item in items if (text := str(item).strip()) and not text.startswith(("#", "file:"))]


def with_older_tables(project: Mapping[str, Any], files: Files) -> dict[str, Any]:
    """The same tables where setup.cfg, setup.py or poetry's table state them instead of [project]."""
    table = dict(project.get("project", {}))
    legacy = described(files)
    table.setdefault("name", legacy.get("name", ""))
    table.setdefault("dependencies", legacy.get("install_requires", []))
    extras = {**legacy.get("extras_require", {}), "tests": legacy.get("tests_require", [])}
    table.setdefault("optional-dependencies", {name: lines for name, lines in extras.items() if lines})
    groups = dict(project.get("dependency-groups", {}))
    poetry = project.get("tool", {}).get("poetry", {})
    if poetry and "dependencies" not in project.get("project", {}):
        table["dependencies"] = _poetry_lines(poetry.get("dependencies", {}))
        table["name"] = table["name"] or poetry.get("name", "")
    for name, group in poetry.get("group", {}).items():
        groups.setdefault(name, _poetry_lines(group.get("dependencies", {})))
    if "dev-dependencies" in poetry:
        groups.setdefault("dev", _poetry_lines(poetry["dev-dependencies"]))
    return {**project, "project": table, "dependency-groups": groups}


def _poetry_lines(table: Mapping[str, Any]) -> list[str]:
    """Requirements of a poetry table: ``^`` and ``~`` spelt out; what comes from a path or a repository is left out."""
    found = []
    for name, value in table.items():
        bound = value.get("version") if isinstance(value, dict) else value
        optional = isinstance(value, dict) and value.get("optional")
        if name.lower() == "python" or not isinstance(bound, str) or optional:
            continue
        extras = f"[{','.join(value['extras'])}]" if isinstance(value, dict) and value.get("extras") else ""
        found.append(name + extras + ",".join(_bound(part.strip()) for part in bound.split(",") if part.strip() != "*"))
    return found


def _bound(text: str) -> str:
    match = re.fullmatch(r"([\^~])\s*([0-9]+(?:\.[0-9]+)*)(.*)", text)
    if match is None:
        return text if text[:1] in "<>=!~" else f"=={text}"
    parts = [int(part) for part in match[2].split(".")]
    if match[1] == "^":
        at = next((index for index, part in enumerate(parts) if part), len(parts) - 1)
    else:
        at = min(1, len(parts) - 1)
    return f">={match[2]}{match[3]},<{'.'.join(map(str, [*parts[:at], parts[at] + 1]))}"
