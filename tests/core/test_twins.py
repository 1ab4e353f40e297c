"""Twins keep lines, names and ids, change only what decides, and cannot pass with the code that the tests were written for."""

import ast
import inspect
import json
import textwrap
import unittest
import unittest.case

import pytest
from _pytest import unittest as pytest_unittest
from hypothesis import given, settings
from hypothesis import strategies as st

from probatum.core.records import SuiteBody, TestRow
from probatum.core.stage import Blob, End, Tree
from probatum.core.twin_data import data_twin
from probatum.core.twin_plan import real_tree, twin_jobs
from probatum.core.twins import KINDS, sites, twin


def names(source):
    """Node ids of a module's tests, as pytest would give them without parameters."""
    tree = ast.parse(source)
    found = [f"t.py::{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found += [f"t.py::{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)]
    return [each for each in found if "test" in each.rpartition("::")[2]]


def made(text, kind, ids=None, nonce="n"):
    """The twin's text without its closing comment; None where the kind does not apply."""
    source = textwrap.dedent(text).encode()
    chosen = [(site, kind) for site in sites(source, ids or names(source), nonce) if kind in site.edits]
    if not chosen:
        return None
    result = twin(source, chosen, nonce)
    assert result is not None
    # The closing comment is one more line, and so is a raise after a compound statement that ends the file.
    assert result.count(b"\n") - source.count(b"\n") - (not source.endswith(b"\n")) in (1, 2 if kind == "end" else 1)
    return result.decode().rpartition("# ")[0]


def outcome(text, name="test_a"):
    """What the test does when it is called plainly."""
    space = {"__name__": "t"}
    exec(compile(text, "t.py", "exec"), space)
    try:
        space[name]()
    except AssertionError:
        return "failed"
    return "passed"


PLAIN = {
    "number": "def test_a():\n    assert 2 + 2 == 4\n",
    "left": "def test_a():\n    assert 4 == int('4')\n",
    "negative": "def test_a():\n    assert int('-4') == -4\n",
    "float": "def test_a():\n    assert float('inf') > 1 and float('1.5') == 1.5\n",
    "text": "def test_a():\n    assert str(12) == '12', 'message'\n",
    "bytes": "def test_a():\n    assert bytes(2) == b'\\0\\0'\n",
    "boolean": "def test_a():\n    assert bool(1) is True\n",
    "equal none": "def test_a():\n    assert print() == None\n",
    "list": "def test_a():\n    assert list('ab') == [\n        'a',\n        'b',  # last\n    ]\n",
    "nested": "def test_a():\n    assert dict(a=(1, [2])) == {'a': (1, [2])}\n",
    "empty": "def test_a():\n    assert list('') == []\n    assert tuple('') == ()\n    assert dict() == {}\n",
    "calls": "def test_a():\n    assert [abs(-3)] == [abs(3)]\n",
    "multi-line text": 'def test_a():\n    assert "a\\nb" == """a\nb"""\n',
    "implicit": "def test_a():\n    assert 'ab' == ('a'\n        'b')\n",
    "local name": "def test_a():\n    want = 3\n    got = 1 + 2\n    assert got == want\n",
    "with": "import warnings\ndef test_a():\n    with warnings.catch_warnings():\n        assert 1 + 1 == 2\n",
    "loop": "def test_a():\n    for n in (1, 2):\n        assert n * 0 == 0\n",
    "one line": "def test_a(): assert 1 + 1 == 2\n",
    "semicolon": "def test_a():\n    x = 1; assert x + 1 == 2; x = 3\n",
    "no line end": "def test_a():\n    assert 1 + 1 == 2",
    "accents": "def test_a():\n    é = 'ü'; assert é + 'x' == 'üx', 'ß'\n",
    "conjunction": "def test_a():\n    assert 1 and 'a' + 'b' == 'ab' and 2\n",
    "backslash": "def test_a():\n    assert 1 + 1 \\\n        == 2\n",
    "finally": "def test_a():\n    try:\n        assert 1 + 1 == 2\n    finally:\n        pass\n\n",
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PLAIN)
def test_no_kind_of_twin_passes(name, kind):
    text = PLAIN[name]
    assert outcome(text) == "passed"
    changed = made(text, kind)
    if changed is None:
        assert (name, kind) == ("boolean", "value")
    else:
        assert outcome(changed) == "failed", changed


