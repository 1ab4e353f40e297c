"""What differs in pyproject.toml and setup.cfg decides its class; what cannot be read is of the strictest."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probatum.core.pyproject import LIMIT, STRICTEST, compare_pyproject, compare_setup_cfg

TOML = """
[build-system]
requires = ["hatchling"]
[project]
name = "a"
version = "1"
dependencies = ["x"]
[tool.pytest.ini_options]
addopts = "-ra"
[tool.ruff]
line-length = 100
"""


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('name = "a"', 'name = "b"', {"other"}),
        ('version = "1"', 'version = "2"', {"other"}),
        ("line-length = 100", "line-length = 120", {"other"}),
        ('dependencies = ["x"]', 'dependencies = ["x", "y"]', {"environment"}),
        ('dependencies = ["x"]', 'dependencies = ["x"]\nrequires-python = ">=3.9"', {"environment"}),
        ("hatchling", "evil-backend", {"environment"}),
        ('addopts = "-ra"', 'addopts = "-p no:unittest"', {"harness"}),
        ("[tool.ruff]", "[project.entry-points.pytest11]\nevil = 'src.evil'\n[tool.ruff]", {"harness"}),
        ("[tool.ruff]", "[tool.pytest]\naddopts = ['-x']\n[tool.ruff]", {"harness"}),
        ("[tool.ruff]", "[dependency-groups]\ndev = []\n[tool.ruff]", {"environment"}),
        ("[tool.ruff]", "[tool.hatch.build]\nx = 1\n[tool.ruff]", {"environment"}),
        ("[tool.ruff]", "[tool.uv.sources]\nx = {path = '.'}\n[tool.ruff]", {"environment"}),
        ('name = "a"', "# a comment\nname   =   'a'", {"other"}),
        ("line-length = 100", "line-length = true", {"other"}),
        ('version = "1"', 'version = "1"\ndynamic = ["version"]', {"environment"}),
        ('addopts = "-ra"', "", {"harness"}),
        ("[tool.ruff]", "[tool.ruff", STRICTEST),
        ("[tool.ruff]", "[tool.ruff]\n[tool.ruff]", STRICTEST),
        ("[tool.ruff]", "[tool.pytest.ini_options]\n[tool.ruff]", STRICTEST),
    ],
)
def test_pyproject(old: str, new: str, expected: set[str]) -> None:
    before, after = TOML.encode(), TOML.replace(old, new).encode()
    assert before != after
    assert compare_pyproject(before, after) == expected
    assert compare_pyproject(after, before) == expected


def test_several_tables_give_several_classes() -> None:
    after = TOML.replace('"x"', '"y"').replace("-ra", "-q").replace("100", "99")
    assert compare_pyproject(TOML.encode(), after.encode()) == {"environment", "harness", "other"}


def test_a_new_or_deleted_file_counts_with_all_its_tables() -> None:
    assert (
        compare_pyproject(None, TOML.encode()) == compare_pyproject(TOML.encode(), None) == {"environment", "harness", "other"}
    )


@pytest.mark.parametrize("data", [b"\xff", b"\xef\xbb\xbf[a]", b"a = " + b"[" * 5000, b"#" * (LIMIT + 1), b"[tool]\x00"])
def test_what_cannot_be_read_is_of_the_strictest_class(data: bytes) -> None:
    assert compare_pyproject(b"", data) == compare_pyproject(data, b"") == STRICTEST


def test_an_integer_is_not_a_boolean() -> None:
    assert compare_pyproject(b"[tool.pytest.ini_options]\nx = 1", b"[tool.pytest.ini_options]\nx = true") == {"harness"}


CFG = "[metadata]\nname = a\n[flake8]\nmax = 1\n"


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (CFG.replace("max = 1", "max = 2"), {"other"}),
        (CFG.replace("name = a", "name = b"), {"environment"}),
        (CFG + "[options]\ninstall_requires =\n    x\n", {"environment"}),
        (CFG + "[options.entry_points]\npytest11 =\n    a = b\n", {"environment"}),
        (CFG + "[tool:pytest]\naddopts = -x\n", {"harness"}),
        (CFG + "[Tool:PyTest]\naddopts = -x\n", {"harness"}),
        (CFG + "[tool:pytest] # why\naddopts = -x\n", {"harness"}),
        (CFG + "  [tool:pytest]\naddopts = -x\n", {"harness", "other"}),
        (CFG + "x = 1\r[tool:pytest]\raddopts = -x\n", {"harness", "other"}),
        (CFG + "x = 1\x0c[tool:pytest]\x0caddopts = -x\n", {"harness", "other"}),
        (CFG + "x = 1\u2028[tool:pytest]\u2028addopts = -x\n", {"harness", "other"}),
        (CFG + "# only a comment\n", {"other"}),
        ("norecursedirs = sealed\n" + CFG, {"harness"}),
    ],
)
def test_setup_cfg(new: str, expected: set[str]) -> None:
    assert compare_setup_cfg(CFG.encode(), new.encode()) == expected
    assert compare_setup_cfg(new.encode(), CFG.encode()) == expected


def test_a_section_that_only_one_reader_sees_hides_nothing() -> None:
    """iniconfig takes the indented line for text: the addopts below it are pytest's."""
    before = b"[tool:pytest]\nx = 1\n  [flake8]\naddopts = -ra\n"
    assert "harness" in compare_setup_cfg(before, before.replace(b"-ra", b"-p no:unittest"))


def test_setup_cfg_that_is_no_text() -> None:
    assert compare_setup_cfg(b"", b"\xff") == compare_setup_cfg(b"x" * (LIMIT + 1), None) == STRICTEST


@given(st.binary(max_size=60), st.binary(max_size=60))
def test_any_bytes_are_compared(old: bytes, new: bytes) -> None:
    for compare in (compare_pyproject, compare_setup_cfg):
        assert compare(old, new) == compare(new, old) != frozenset()
