"""A digest moves with what a test means and with nothing else."""

from __future__ import annotations

import ast
import sys
import textwrap
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probatum.core.astform import form
from probatum.core.bytecode import bytecode_hash
from probatum.core.closure import Closures, split_id
from probatum.core.modules import Unresolved

TEST = b"tests/sealed/test_pay.py"
CONFTEST = b"tests/sealed/conftest.py"
HELPERS = b"tests/sealed/helpers.py"
OTHER = b"tests/sealed/shapes.py"
DATA = b"fixtures/sealed/prices.json"

BASE = {
    CONFTEST: """
        import pytest
        from .shapes import Shape

        LIMIT = 3

        @pytest.fixture
        def account(rate):
            return {"rate": rate, "limit": LIMIT}

        @pytest.fixture(autouse=True)
        def settled():
            yield
            assert LIMIT

        @pytest.fixture
        def unused():
            return 1
        """,
    HELPERS: """
        import math

        FACTOR = 2

        def doubled(value):
            return scaled(value) * FACTOR

        def scaled(value):
            return math.floor(value)

        def unrelated(value):
            return value - 1
        """,
    OTHER: """
        class Shape:
            sides = 4
        """,
    TEST: """
        import random
        import unittest

        import pytest

        import helpers as tools
        from helpers import doubled
        from src.pay import pay

        RATE = 5
        SPARE = 6
        PRICES = "fixtures/sealed/prices.json"

        @pytest.fixture
        def rate():
            return RATE

        def near(one, two=0.5):
            return abs(one - two) < 1

        @pytest.mark.parametrize("amount", [1, 2])
        def test_pay(account, amount):
            \"\"\"Pays.\"\"\"
            open(PRICES)
            assert near(pay(account, doubled(amount)), 1.0)

        def test_other():
            assert SPARE and tools.unrelated(1)

        class Base(unittest.TestCase):
            start = 1

            def setUp(self):
                self.value = self.start

            def check(self, value):
                self.assertEqual(value, 2)

        class TestPay(Base):
            scale = 3

            def test_scale(self):
                self.check(self.value + 1)

            def test_elsewhere(self):
                self.assertTrue(self.scale)

            def spare(self):
                return 9
        """,
    DATA: '{"a": 1}\n',
}


def files(**changes: tuple[str, str]) -> dict[bytes, bytes]:
    """The base files, each change one replacement that must apply: ``helpers=(old, new)``."""
    names = {"conftest": CONFTEST, "helpers": HELPERS, "other": OTHER, "test": TEST, "data": DATA}
    found = {path: textwrap.dedent(text) for path, text in BASE.items()}
    for name, (old, new) in changes.items():
        assert found[names[name]].count(old) == 1, (old, name)
        found[names[name]] = found[names[name]].replace(old, new)
    return {path: text.encode() for path, text in found.items()}


def digest(source: dict[bytes, bytes], name: str = "test_pay") -> str:
    return Closures(source).digest(TEST, name)


@pytest.mark.parametrize(
    "change",
    [
        {"test": ("near(pay", "not near(pay")},
        {"test": ("[1, 2]", "[1, 3]")},
        {"test": ('"amount", [', '"amount", ids=str, argvalues=[')},
        {"test": ("RATE = 5", "RATE = 7")},
        {"test": ("return RATE", "return RATE + 1")},
        {"test": ("two=0.5", "two=0.25")},
        {"test": ("(account, amount)", "(amount, account)")},
        {"test": ("from src.pay import pay", "from src.pay import free as pay")},
        {"test": ("RATE = 5", "RATE = 5\nrandom.seed(1)")},
        {"test": ("RATE = 5", "RATE = 5\ndef setup_function(): RATE.x")},
        {"test": ("RATE = 5", "RATE = 5\npytestmark = pytest.mark.slow")},
        {"test": ("def test_pay(", "async def test_pay(")},
        {"helpers": ("FACTOR = 2", "FACTOR = 3")},
        {"helpers": ("math.floor", "math.ceil")},
        {"helpers": ("import math", "import cmath as math")},
        {"conftest": ("LIMIT = 3", "LIMIT = 4")},
        {"conftest": ('"rate": rate', '"rate": -rate')},
        {"conftest": ("yield", "yield 1")},
        {"conftest": ("LIMIT = 3", "LIMIT = 3\ndef pytest_runtest_setup(item): item.x = 1")},
        {"conftest": ("def unused():", "def rate():")},
        {"data": ("1", "2")},
    ],
    ids=lambda change: " ".join(f"{name}: {new[:28]!r}" for name, (_, new) in change.items()),
)
def test_moves_with_meaning(change: dict[str, tuple[str, str]]) -> None:
    assert digest(files(**change)) != digest(files())


