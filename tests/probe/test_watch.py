"""The watch sees what candidate code changes in what was loaded before it, and is quiet about honest suites."""

# ruff: noqa: E501 (programs stand in tables, one a line)

import pytest

QUIET = """
    import json, random, signal, sys, time, unittest, warnings
    from unittest import mock
    import pytest
    from src import m

    def fake(): return 1.0

    def test_monkeypatch(monkeypatch):
        monkeypatch.setattr(time, "time", fake)
        monkeypatch.setattr(m, "answer", lambda: 3)
        monkeypatch.setattr("random.random", lambda: 0)
        assert time.time() == 1.0 and m.answer() == 3
    @mock.patch("time.sleep")
    @mock.patch.object(json, "dumps", return_value="x")
    def test_mock(dumps, sleep):
        time.sleep(100); assert json.dumps(1) == "x"
    class TestUnit(unittest.TestCase):
        def setUp(self):
            self.patch = mock.patch("os.getcwd", return_value="/"); self.patch.start(); self.addCleanup(self.patch.stop)
        def test_cwd(self):
            import os; self.assertEqual(os.getcwd(), "/")
    def test_signal():
        old = signal.signal(signal.SIGUSR1, lambda *a: None); signal.signal(signal.SIGUSR1, old)
    def test_late_imports():
        import statistics, decimal, email.mime.text, http.client, typing, dataclasses, logging.config, xml.dom.minidom, asyncio
        @dataclasses.dataclass
        class A: x: int = 1
        assert statistics.mean([1, 2]) == 1.5 and asyncio.run(m.later()) == 1
    def test_warnings():
        with pytest.warns(UserWarning): warnings.warn("x")
        with warnings.catch_warnings(record=True) as found: warnings.simplefilter("always"); warnings.warn("y")
        assert len(found) == 1
    def test_recursion(): sys.setrecursionlimit(sys.getrecursionlimit()); m.deep(50)
    """

PRODUCT = """
    import functools, logging, enum, typing, contextlib, dataclasses, abc
    log = logging.getLogger(__name__)
    @functools.lru_cache
    def answer(): return 42
    async def later(): return 1
    def deep(n): return n and deep(n - 1)
    @dataclasses.dataclass(order=True)
    class Point: x: int; y: int = 0
    class Colour(enum.Enum): RED = 1
    class Base(abc.ABC):
        @abc.abstractmethod
        def f(self): ...
    @contextlib.contextmanager
    def cm(): yield
    """


def test_an_honest_suite_changes_nothing_that_an_empty_one_does_not(probe):
    empty = probe.run({"src/m.py": "", "tests/test_quiet.py": "def test_a(): pass"})
    body = probe.run({"src/m.py": PRODUCT, "tests/test_quiet.py": QUIET})
    assert [row.signature for row in body.tests if row.outcome != "passed"] == []
    assert set(body.watch) == set(empty.watch)