NOT_REACHED = {
    "after a return": "def test_a():\n    if True:\n        return\n    assert 1 == 1\n",
    "in an if": "def test_a():\n    if False:\n        assert 1 == 1\n    else:\n        pass\n    return\n",
    "in a loop over nothing": "def test_a():\n    for n in []:\n        assert 1 == 1\n    return\n",
    "in a loop that breaks": "def test_a():\n    for n in (1,):\n        break\n        assert 1 == 1\n    return\n",
    "where it has to fail": "def test_a():\n    with pytest.raises(ValueError):\n        assert 1 == 2\n    return\n",
    "in assertRaises": "def test_a(self):\n    with self.assertRaises(AssertionError):\n        assert 1 == 2\n    return\n",
    "in an unknown manager": "def test_a():\n    with swallow():\n        assert 1 == 2\n    return\n",
    "in a handled try": "def test_a():\n    try:\n        assert 1 == 2\n    except Exception:\n        pass\n    return\n",
    "under a finally that returns": "def test_a():\n    try:\n        assert 1 == 2\n    finally:\n        return\n",
    "in a nested function": "def test_a():\n    def inner():\n        assert 1 == 2\n    return inner\n",
    "in a lambda": "def test_a():\n    x = lambda: self.assertEqual(1, 2)\n    return x\n",
    "in a generator": "def test_a():\n    yield\n    assert 1 == 1\n",
}


@pytest.mark.parametrize("name", NOT_REACHED)
def test_what_is_not_certainly_reached_is_left_alone(name):
    assert sites(NOT_REACHED[name].encode(), ["t.py::test_a"], "n")[0].edits == {}


BOUNDS = {
    "less": "def test_a():\n    assert f(3) < 4\n    return\n",
    "membership": "def test_a():\n    assert f(3) in (4, 5)\n    return\n",
    "not equal": "def test_a():\n    assert f(3) != 4\n    return\n",
    "almost": "def test_a(self):\n    self.assertAlmostEqual(f(3), 4)\n    return\n",
    "chained": "def test_a():\n    assert 1 == f(3) == 1\n    return\n",
    "an input too": "def test_a():\n    want = 3\n    assert f(want) == want\n    return\n",
    "is none": "def test_a():\n    assert f(3) is None\n    return\n",
}


@pytest.mark.parametrize("name", BOUNDS)
def test_inputs_and_bounds_are_never_changed(name):
    edits = sites(BOUNDS[name].encode(), ["t.py::test_a"], "n")[0].edits
    assert "value" not in edits


UNITTEST = """
import unittest

class Base(unittest.TestCase):
    def test_shared(self):
        self.assertEqual([1], [1])

class TestA(Base):
    def test_a(self):
        self.assertEqual(
            sum([1, 2]),
            3,
        )
    def test_b(self):
        with self.subTest(n=1):
            self.assertTrue(1 + 1 == 2)
        with self.assertRaises(ValueError):
            int("x")
"""


@pytest.mark.parametrize("kind", KINDS)
def test_unittest_methods_have_twins_inherited_ones_too(kind):
    ids = ["t.py::Base::test_shared", "t.py::TestA::test_shared", "t.py::TestA::test_a", "t.py::TestA::test_b"]
    found = sites(UNITTEST.encode(), ids, "n")
    assert [site.ids for site in found] == [tuple(ids[:2]), (ids[2],), (ids[3],)]
    space = {"__name__": "t"}
    exec(compile(made(UNITTEST, kind, ids), "t.py", "exec"), space)
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(space["TestA"])
    result = suite.run(unittest.TestResult())
    reached = sum(kind in site.edits for site in found)
    assert len(result.failures) == reached and not result.errors and reached >= 2