@pytest.mark.parametrize(
    "change",
    [
        {"test": ("import random", "# a remark\nimport random\n\n\n")},
        {"test": ('"""Pays."""', '"""Pays, and says so."""')},
        {"test": ('"""Pays."""\n', "\n")},
        {
            "test": (
                "assert near(pay(account, doubled(amount)), 1.0)",
                "assert near(\n        pay(account, (doubled(amount))),\n        1.0,\n    )",
            )
        },
        {"test": ("[1, 2]", "[0x1, 2,]")},
        {"test": ("SPARE = 6", "SPARE = 7")},
        {"test": ("tools.unrelated(1)", "tools.unrelated(2)")},
        {"test": ("import random\nimport unittest", "import unittest, random")},
        {"test": ("@pytest.mark.parametrize", "@pytest.mark.skip(reason='later')\n@pytest.mark.parametrize")},
        {"test": ("@pytest.mark.parametrize", "@pytest.mark.xfail\n@pytest.mark.parametrize")},
        {"test": ("RATE = 5", "RATE = 5\npytestmark = [pytest.mark.skip]")},
        {"test": ("[1, 2]", "[1, pytest.param(2, marks=pytest.mark.xfail)]")},
        {"test": ("return 9", "return 10")},
        {"helpers": ("value - 1", "value - 2")},
        {"conftest": ("return 1", "return 2")},
        {"other": ("sides = 4", "sides = 5")},
    ],
    ids=lambda change: " ".join(f"{name}: {new[:28]!r}" for name, (_, new) in change.items()),
)
def test_stays_with_layout_and_the_rest(change: dict[str, tuple[str, str]]) -> None:
    if "pytest.param" in str(change):
        # The wrapper itself is a change; the marker in it is not.
        plain = files(test=("[1, 2]", "[1, pytest.param(2)]"))
        assert digest(files(**change)) == digest(plain)
    else:
        assert digest(files(**change)) == digest(files())


@pytest.mark.parametrize(
    ("change", "moves"),
    [
        (("start = 1", "start = 2"), True),
        (("self.value = self.start", "self.value = 1"), True),
        (("self.assertEqual(value, 2)", "self.assertEqual(value, 3)"), True),
        (("self.value + 1", "self.value + 2"), True),
        (("scale = 3", "scale = 4"), True),
        (("class TestPay(Base):", "class TestPay(unittest.TestCase):"), True),
        (("self.assertTrue(self.scale)", "self.assertFalse(self.scale)"), False),
        (("return 9", "return 8"), False),
        (("    def test_scale", "    @unittest.expectedFailure\n    def test_scale"), False),
        (("class TestPay(Base):", '@unittest.skip("x")\nclass TestPay(Base):'), False),
        (("amount), 1.0", "amount), 2.0"), False),
    ],
    ids=repr,
)
def test_class_shell(change: tuple[str, str], moves: bool) -> None:
    if "amount), 1.0" in change[0]:
        change = ("doubled(amount)), 1.0", "doubled(amount)), 2.0")
    before, after = digest(files(), "TestPay::test_scale"), digest(files(test=change), "TestPay.test_scale")
    assert (before != after) is moves


def test_inherited_test_is_found_and_follows_its_base() -> None:
    source = {TEST: b"class A:\n    def test_x(self):\n        assert 1\nclass TestB(A):\n    pass\n"}
    changed = {TEST: source[TEST].replace(b"assert 1", b"assert 2")}
    assert digest(source, "TestB::test_x") != digest(changed, "TestB::test_x")


def test_base_class_of_another_sealed_file_is_followed() -> None:
    source = {TEST: b"from helpers import Base\nclass TestB(Base):\n    def test_x(self): pass\n"}
    one = {**source, HELPERS: b"class Base:\n    def setUp(self): self.x = 1\n"}
    two = {**source, HELPERS: b"class Base:\n    def setUp(self): self.x = 2\n"}
    assert digest(one, "TestB::test_x") != digest(two, "TestB::test_x")


