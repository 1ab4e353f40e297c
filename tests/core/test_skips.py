"""A skip that a reader can see is seen, whatever name it goes by."""

from __future__ import annotations

import textwrap

import pytest

from probatum.core.modules import Library
from probatum.core.skips import Skip, same_condition, scan

PATH = b"tests/sealed/test_a.py"
HEAD = "import sys\nimport unittest\nimport pytest\n"


def skips(source: str, **files: str) -> list[Skip]:
    others = {f"tests/sealed/{name}.py".encode(): text.encode() for name, text in files.items()}
    return scan(Library({PATH: (HEAD + textwrap.dedent(source)).encode(), **others}), PATH)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("@pytest.mark.skip\ndef test_a(): pass", ("test_a", "test", "skip", "", False)),
        ("@pytest.mark.skip('x')\ndef test_a(): pass", ("test_a", "test", "skip", "", False)),
        ("@pytest.mark.xfail(strict=True)\ndef test_a(): pass", ("test_a", "test", "xfail", "", False)),
        ("@pytest.mark.xfail(sys.x, reason='')\ndef test_a(): pass", ("test_a", "test", "xfail", "sys.x", True)),
        ("@pytest.mark.skipif('sys.x > 1')\ndef test_a(): pass", ("test_a", "test", "skipif", "sys.x > 1", True)),
        ("@pytest.mark.skipif(condition=sys.x)\ndef test_a(): pass", ("test_a", "test", "skipif", "sys.x", True)),
        ("@pytest.mark.skipif(True, reason='')\ndef test_a(): pass", ("test_a", "test", "skipif", "True", False)),
        ("@unittest.skip('x')\ndef test_a(): pass", ("test_a", "test", "unittest.skip", "", False)),
        ("@unittest.skipIf(1, 'x')\ndef test_a(): pass", ("test_a", "test", "unittest.skipIf", "1", False)),
        ("@unittest.skipUnless(0, 'x')\ndef test_a(): pass", ("test_a", "test", "unittest.skipUnless", "0", False)),
        ("@unittest.skipUnless(sys.x, 'x')\ndef test_a(): pass", ("test_a", "test", "unittest.skipUnless", "sys.x", True)),
        ("@unittest.expectedFailure\ndef test_a(): pass", ("test_a", "test", "unittest.expectedFailure", "", False)),
        ("@unittest.case.skip('x')\ndef test_a(): pass", ("test_a", "test", "unittest.skip", "", False)),
        ("from pytest import mark as m\n@m.skip\nasync def test_a(): pass", ("test_a", "test", "skip", "", False)),
        ("later = pytest.mark.skip\n@later('x')\ndef test_a(): pass", ("test_a", "test", "skip", "", False)),
        ("p = pytest\nq = p.mark\n@q.xfail\ndef test_a(): pass", ("test_a", "test", "xfail", "", False)),
        ("w = getattr(pytest.mark, 'sk' + 'ip')\n@w\ndef test_a(): pass", ("test_a", "test", "skip", "", False)),
        ("from marks import later\n@later\ndef test_a(): pass", ("test_a", "test", "skip", "", False)),
        ("import marks\n@marks.later\ndef test_a(): pass", ("test_a", "test", "skip", "", False)),
        ("from marks import *\n@later\ndef test_a(): pass", ("test_a", "test", "skip", "", False)),
        ("pytestmark = pytest.mark.skip\ndef test_a(): pass", ("", "module", "skip", "", False)),
        ("pytestmark = [pytest.mark.slow, pytest.mark.xfail]", ("", "module", "xfail", "", False)),
        ("if sys.x:\n    pytestmark = pytest.mark.skip", ("", "module", "skip", "sys.x", True)),
        ("class T:\n    pytestmark = pytest.mark.skip", ("T", "class", "skip", "", False)),
        ("@unittest.skip('x')\nclass T(unittest.TestCase): pass", ("T", "class", "unittest.skip", "", False)),
        (
            "class A:\n  class B:\n    @pytest.mark.skip\n    def test_a(self): pass",
            ("A::B::test_a", "test", "skip", "", False),
        ),
        (
            "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.xfail)])\ndef test_a(x): pass",
            ("test_a", "param", "xfail", "", True),
        ),
        ("CASES = [pytest.param(1, marks=[pytest.mark.skip])]", ("", "param", "skip", "", True)),
        ("def test_a():\n    pytest.skip('x')", ("test_a", "test", "pytest.skip()", "", False)),
        ("def test_a():\n    if sys.x:\n        pytest.xfail('x')", ("test_a", "test", "pytest.xfail()", "sys.x", True)),
        ("from pytest import skip as s\ndef test_a():\n    s()", ("test_a", "test", "pytest.skip()", "", False)),
        ("np = pytest.importorskip('np')", ("", "module", "pytest.importorskip()", "pytest.importorskip('np')", True)),
        ("pytest.skip('x', allow_module_level=True)", ("", "module", "pytest.skip()", "", False)),
        ("raise unittest.SkipTest('x')", ("", "module", "raise SkipTest", "", False)),
        ("def test_a():\n    raise pytest.skip.Exception('x')", ("test_a", "test", "raise Skipped", "", False)),
        (
            "class T(unittest.TestCase):\n    @classmethod\n    def setUpClass(cls):\n        raise unittest.SkipTest",
            ("T::setUpClass", "helper", "raise SkipTest", "", False),
        ),
        (
            "class T(unittest.TestCase):\n    def test_a(self): self.skipTest('x')",
            ("T::test_a", "test", "self.skipTest()", "", False),
        ),
        ("@pytest.fixture(autouse=True)\ndef f():\n    pytest.xfail('x')", ("f", "fixture", "pytest.xfail()", "", False)),
        (
            "def pytest_collection_modifyitems(items):\n    items[0].add_marker(pytest.mark.skip)",
            ("pytest_collection_modifyitems", "hook", "skip", "", True),
        ),
        (
            "@pytest.fixture\ndef f(request):\n    request.applymarker(pytest.mark.xfail(reason='x'))",
            ("f", "fixture", "xfail", "", True),
        ),
    ],
)
def test_seen(source: str, expected: tuple[str, str, str, str, bool]) -> None:
    found = skips(source, marks="import pytest\nlater = pytest.mark.skip(reason='x')\n")
    assert [(skip.name, skip.scope, skip.kind, skip.condition, skip.conditional) for skip in found] == [expected]
    assert found[0].path == "tests/sealed/test_a.py" and found[0].line > 3 and found[0].text


