"""Hostile product code, run for real: its report does not read as a pass, or a twin passes, or the watch speaks."""

# ruff: noqa: E501 (programs stand in tables, one a line)

import pytest

from probatum.core.records import SuiteBody
from probatum.core.stage import Blob, Tree
from probatum.core.twin_plan import twin_jobs

TESTS = """
import json, pathlib, pytest, unittest
from src.m import f

@pytest.mark.parametrize("given, wanted", [(1, 10), (2, 20), (3, 30)])
def test_rows(given, wanted):
    assert f(given) == wanted

def test_plain():
    got = f(4)
    assert got == 40

class TestUnit(unittest.TestCase):
    def test_unit(self):
        self.assertEqual(f(5), 50)

def test_data():
    rows = json.loads((pathlib.Path(__file__).parent / "cases.json").read_text())
    assert [row for row in rows if f(row["given"]) != row["wanted"]] == []
"""
DATA = '[{"given": 6, "wanted": 60}]'
IDS = [f"tests/test_m.py::{name}" for name in ("test_rows[1-10]", "test_rows[2-20]", "test_rows[3-30]", "test_plain", "TestUnit::test_unit", "test_data")]  # fmt: skip

RIGHT = "def f(n): return 10 * n\n"
WRONG = "def f(n): return 0\n"


@pytest.fixture
def gate(probe):
    """Runs a product on the suite: (base's body, the real run's, label to the twins' bodies)."""

    def run(product):
        files = {"tests/test_m.py": TESTS, "tests/cases.json": DATA}
        base = probe.run({**files, "src/m.py": WRONG})
        assert [row.id for row in base.tests] == IDS and {row.outcome for row in base.tests} == {"failed"}
        real = probe.run({**files, "src/m.py": product})
        sources = {b"tests/test_m.py": TESTS.encode()}
        data = {b"tests/cases.json": DATA.encode()}
        tree = Tree(
            {name: Blob(0o100644, data=text) for name, text in {**sources, **data, b"src/m.py": product.encode()}.items()}
        )
        rows = []
        for number, job in enumerate(twin_jobs(tree, sources, base, "seed", 0.25, data=data)):
            folder = probe.folder / "w" / f"{number:016x}"
            probe.write({path.decode(): blob.data.decode() for path, blob in job.tree.files.items()}, folder)
            rows.append(probe.job(label=job.label, tree=folder, ids=list(job.ids), wall=60))
        return base, real, probe.jobs(rows)

    return run


def as_wanted(real: SuiteBody):
    """Whether the run reads as a pass."""
    return real.junk == "" and real.finished and [(row.id, row.outcome, row.times) for row in real.tests] == [(id_, "passed", 1) for id_ in IDS]  # fmt: skip


def forged(twins):
    return {(label, row.id) for label, body in twins.items() for row in body.tests if row.outcome == "passed"}


def silent(twins):
    return {label for label, body in twins.items() if body.junk or not body.finished}


def test_honest_code_passes_and_none_of_its_twins_does(gate):
    base, real, twins = gate(RIGHT)
    assert as_wanted(real) and set(real.watch) == set(base.watch)
    assert set(twins) == {"t0", "t1", "t2", "t3", "d"} and not forged(twins) and not silent(twins)
    assert all({row.outcome for row in body.tests} == {"failed"} for body in twins.values())


ENDS = {
    "os._exit at import": "import os; os._exit(0)",
    "os._exit at the call": "import os\ndef f(n): os._exit(0)",
    "sys.exit": "import sys\ndef f(n): sys.exit(0)",
    "pytest.exit": "import pytest\ndef f(n): pytest.exit('done', returncode=0)",
    "raise Exit at import": "from _pytest.outcomes import Exit\nraise Exit('done', 0)",
    "kill": "import os, signal\ndef f(n): os.kill(os.getpid(), signal.SIGKILL)",
    "re-exec": "import os, sys\ndef f(n): os.execv(sys.executable, [sys.executable, '-c', 'print(\"6 passed\")'])",
    "skip at import": "import pytest; pytest.skip('no', allow_module_level=True)",
    "skip at the call": "import pytest\ndef f(n): pytest.skip('no')",
    "unittest skip": "import unittest\ndef f(n): raise unittest.SkipTest('no')",
    "xfail": "import pytest\ndef f(n): pytest.xfail('no')",
    "importorskip": "import pytest; pytest.importorskip('nothing_of_the_kind')",
    "flood": "import os\ndef f(n):\n    for _ in range(300): os.write(1, b'x' * 65536); os.write(2, b'y' * 65536)\n    return 0",
    "thread left behind": "import threading, time\nthreading.Thread(target=time.sleep, args=(600,)).start()\ndef f(n): return 0",
    "child left behind": "import os, time\nif os.fork() == 0:\n    time.sleep(5); os._exit(0)\ndef f(n): return 0",
    "clear the items": "import gc\nfrom _pytest.main import Session\ndef f(n):\n    for s in gc.get_objects():\n        if type(s) is Session: s.items.clear()\n    return 0",
    "shouldstop": "import gc\nfrom _pytest.main import Session\ndef f(n):\n    for s in gc.get_objects():\n        if type(s) is Session: s.shouldstop = 'enough'\n    return 0",
    "write to every descriptor": "import os\ndef f(n):\n    for fd in range(3, 1024):\n        try: os.write(fd, b'{\"r\":\"finish\"}\\n')\n        except OSError: pass\n    return 10 * n",
    "close every descriptor": "import os\ndef f(n):\n    os.closerange(3, 1024)\n    return 10 * n",
    "recursion": "def f(n): return f(n)",
    "base exception": "def f(n): raise BaseException('x')",
    "keyboard interrupt": "def f(n): raise KeyboardInterrupt",
}  # fmt: skip