ROWS = {
    "plain": ('@pytest.mark.parametrize("source, expected", [("1", 1), ("2", 2)])', ["1-1", "2-2"]),
    "names": ('@pytest.mark.parametrize(["source", "expected"], (["1", 1], ["2", 2],))', ["1-1", "2-2"]),
    "ids": ('@pytest.mark.parametrize("source, expected", [("1", 1), ("2", 2)], ids=["a", "b"])', ["a", "b"]),
    "param": ('@pytest.mark.parametrize("source, expected", [pytest.param("1", 1, id="x"), ("2", 2)])', ["x", "2-2"]),
    "lines": (
        '@pytest.mark.parametrize(\n    "source, expected",\n    [\n        ("1", 1),\n        ("2", 2),\n    ],\n)',
        ["1-1", "2-2"],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_expectations_in_rows_are_changed_and_ids_stay(name):
    mark, brackets = ROWS[name]
    source = f"import pytest\n{mark}\ndef test_a(source, expected):\n    assert int(source) == expected\n"
    changed = made(source, "value", [f"t.py::test_a[{each}]" for each in brackets])
    space = {}
    exec(changed, space)
    table = space["test_a"].pytestmark[0]
    values = [getattr(row, "values", row) for row in table.args[1]]
    assert [row[0] for row in values] == ["1", "2"] and all(int(row[0]) != row[1] for row in values)
    assert table.kwargs["ids"] == brackets
    assert "assert int(source) == expected" in changed


NO_ROWS = {
    "input too": ("[(1, 1)]", "assert f(expected) == expected", ["1-1"]),
    "two marks": ("[(1, 1)])\n@pytest.mark.parametrize('z', [1]", "assert f(source) == expected", ["1-1-1"]),
    "other count": ("[(1, 1), (2, 2)]", "assert f(source) == expected", ["1-1"]),
    "computed": ("[(1, f(1))]", "assert f(source) == expected", ["1-1"]),
    "escaped ids": ("[('\\n', 1)]", "assert f(source) == expected", ["\\n-1"]),
    "comprehension": ("[(n, n) for n in (1,)]", "assert f(source) == expected", ["1-1"]),
    "indirect": ("[(1, 1)], indirect=['expected']", "assert f(source) == expected", ["1-1"]),
}


@pytest.mark.parametrize("name", NO_ROWS)
def test_rows_that_cannot_be_told_stay(name):
    table, body, brackets = NO_ROWS[name]
    source = (
        f"import pytest\n@pytest.mark.parametrize('source, expected', {table})\ndef test_a(source, expected):\n    {body}\n"
    )
    found = sites(source.encode(), [f"t.py::test_a[{each}]" for each in brackets], "n")
    assert "value" not in found[0].edits and "sentinel" in found[0].edits


@pytest.mark.parametrize(
    "source",
    [b"def test_a(: pass", b"\xff\xfe", b"# coding: latin-1\nx = '\xe9'", b"def test_a():\r    assert 1 == 1\r", b"x = 1\0"],
)
def test_what_cannot_be_edited_has_no_twin(source):
    assert sites(source, ["t.py::test_a"], "n") == []


@pytest.mark.parametrize(
    "text",
    [
        "def test_a(): assert 1 == 1\ntest_a = skip(test_a)\n",
        "if x:\n    def test_a(): assert 1 == 1\n",
        "from other import test_a\n",
        "def test_b(): assert 1 == 1\n",
    ],
)
def test_a_name_that_may_mean_something_else_has_no_twin(text):
    assert sites(text.encode(), ["t.py::test_a"], "n") == []


def test_carriage_returns_and_marks_stay():
    source = b"\xef\xbb\xbfdef test_a():\r\n    assert [1] == [\r\n        1]\r\n"
    for kind in KINDS:
        result = twin(source, [(site, kind) for site in sites(source, ["t.py::test_a"], "n")], "n")
        assert result.startswith(b"\xef\xbb\xbf") and result.count(b"\r\n") == 3
        assert outcome(result) == "failed"


def test_nonces_choose_and_make_constants_fresh():
    text = "def test_a():\n    assert 1 + 1 == 2\n    assert 2 + 2 == 4\n"
    assert len({made(text, "value", nonce=str(n)) for n in range(20)}) > 10


SOURCES = [inspect.getsource(module) for module in (ast, inspect, textwrap, json, unittest.case, pytest_unittest)]


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SOURCES), st.sampled_from(KINDS), st.integers())
def test_any_source_keeps_its_lines_and_parses(source, kind, nonce):
    """Every function of a module is taken for a test."""
    tree = ast.parse(source)
    ids = [f"t.py::{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            ids += [f"t.py::{node.name}::{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)]
    chosen = [(site, kind) for site in sites(source.encode(), ids, str(nonce)) if kind in site.edits]
    result = twin(source.encode(), chosen, "n")
    assert result is not None and result.count(b"\n") - source.count("\n") in (1, 2)


