"""Names of tests as a file's text shows them; nothing is imported. Names made at run time are not seen."""

from __future__ import annotations

import ast
import configparser
import fnmatch
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from .modules import Unresolved, parse

_SOURCES = (
    ("pytest.toml", "pytest"),
    (".pytest.toml", "pytest"),
    ("pytest.ini", "pytest"),
    (".pytest.ini", "pytest"),
    ("pyproject.toml", "tool.pytest"),
    ("tox.ini", "pytest"),
    ("setup.cfg", "tool:pytest"),
)
CONFIG_FILES = tuple(name.encode() for name, _ in _SOURCES)
"""Where pytest looks for its configuration, in its order; the first that configures pytest counts."""


class Conventions(msgspec.Struct, frozen=True):
    """pytest's python_files, python_classes and python_functions: a prefix, or a pattern with ``*``, ``?`` or ``[``.

    ``testpaths`` and ``pythonpath`` are what the same configuration says, () for nothing.
    """

    files: tuple[str, ...] = ("test_*.py", "*_test.py")
    classes: tuple[str, ...] = ("Test",)
    functions: tuple[str, ...] = ("test",)
    testpaths: tuple[str, ...] = ()
    pythonpath: tuple[str, ...] = ()

    def is_module(self, path: bytes) -> bool:
        """Whether pytest would collect the file at ``path``."""
        text = path.decode("utf-8", "surrogateescape")
        name = text.rpartition("/")[2]
        return name.endswith(".py") and any(fnmatch.fnmatchcase(text if "/" in one else name, one) for one in self.files)


def conventions(files: Mapping[bytes, bytes]) -> Conventions:
    """What base's configuration says; ``files`` holds those of CONFIG_FILES that are there. Unreadable ones say nothing."""
    for name, section in _SOURCES:
        data = files.get(name.encode())
        options = _options(name, data, section) if data is not None else None
        if options is not None:
            default = Conventions()
            return Conventions(
                files=_words(options.get("python_files")) or default.files,
                classes=_words(options.get("python_classes")) or default.classes,
                functions=_words(options.get("python_functions")) or default.functions,
                testpaths=_words(options.get("testpaths")),
                pythonpath=_words(options.get("pythonpath")),
            )
    return Conventions()


def static_tests(path: bytes, data: bytes, rules: Conventions) -> tuple[str, ...]:
    """``NAME`` and ``CLASS::NAME`` of the tests that ``data`` defines, in order. Raises Unresolved when it does not parse."""
    tree = parse(data, path)
    classes = {node.name: node for node in _statements(tree.body) if isinstance(node, ast.ClassDef)}
    return tuple(dict.fromkeys(_in(tree.body, "", rules, classes, False)))


def try_static_tests(path: bytes, data: bytes, rules: Conventions) -> tuple[str, ...]:
    """The same; of a file that does not parse here, nothing."""
    try:
        return static_tests(path, data, rules)
    except Unresolved:
        return ()


def _in(
    body: list[ast.stmt], prefix: str, rules: Conventions, classes: Mapping[str, ast.ClassDef], unittest: bool
) -> Iterator[str]:
    for node in _statements(body):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if _named(node.name, rules.functions) or (unittest and node.name.startswith("test")):
                yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            family = _family(node, classes)
            case = any(_is_case(base) for member in family for base in member.bases)
            if case or _named(node.name, rules.classes):
                for member in family:
                    yield from _in(member.body, f"{prefix}{node.name}::", rules, classes, case)


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that bind names of this level: branches, loops and ``with`` blocks are looked into."""
    for node in body:
        yield node
        if isinstance(node, (ast.If, ast.For, ast.While, ast.With, ast.Try)):
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _family(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> list[ast.ClassDef]:
    """The class and its bases in the same file, nearest first."""
    found, pending = [], [node]
    while pending:
        one = pending.pop(0)
        if one not in found:
            found.append(one)
            pending += [classes[base.id] for base in one.bases if isinstance(base, ast.Name) and base.id in classes]
    return found


def _is_case(base: ast.expr) -> bool:
    name = base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""
    return name.endswith(("TestCase", "Testcase"))


def _named(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, one) if set("*?[") & set(one) else name.startswith(one) for one in patterns)


def _options(name: str, data: bytes, section: str) -> Mapping[str, Any] | None:
    try:
        text = data.decode("utf-8-sig")
        if name.endswith(".toml"):
            table: Any = tomllib.loads(text)
            for part in section.split("."):
                table = table.get(part) if isinstance(table, dict) else None
            if isinstance(table, dict) and "ini_options" in table:  # beside it, from pytest 9 on, the table itself
                table = table["ini_options"]
            return table if isinstance(table, dict) else None
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        parser.read_string(text)
        found = dict(parser.items(section)) if parser.has_section(section) else None
        return {} if found is None and name.endswith("pytest.ini") else found
    except (ValueError, configparser.Error):
        return None


def _words(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return tuple(value.split())
    return tuple(map(str, value)) if isinstance(value, list) else ()