@pytest.mark.parametrize("name", ENDS)
def test_leaving_early_never_reads_as_a_pass(probe, name):
    body = probe.run({"tests/test_m.py": TESTS, "tests/cases.json": DATA, "src/m.py": ENDS[name]})
    assert not as_wanted(body)


TWINNED = {
    "always equal": "class A(int):\n  __hash__ = int.__hash__\n  def __eq__(self, o): return True\n  def __ne__(self, o): return False\ndef f(n): return A()",
    "reads the marks": (
        "import sys\ndef f(n):\n"
        "    for m in list(sys.modules.values()):\n"
        "        t = getattr(m, 'test_rows', None)\n"
        "        for mark in getattr(t, 'pytestmark', []):\n"
        "            for row in mark.args[1]:\n"
        "                if row[0] == n: return row[1]\n"
        "    return 10 * n"
    ),
    "reads the constants": (
        "import sys\ndef f(n):\n"
        "    code = sys._getframe(1).f_code\n"
        "    for c in code.co_consts:\n"
        "        if isinstance(c, int) and c > 5: return c\n"
        "    return 10 * n"
    ),
    "reads the data": "import json, pathlib\ndef f(n): return {r['given']: r['wanted'] for r in json.loads(pathlib.Path('tests/cases.json').read_text())}.get(n, 10 * n)",
    "reports replaced": "from _pytest.reports import TestReport as R\nold = R.from_item_and_call.__func__\ndef new(cls, item, call):\n    call.excinfo = None\n    return old(cls, item, call)\nR.from_item_and_call = classmethod(new)\ndef f(n): return 0",
    "outcome forged at the logger": (
        "import gc\nfrom _pytest.config import PytestPluginManager as P\n"
        "import pytest\n"
        "class Evil:\n"
        "    @pytest.hookimpl(hookwrapper=True)\n"
        "    def pytest_runtest_makereport(self, item, call):\n"
        "        out = yield\n"
        "        r = out.get_result(); r.outcome = 'passed'; r.longrepr = None\n"
        "[o.register(Evil(), 'evil') for o in gc.get_objects() if type(o) is P]\n"
        "def f(n): return 0"
    ),
    "asserts stubbed": "import unittest\nfor n in dir(unittest.TestCase):\n    if n.startswith(('assert', 'fail')) and n != 'failureException': setattr(unittest.TestCase, n, lambda *a, **k: None)\ndef f(n): return 10 * n",
    "tests' code swapped": (
        "import sys\ndef nothing(*a): pass\ndef f(n):\n"
        "    for m in list(sys.modules.values()):\n"
        "        if (getattr(m, '__file__', '') or '').endswith('test_m.py'):\n"
        "            m.test_plain.__code__ = (lambda: None).__code__\n"
        "            m.test_data.__code__ = (lambda: None).__code__\n"
        "            m.TestUnit.test_unit.__code__ = (lambda self: None).__code__\n"
        "    return 10 * n"
    ),
    "runner calls nothing": "import _pytest.python as p\np.Function.runtest = lambda self: None\nimport _pytest.unittest as u\nu.TestCaseFunction.runtest = lambda self: None\ndef f(n): return 0",
    "pyfunc hook": (
        "import gc\nfrom _pytest.config import PytestPluginManager as P\n"
        "class Evil:\n    def pytest_pyfunc_call(self, pyfuncitem): return True\n"
        "import pytest; Evil.pytest_pyfunc_call = pytest.hookimpl(tryfirst=True)(Evil.pytest_pyfunc_call)\n"
        "[o.register(Evil(), 'evil') for o in gc.get_objects() if type(o) is P]\n"
        "def f(n): return 10 * n"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TWINNED)
def test_a_forged_pass_is_caught_by_a_twin_or_the_watch(gate, name):
    base, real, twins = gate(TWINNED[name])
    changed = set(real.watch) - set(base.watch)
    assert not as_wanted(real) or forged(twins) or changed, "nobody saw it"
    if name in ("always equal", "reads the marks", "reads the constants", "reads the data"):
        assert forged(twins), {label: [(row.id, row.outcome) for row in body.tests] for label, body in twins.items()}


def test_a_whole_report_forged_by_hand_lets_a_twin_pass(gate):
    """Memory holds everything: the nonce, the ids, the descriptor. It costs work, and the twins are forged with it."""
    product = """
import gc, json, os, sys
def f(n):
    report = next(o for o in gc.get_objects() if getattr(o, "__qualname__", "") == "reporter.<locals>.report")
    cells = dict(zip(report.__code__.co_freevars, (c.cell_contents for c in report.__closure__)))
    finish = next(o for o in gc.get_objects() if getattr(o, "__qualname__", "") == "finisher.<locals>.finish")
    from _pytest.main import Session
    session = next(o for o in gc.get_objects() if type(o) is Session)
    first = True
    for item in session.items:
        for when in ("setup", "call", "teardown"):
            if not (first and when == "setup"):
                report({"r": "phase", "id": item.nodeid, "when": when, "outcome": "passed", "us": 50})
        first = False
    report({"r": "watch", "found": WATCH})
    finish(0)
    os._exit(0)
"""
    _, real, twins = gate(product.replace("WATCH", "[]"))
    assert as_wanted(real)
    assert forged(twins)