def test_json_leaves_that_are_only_compared_are_changed():
    source = b"""
import json
CASES = "fixtures/cases.json"
def test_all():
    rows = json.load(open(CASES))
    assert [r for r in rows if f(r["in"]) != r["out"]] == []
def test_other(): assert True
"""
    data = b'[{"in": 1, "out": {"a": [2.5, "x", true]}, "note": "n"}]'
    changed, ids = data_twin(b"fixtures/cases.json", data, {b"t.py": source}, "n")
    (row,) = json.loads(changed)
    assert row["in"] == 1 and row["note"] == "n" and ids == {"t.py::test_all"}
    number, text, truth = row["out"]["a"]
    assert number != 2.5 and text != "x" and truth is False


@pytest.mark.parametrize(
    "use", ['f(r["out"]) == r["out"]', 'g(r["out"])', 'f(r["in"]) < r["out"]', 'r["out"] == r["out"]', 'f(r["in"]) in r["out"]']
)
def test_keys_that_may_be_inputs_stay(use):
    source = f'import json\ndef test_all():\n    r = json.load(open("cases.json"))\n    assert {use}\n'
    assert data_twin(b"cases.json", b'{"in": 1, "out": 2}', {b"t.py": source.encode()}, "n") == (None, set())


def test_tables_and_yaml_too():
    source = b'import csv\ndef test_all():\n    for r in read("cases.csv"):\n        assert f(r["a"]) == int(r["b"])\n'
    changed, _ = data_twin(b"cases.csv", b"a,b,c\n1,2,3\n4,5,6\n", {b"t.py": source}, "n")
    rows = [line.split(",") for line in changed.decode().splitlines()]
    assert [row[0] for row in rows] == ["a", "1", "4"] and [row[2] for row in rows] == ["c", "3", "6"]
    assert int(rows[1][1]) != 2 and int(rows[2][1]) != 5
    text = b'- a: 1\n  b: 2\n- a: 3\n  b: "four"\n'
    changed, _ = data_twin(b"c.yaml", text, {b"t.py": source.replace(b"cases.csv", b"c.yaml")}, "n")
    assert b"a: 1\n" in changed and b"b: 2\n" not in changed and b'"four"' not in changed


def base(rows):
    return SuiteBody(
        end=End("exited", 1), nonce_ok=True, junk="", finished=True, exitstatus=1, modules={}, collected=(), watch=(),
        tests=tuple(TestRow(id=id_, outcome=out, phases=("passed",) * 3, duration_us=us) for id_, out, us in rows),
    )  # fmt: skip


def suite(count, red=()):
    text = "".join(f"def test_{n}():\n    x = {n}\n    assert x + 1 == {n + 1}\n" for n in range(count))
    rows = [(f"t.py::test_{n}", "failed" if n in red else "passed", 1000) for n in range(count)]
    sources = {b"t.py": text.encode()}
    return Tree({b"t.py": Blob(0o100644, data=text.encode()), b"m.py": Blob(0o100644, data=b"")}), sources, base(rows)