def test_an_alias_of_a_marker_is_a_marker() -> None:
    alias = b"import pytest\nlater = getattr(pytest.mark, 'sk' + 'ip')(reason='x')\n"
    marked = alias + b"@later\ndef test_pay(): pass\n"
    assert digest({TEST: marked}) == digest({TEST: alias + b"def test_pay(): pass\n"})


def test_a_fixture_asked_for_by_text_is_followed() -> None:
    source = b"import pytest\n@pytest.fixture(name='db')\ndef make():\n    return 1\n"
    source += b"def test_pay(request):\n    request.getfixturevalue('db')\n"
    assert digest({TEST: source}) != digest({TEST: source.replace(b"return 1", b"return 2")})


def test_fixture_overrides_are_followed_at_every_level() -> None:
    top = {b"tests/sealed/conftest.py": b"import pytest\n@pytest.fixture\ndef db():\n    return 1\n"}
    test = b"import pytest\n@pytest.fixture\ndef db(db):\n    return db\ndef test_pay(db): pass\n"
    changed = {b"tests/sealed/conftest.py": top[b"tests/sealed/conftest.py"].replace(b"1", b"2")}
    assert digest({**top, TEST: test}) != digest({**changed, TEST: test})


def test_docstrings_count_where_something_reads_them() -> None:
    source = b"def helper():\n    'a'\ndef test_pay():\n    assert helper.__doc__\n"
    assert digest({TEST: source}) != digest({TEST: source.replace(b"'a'", b"'b'")})


def test_the_path_of_a_file_does_not_matter() -> None:
    moved = {
        (b"tests/sealed/deep/" + path.rpartition(b"/")[2]): data for path, data in files().items() if path.endswith(b".py")
    }
    moved[b"tests/sealed/deep/__init__.py"] = b""
    here = {path: data for path, data in files().items() if path.endswith(b".py")}
    assert Closures(moved).digest(b"tests/sealed/deep/test_pay.py", "test_pay") == digest(here)


def test_two_helpers_of_one_name_do_not_swap_unseen() -> None:
    test = b"import one, two\ndef test_pay():\n    assert one.f() < two.f()\n"
    a, b = b"def f(): return 1\n", b"def f(): return 2\n"
    first = {TEST: test, b"tests/sealed/one.py": a, b"tests/sealed/two.py": b}
    second = {TEST: test, b"tests/sealed/one.py": b, b"tests/sealed/two.py": a}
    assert digest(first) != digest(second)


@pytest.mark.parametrize("name", ["test_none", "TestPay::test_none", "TestNone::test_pay", "*"])
def test_an_unknown_test_has_no_digest(name: str) -> None:
    with pytest.raises(Unresolved, match="has no"):
        digest(files(), name)


@pytest.mark.parametrize(
    "data", [b"def f(:", b"\0", b"x = " + b"(" * 400 + b")" * 400, b"\xff", b"x = " + b"-" * 100_000 + b"1"]
)
def test_what_does_not_parse_is_said_in_one_line(data: bytes) -> None:
    with pytest.raises(Unresolved) as caught:
        Closures({TEST: data}).digest(TEST, "test_pay")
    assert "\n" not in caught.value.line()


def test_nothing_outside_the_sealed_files_is_followed() -> None:
    source = {**files(), b"src/pay.py": b"def pay(): return 1\n"}
    closures = Closures({path: data for path, data in source.items() if not path.startswith(b"src/")})
    assert closures.digest(TEST, "test_pay") == digest(files())


def test_split_id() -> None:
    assert split_id("a/b.py::C::t[x::y[1]]") == ("a/b.py", "C::t")
    assert split_id("a/b.py") == ("a/b.py", "")


TRICKY = r'''
import pytest
type_of = f"{1!r:>{10}}" f'{"a"}b' "c"
def helper(a, /, b=(1, 2), *c, d: "int" = 0x10, **e): return [*c, {**e}, a[b:1, ...], -1 ** 2, 1_000.5e3, 2j, b"\xff", "\ud800"]
def test_tricky(tmp_path):
    """doc"""
    with (open("x") as f, open("y")): pass
    match f:
        case {"a": [1, *rest], **other} | (other, rest): del (rest, other)
        case str(x=1) if (y := 2): pass
    try: ...
    except* (OSError, ValueError) as error: raise error from None
    assert helper(1, d=lambda q, *, r=3: (yield)) == f"{helper!s}{ type_of = }{{}}{1:%Y-%m-%d}{'n' + 'l'}", type_of
    async def inner(): return [i async for i in x if await i]
'''
GOLDEN = "43623dc4c29d20dfcb2957cfe2553fc8a3a31b05f6b83ae53a46b3a4c3a9d0a6"
"""Written once; every supported Python must find it again."""


