"""Names of tests and places of tests, read from text; what pytest collects from the same text is the measure."""

from __future__ import annotations

import subprocess
import sys

import pytest

from probatum.core.layout import detect
from probatum.core.static_tests import Conventions, conventions, static_tests

MODULE = """\
import unittest, sys
import pytest

def test_plain(): pass
async def test_async(): pass
def helper(): pass
testing = 3
@pytest.mark.parametrize("x", [1, 2])
def test_many(x): pass

if sys:
    def test_in_a_branch(): pass
else:
    def test_in_else(): pass
try:
    def test_in_try(): pass
finally:
    pass

class Shared:
    def test_inherited(self): pass

class TestOne(Shared):
    def test_own(self): pass
    def other(self): pass
    class TestInner:
        def test_deep(self): pass

class Case(unittest.TestCase):
    def test_case(self): pass
    def testOld(self): pass

class Helper:
    def test_not_collected(self): pass
"""


def test_the_names_are_those_that_pytest_collects(tmp_path):
    (tmp_path / "test_m.py").write_text(MODULE)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "--rootdir", ".", "test_m.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    collected = {line.partition("::")[2].partition("[")[0] for line in said.splitlines() if "::" in line}
    found = set(static_tests(b"test_m.py", MODULE.encode(), Conventions()))
    assert collected and found - collected == {"test_in_else"} and collected <= found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pyproject.toml", '[tool.pytest.ini_options]\npython_files = ["check_*.py"]\npython_functions = "check_*"\n'),
        ("pyproject.toml", '[tool.pytest]\npython_files = ["check_*.py"]\npython_functions = ["check_*"]\n'),
        ("pytest.ini", "[pytest]\npython_files = check_*.py\npython_functions = check_*\n"),
        ("setup.cfg", "[tool:pytest]\npython_files = check_*.py\npython_functions = check_*\n"),
        ("tox.ini", "[pytest]\npython_files = check_*.py\npython_functions = check_*\n"),
    ],
)
def test_base_may_name_its_tests_otherwise(name, text):
    rules = conventions({name.encode(): text.encode()})
    assert rules.is_module(b"a/check_x.py") and not rules.is_module(b"a/test_x.py")
    assert static_tests(b"check_x.py", b"def check_a(): pass\ndef test_b(): pass\n", rules) == ("check_a",)


def test_a_configuration_that_cannot_be_read_says_nothing():
    assert conventions({b"pyproject.toml": b"[tool", b"setup.cfg": b"no section\n"}) == Conventions()


LAYOUTS = {
    "src": (["src/p/a.py", "tests/test_a.py"], ("src/**",), ("tests/**",), ("src", ".")),
    "src is the package": (["src/__init__.py", "src/a.py", "tests/test_a.py"], ("src/**",), ("tests/**",), (".",)),
    "flat": (["p/__init__.py", "setup.py", "conftest.py", "test/test_a.py"], ("p/**",), ("conftest.py", "test/**"), (".",)),
    "one module": (["six.py", "setup.py", "test_six.py"], ("six.py",), ("test_*.py",), (".",)),
    "tests inside packages": (
        ["p/__init__.py", "p/a.py", "p/tests/test_a.py", "p/q/tests/test_b.py"],
        ("p/**",), ("p/tests/**", "p/q/tests/**"), (".",),
    ),
    "tests beside code": (
        ["p/__init__.py", "p/a.py", "p/test_a.py", "p/conftest.py"], ("p/**",), ("p/conftest.py", "p/test_*.py"), (".",),
    ),
    "data at the top": (["p/__init__.py", "tests/a_test.py", "testdata/x.csv"], ("p/**",), ("testdata/**", "tests/**"), (".",)),
}  # fmt: skip


@pytest.mark.parametrize("case", LAYOUTS)
def test_a_layout_is_found_from_paths(case):
    paths, product, sealed, roots = LAYOUTS[case]
    found = detect([path.encode() for path in paths], Conventions())
    assert (found.kind, found.product, found.sealed, found.pythonpath) == ("in-place", product, sealed, roots)


def test_a_strict_layout_is_kept_and_no_test_is_none():
    assert detect([b"tests/sealed/MANIFEST.txt"], Conventions()).kind == "strict"
    assert detect([b"src/a.py", b"README.md"], Conventions()).kind == "none"


def test_names_that_no_glob_spells_are_left_out():
    found = detect([b"p/__init__.py", b"te[st/tests/test_a.py", b"tests/test_b.py", b"a\n.py"], Conventions())
    assert found.sealed == ("tests/**",) and found.product == ("p/**",)