def test_red_ids_have_every_kind_and_the_rest_a_sample():
    tree, sources, body = suite(400, red=(5, 7))
    jobs = twin_jobs(tree, sources, body, "seed", 0.25)
    assert [job.label for job in jobs] == ["t0", "t1", "t2", "t3"]
    for job in jobs:
        assert {"t.py::test_5", "t.py::test_7"} <= set(job.ids) and job.modules == (b"t.py",)
        assert job.tree.files[b"t.py"].data != sources[b"t.py"] and job.tree.files[b"m.py"] == tree.files[b"m.py"]
    assert 95 <= len(jobs[0].ids) <= 103 and all(len(job.ids) == 2 for job in jobs[1:])
    again = twin_jobs(tree, sources, body, "seed", 0.25)
    assert [(job.ids, job.tree.digest) for job in jobs] == [(job.ids, job.tree.digest) for job in again]
    other = twin_jobs(tree, sources, body, "another", 0.25)
    assert set(other[0].ids) != set(jobs[0].ids)


def test_small_suites_are_taken_whole_and_others_give_twenty():
    for count, share, least in ((7, 0.25, 7), (50, 0.0, 20), (20, 0.0, 20)):
        tree, sources, body = suite(count)
        (job,) = twin_jobs(tree, sources, body, "seed", share)
        assert len(job.ids) >= least


def test_the_check_on_base_takes_the_same_jobs_whole():
    """An earlier test of the job may leave state behind that lets a twin pass; base must have run it too."""
    tree, sources, body = suite(30, red=(5,))
    jobs = twin_jobs(tree, sources, body, "seed", 0.25)
    again = twin_jobs(tree, sources, body, "seed", 0.25, only=("t0 t.py::test_5", "t2 t.py::test_5"))
    assert [job.label for job in again] == ["t0", "t2"] and [job.ids for job in again] == [jobs[0].ids, jobs[2].ids]
    assert again[1].tree.digest == jobs[2].tree.digest


def test_modules_that_base_cannot_collect_are_taken_by_name():
    tree, sources, body = suite(3)
    late = b"import new\ndef test_new():\n    assert new.f() == 3\n"
    tree = tree.with_files({b"n.py": Blob(0o100644, data=late)})
    jobs = twin_jobs(tree, {**sources, b"n.py": late}, body, "seed", 0.25, late={b"n.py": ["test_new"]})
    assert all("n.py::test_new" in job.ids for job in jobs) and len(jobs) == 4


def test_the_disguised_job_runs_the_same_tests_unchanged():
    tree, sources, body = suite(400, red=(5, 7))
    plain = twin_jobs(tree, sources, body, "seed", 0.125)  # the disguise takes the other half
    *jobs, worn = twin_jobs(tree, sources, body, "seed", 0.25, disguise=["n.py::test_new"])
    assert [(job.label, job.ids) for job in jobs] == [(job.label, job.ids) for job in plain]
    assert not any(job.disguise for job in jobs) and worn.disguise and worn.label == "w"
    assert set(worn.ids) == {"n.py::test_new", *jobs[0].ids} and worn.tree.digest == real_tree(tree, sources, "seed").digest
    (again,) = twin_jobs(tree, sources, body, "seed", 0.25, only=["w"], disguise=["n.py::test_new"])
    assert again.ids == worn.ids
    (alone,) = twin_jobs(tree, sources, body, "seed", 0.25, only=["w t.py::test_5"], disguise=["n.py::test_new"])
    assert alone.ids == ("t.py::test_5",) and alone.modules == (b"t.py",) and alone.disguise


def test_real_run_and_twins_end_in_the_same_line():
    tree, sources, body = suite(3)
    real = real_tree(tree, sources, "seed").files[b"t.py"].data
    (job,) = twin_jobs(tree, sources, body, "seed", 0.25)
    assert real.splitlines()[-1] == job.tree.files[b"t.py"].data.splitlines()[-1]
    assert real.startswith(sources[b"t.py"]) and real != real_tree(tree, sources, "other").files[b"t.py"].data