def test_every_python_finds_the_same_digest() -> None:
    assert Closures({TEST: TRICKY.encode()}).digest(TEST, "test_tricky") == GOLDEN, sys.version


SOURCES = st.sampled_from(
    [
        "def test_pay():\n    assert (1 + 2) * 3 == [4, 'five'][0]\n",
        "K = {'a': 1, 'b': (2.5, None)}\ndef test_pay(x=True):\n    for i in range(3):\n        assert K['a'] < i or not x\n",
        "def h(n):\n    return n - 1 if n > 0 else h(-n)\ndef test_pay():\n    assert h(3) == 2 and h(0) != 'x'\n",
        "class A:\n    k = 7\n    def m(self): return self.k % 4\ndef test_pay():\n    assert A().m() in (3, b'3')\n",
    ]
)


@given(source=SOURCES, data=st.data())
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_layout_never_moves_it(source: str, data: st.DataObject) -> None:
    tree = ast.parse(source)
    lines = ast.unparse(tree).splitlines()
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(lines)))
        lines.insert(at, data.draw(st.sampled_from(["", "# note", "    # deep note", "\f"])))
    ending = data.draw(st.sampled_from(["\n", "\r\n"]))
    assert digest({TEST: ending.join([*lines, ""]).encode()}) == digest({TEST: source.encode()})


class Mutate(ast.NodeTransformer):
    """Changes the n-th constant or operator that it meets."""

    def __init__(self, target: int) -> None:
        self.target, self.seen = target, 0

    def hit(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self.target

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not self.hit():
            return node
        value = node.value
        if isinstance(value, (bool, type(None))):
            return ast.Constant(not value)
        return ast.Constant(value + 1 if isinstance(value, (int, float)) else value + value[:1])

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self.hit():
            node.op = ast.FloorDiv()
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self.hit():
            node.ops[0] = ast.IsNot()
        return node

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        if self.hit():
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        return node


@given(source=SOURCES, target=st.integers(0, 12))
@settings(deadline=None)
def test_every_edit_moves_it(source: str, target: int) -> None:
    mutation = Mutate(target)
    tree = mutation.visit(ast.parse(source))
    changed = ast.unparse(ast.fix_missing_locations(tree))
    if mutation.seen > target:
        assert digest({TEST: changed.encode()}) != digest({TEST: source.encode()})


VALUES = [None, True, False, 0, 1, -1, 0.0, -0.0, 1.0, 1j, "1", "None", b"", b"1", (), [], {}, "a", "é", "e\u0301", ...]


def test_different_constants_have_different_forms() -> None:
    texts = [form(ast.parse("..." if value is ... else repr(value), mode="eval")) for value in VALUES]
    assert len(set(texts)) == len(texts)


def move(source: bytes) -> bytes:
    return b"# one\n\n\n" + source.replace(b"assert", b"assert \\\n     ")


@pytest.mark.parametrize("change", [move, lambda source: source.replace(b"'five'", b'"five"')], ids=["moved", "quotes"])
def test_bytecode_is_pinned_to_no_position(change: Callable[[bytes], bytes]) -> None:
    source = b"class T:\n    def test_x(self):\n        f = lambda: [i for i in (1, 2)]\n        assert f() == ['five', 2]\n"
    assert bytecode_hash(change(source), TEST, "T::test_x") == bytecode_hash(source, TEST, "T::test_x")
    inner = source.replace(b"(1, 2)", b"(1, 3)")
    assert bytecode_hash(inner, TEST, "T::test_x") != bytecode_hash(source, TEST, "T::test_x")


def test_bytecode_executes_nothing() -> None:
    source = b"import sys\nsys.exit(3)\ndef test_x(): pass\n"
    assert len(bytecode_hash(source, TEST, "test_x")) == 64
    with pytest.raises(Unresolved, match="no code"):
        bytecode_hash(source, TEST, "test_y")