@pytest.mark.parametrize(
    "source",
    [
        "@pytest.mark.slow\ndef test_a(): pass",
        "@pytest.mark.skipif(False, reason='x')\ndef test_a(): pass",
        "@unittest.skipUnless(True, 'x')\ndef test_a(): pass",
        "later = pytest.mark.skip",
        "def skip(): pass\n@skip\ndef test_a(): pass",
        "def test_a():\n    'pytest.skip()'",
        "class Parser:\n    def skip(self): pass\ndef test_a():\n    Parser().skip()",
        "def test_a():\n    raise ValueError('skip')",
    ],
)
def test_not_a_skip(source: str) -> None:
    assert skips(source) == []


def test_speaks_of_what_lies_below_it() -> None:
    module, cls, test = skips(
        "pytestmark = pytest.mark.skip\n@pytest.mark.skip\nclass T:\n    @pytest.mark.skip\n    def test_a(self): pass"
    )
    below, beside = "tests/sealed/test_a.py::T::test_a", "tests/sealed/test_a.py::Tea::test_a"
    assert [skip.speaks_of(below) for skip in (module, cls, test)] == [True, True, True]
    assert [skip.speaks_of(beside) for skip in (module, cls, test)] == [True, False, False]


def test_an_alias_that_refers_to_itself_ends() -> None:
    assert skips("a = b\nb = a\n@a\ndef test_a(): pass") == []


def test_conditions_compare_as_expressions() -> None:
    assert same_condition("sys.platform == 'win32'", 'sys.platform=="win32"')
    assert not same_condition("sys.platform == 'win32'", "sys.platform != 'win32'")
    assert same_condition("no expression  here", "no expression here")