HOSTILE = {
    "time": ("import time; time.perf_counter = lambda: 0.0", "time.perf_counter"),
    "builtin-for-builtin": ("import time; time.perf_counter = time.monotonic", "time.perf_counter"),
    "random": ("import random; random.Random.random = lambda self: 0.5", "random.Random.random"),
    "random-instance": ("import random; random._inst = random.Random(5); random.random = random._inst.random", "random.random"),
    "assert-equal": ("import unittest; unittest.TestCase.assertEqual = lambda *a, **k: None", "unittest.case.TestCase.assertEqual"),
    "code": ("import unittest\ndef f(self, a, b, msg=None): pass\nunittest.TestCase.assertEqual.__code__ = f.__code__", "assertEqual: another code"),
    "defaults": ("import json; json.dumps.__kwdefaults__['sort_keys'] = True", "json.dumps: another keyword defaults"),
    "late": ("import statistics; statistics.mean = lambda data: 0", "statistics.mean"),
    "late-own-code": ("import statistics; statistics.mean = statistics.median", "statistics.mean"),
    "runner": ("import _pytest.runner as r; old = r.CallInfo.from_call; r.CallInfo.from_call = lambda *a, **k: old(*a, **k)", "CallInfo.from_call"),
    "raises": ("import pytest\nclass R:\n  def __init__(self,*a,**k): pass\n  def __enter__(self): return self\n  def __exit__(self,*a): return True\npytest.raises = R", "pytest.raises"),
    "shadowed-global": ("import _pytest.raises as p; p.isinstance = lambda a, b: True", "_pytest.raises.isinstance"),
    "shadowed-method": ("import unittest; unittest.FunctionTestCase.assertEqual = lambda *a: None", "FunctionTestCase.assertEqual"),
    "builtins": ("import builtins; builtins.sorted = lambda x, **k: list(x)", "builtins.sorted"),
    "meta-path": ("import sys\nclass F:\n  def find_spec(self, *a): return None\nsys.meta_path.insert(0, F())", "sys.meta_path"),
    "sys-modules": ("import sys, types, random; sys.modules['random'] = types.ModuleType('random')", "sys.modules[random]"),
    "trace": ("import sys; sys.settrace(lambda *a: None)", "sys.settrace"),
    "profile": ("import threading; threading.setprofile(lambda *a: None)", "threading.setprofile"),
    "signal": ("import signal; signal.signal(signal.SIGUSR2, lambda *a: None)", "signal 12"),
    "gc": ("import gc; gc.callbacks.append(lambda *a: None)", "gc.callbacks"),
    "operator": ("import operator; operator.eq = lambda a, b: True", "operator.eq"),
    "eq-always-replacement": ("import time\nclass E:\n  def __eq__(self, o): return True\n  def __call__(self): return 0.0\ntime.perf_counter = E()", "time.perf_counter"),
    "blind-the-watch": ("import builtins, time; builtins.all = lambda x: True; builtins.map = lambda *a: []; time.time = lambda: 0", "time.time"),
    "claimed-file": ("import time\nexec(compile('def now(): return 0.0', __file__.replace('src/m.py', 'tests/test_m.py'), 'exec'))\ntime.time = now", "time.time"),
    "hook": (
        "import gc\nfrom _pytest.config import PytestPluginManager as P\n"
        "class Evil:\n  def pytest_runtest_makereport(self, item, call): pass\n"
        "[o.register(Evil(), 'evil') for o in gc.get_objects() if type(o) is P]",
        "hook pytest_runtest_makereport evil",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_the_product_changes_at_import_is_seen(probe, name):
    code, seen = HOSTILE[name]
    body = probe.run({"src/m.py": code, "tests/test_m.py": "def test_a():\n    import src.m\ndef test_b(): pass"})
    assert any(seen in change for change in body.watch), body.watch


def test_what_is_put_back_before_the_end_is_seen(probe):
    body = probe.run(
        {
            "src/m.py": """
                import time
                real = time.perf_counter
                def begin(): time.perf_counter = lambda: 0.0
                def end(): time.perf_counter = real
                """,
            "tests/test_m.py": "from src import m\ndef test_a(): m.begin()\ndef test_b(): m.end()",
        }
    )
    assert "time.perf_counter: now src/m.py:begin.<locals>.<lambda>" in body.watch


def test_a_patch_that_the_fixture_hides_is_seen_while_the_test_runs(probe):
    """monkeypatch would put it back; the product's own function in a hot place counts at once."""
    body = probe.run(
        {
            "src/m.py": "import time\ndef slow(): return 0.0\ndef work(): time.perf_counter = slow",
            "tests/test_m.py": """
                import time
                from src import m
                def test_a(monkeypatch):
                    monkeypatch.setattr(time, "perf_counter", time.perf_counter)
                    m.work()
                """,
        }
    )
    assert any("time.perf_counter: now src/m.py:slow" in change for change in body.watch), body.watch


def test_another_code_under_a_tests_name_is_seen(probe):
    body = probe.run(
        {
            "src/m.py": """
                import sys
                def nothing(): pass
                def work():
                    for module in list(sys.modules.values()):
                        if getattr(module, "__file__", "") and "test_m" in module.__file__:
                            module.test_b.__code__ = nothing.__code__
                """,
            "tests/test_m.py": "from src import m\ndef test_a(): m.work()\ndef test_b(): assert False",
        }
    )
    assert any("test_b" in change and "code" in change for change in body.watch)
