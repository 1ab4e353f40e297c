"""In disguise product code finds nothing that says that it is tested; tests and their fixtures find everything."""

# ruff: noqa: E501 (programs stand in tables, one a line)

from pathlib import Path

import pytest

from probatum.core import testimony

PROBE = Path(testimony.__file__).parents[1] / "probe"
SECRET = {
    "tests/sealed/test_m.py": """
        import os, pathlib, sys, pytest
        from src import m

        @pytest.fixture
        def made(): return m.tested()

        def test_call(): assert m.tested()
        def test_import(): assert m.AT_IMPORT
        def test_fixture(made): assert made
        """,
    "tests/sealed/cases.json": "[1]",
    "tests/fixtures/data.txt": "data",
}
EPOCH = 1_705_000_000


def disguised(probe, product, files=None, **options):
    """The disguised run of a product module ``src/m.py`` with a function ``tested``, called at import, by a fixture and by a test."""
    probe.write({**SECRET, **(files or {}), "src/m.py": product + "\nAT_IMPORT = tested()\n"})
    worn = {"epoch": EPOCH, "hidden": ["tests", "tests/sealed", "tests/sealed/test_m.py"]}
    sealed = ["tests/sealed/test_m.py", *(name for name in files or () if name.startswith("tests/"))]
    return probe.run(disguise=worn, sealed=sealed, **options)


TELLS = {
    "PYTEST_CURRENT_TEST": "import os\ndef tested(): return 'PYTEST_CURRENT_TEST' in os.environ or os.getenv('PYTEST_CURRENT_TEST') is not None",
    "PYTEST_VERSION": "import os\ndef tested(): return 'PYTEST_VERSION' in os.environ",
    "any PYTEST name": "import os\ndef tested(): return any('PYTEST' in name for name in os.environ)",
    "a child's environment": "import subprocess\ndef tested(): return 'PYTEST' in subprocess.run('env', capture_output=True, text=True).stdout",
    "PYTHONHASHSEED": "import os\ndef tested(): return 'PYTHONHASHSEED' in os.environ",
    "PYTHONDONTWRITEBYTECODE": "import os\ndef tested(): return 'PYTHONDONTWRITEBYTECODE' in os.environ",
    "SOURCE_DATE_EPOCH": "import os\ndef tested(): return 'SOURCE_DATE_EPOCH' in os.environ",
    "the clock's value": "import time\ndef tested(): return int(time.time()) == 1700000000",
    "the date": "import datetime\ndef tested(): return datetime.date.today() == datetime.date(2023, 11, 14)",
    "the probe's folder": f"import os\ndef tested(): return os.path.exists({str(PROBE)!r}) or os.path.exists({str(PROBE / 'run.py')!r})",
    "HOME": "import os\nHERE = os.environ['TMPDIR']\ndef tested(): return os.path.expanduser('~') == HERE or bool(os.listdir(os.environ['HOME']))",
    "argv": "import sys\ndef tested(): return any('run.py' in arg or 'test_' in arg for arg in [*sys.argv, *getattr(sys, 'orig_argv', ())])",
    "the main file": "import sys\ndef tested(): return 'run.py' in getattr(sys.modules['__main__'], '__file__', '')",
    "pytest is loaded": "import sys\ndef tested(): return 'pytest' in sys.modules",
    "anything of pytest is loaded": "import sys\ndef tested(): return any(name.startswith(('pytest', '_pytest', 'pluggy', 'iniconfig')) for name in list(sys.modules))",
    "the folder is there": "from pathlib import Path\ndef tested(): return Path('tests/sealed').is_dir()",
    "its parent is there": "import os\nROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))\ndef tested(): return os.path.exists(os.path.join(ROOT, 'tests'))",
    "it is there, said crookedly": "import os\ndef tested(): return os.path.isdir('src/.././tests//sealed/.')",
    "the test is there": "import os\ndef tested(): return os.path.isfile('tests/sealed/test_m.py')",
    "lexists": "import os\ndef tested(): return os.path.lexists('tests')",
    "access": "import os\ndef tested(): return os.access('tests/sealed', os.R_OK)",
    "listdir": "import os\ndef tested(): return 'tests' in os.listdir('.') or 'tests' in os.listdir()",
    "scandir": "import os\ndef tested():\n    with os.scandir('.') as entries: return any(entry.name == 'tests' for entry in entries)",
    "iterdir": "from pathlib import Path\ndef tested(): return any(one.name == 'tests' for one in Path.cwd().iterdir())",
    "walk": "import os\ndef tested(): return any('test_m' in name for _, _, names in os.walk('.') for name in names)",
    "glob": "import glob\ndef tested(): return bool(glob.glob('tests/sealed/*.py') + glob.glob('**/test_*.py', recursive=True) + glob.glob('tests'))",
    "rglob": "from pathlib import Path\ndef tested(): return bool(list(Path('.').rglob('test_*.py')))",
    "open": "def tested():\n    try: return bool(open('tests/sealed/test_m.py').read())\n    except FileNotFoundError: return False",
    "read_text": "import pathlib\ndef tested():\n    try: return bool(pathlib.Path('tests/sealed/test_m.py').read_text())\n    except FileNotFoundError: return False",
    "os.open": "import os\ndef tested():\n    try: return bool(os.open('tests', os.O_RDONLY))\n    except FileNotFoundError: return False",
}  # fmt: skip


@pytest.mark.parametrize("name", TELLS)
def test_no_tell_is_there_in_disguise_and_every_one_is_without(probe, outcomes, name):
    everywhere = {"test_call": "failed", "test_import": "failed", "test_fixture": "failed"}
    probe.env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    assert outcomes(disguised(probe, TELLS[name])) == everywhere, probe.last.stdout
    if name in ("a child's environment", "argv", "the main file", "HOME", "any PYTEST name", "SOURCE_DATE_EPOCH"):
        return  # as the tests start the probe, or only within a test
    plain = probe.run(SECRET, freeze=True, sealed=["tests/sealed/test_m.py"])
    assert outcomes(plain)["test_call"] == "passed", probe.last.stdout


def test_a_frozen_clock_stands_at_the_other_value(probe, outcomes):
    body = disguised(probe, f"import time\ndef tested(): return time.time() == {EPOCH}", freeze=True)
    assert set(outcomes(body).values()) == {"passed"}


def test_tests_find_pytest_and_their_files(probe, outcomes):
    """Whatever a test imports late is the very pytest that runs it; the disk is whole for it, and for a product's data."""
    test = """
        import importlib, os, pathlib, sys, unittest
        import pytest
        from src import m

        HERE = pathlib.Path(__file__)

        def test_late():
            import pytest as again
            import _pytest.outcomes
            from _pytest.outcomes import Failed
            assert again is pytest and importlib.import_module("pytest") is pytest and again.fail.Exception is Failed
            with pytest.raises(ValueError, match="no"), pytest.warns(UserWarning):
                import warnings
                warnings.warn("x")
                raise ValueError("no")
            assert 0.1 + 0.2 == pytest.approx(0.3)

        def test_skip():
            import pytest
            pytest.skip("late")

        def test_importorskip():
            assert pytest.importorskip("json") and pytest.importorskip("nothing_of_the_kind")

        def test_monkeypatch(monkeypatch):
            monkeypatch.setattr("src.m.tested", lambda: 5)
            assert m.tested() == 5

        def test_capsys(capsys, tmp_path, recwarn, caplog):
            print("x")
            assert capsys.readouterr().out == "x\\n" and os.listdir(tmp_path) == []

        def test_files():
            assert HERE.exists() and HERE.read_text() and sorted(os.listdir(HERE.parent)) == ["cases.json", "test_m.py", "test_n.py"]
            assert "tests" in os.listdir(HERE.parents[2]) and os.path.isdir("tests")
            assert m.data(HERE.parents[1] / "fixtures" / "data.txt") == "data" and m.data(HERE.parent / "cases.json") == "[1]"
            assert m.names(HERE.parents[1] / "fixtures") == ["data.txt"]
            assert m.resolved(HERE) == HERE.resolve() and os.stat in os.supports_fd

        class TestUnit(unittest.TestCase):
            def test_unit(self):
                import pytest
                with self.assertRaises(KeyError):
                    {}["x"]
        """
    product = "import os\ndef data(path): return path.read_text()\ndef names(path): return os.listdir(path)\ndef resolved(path): return path.resolve(strict=True)\ndef tested(): return False"
    body = disguised(probe, product, {"tests/sealed/test_n.py": test})
    found = {name: word for name, word in outcomes(body).items() if name not in ("test_call", "test_import", "test_fixture")}
    skipped = ("test_skip", "test_importorskip")
    assert found == {name: "skipped" if name in skipped else "passed" for name in found} and len(found) == 7, probe.last.stdout
    assert body.watch == ()


LOOKS = {
    "import sys\ndef tested(): return sys._getframe(1)": "sys._getframe",
    "import inspect\ndef tested(): return inspect.currentframe()": "sys._getframe",
    "import inspect\ndef tested(): return inspect.stack(0)": "sys._getframe",
    "import traceback\ndef tested(): return traceback.extract_stack()": "sys._getframe",
    "import sys\ndef tested(): return eval('sys._getframe()')": "sys._getframe",
    "import sys\ndef tested(): return sys._current_frames()": "sys._current_frames",
    "import gc\ndef tested(): return gc.get_objects()": "gc.get_objects",
    "import gc\ndef tested(): return gc.get_referrers(tested)": "gc.get_referrers",
    "import gc\ndef tested(): return gc.get_referents(tested)": "gc.get_referents",
    "import sys\ndef tested(): sys.settrace(None)": "sys.settrace",
    "def tested():\n    try: 1 / 0\n    except Exception as e: return e.__traceback__.tb_frame.f_back": "tb_frame",
    "def tested():\n    try: open('tests/sealed/test_m.py')\n    except OSError: pass": "a sealed test",
    "import tokenize, pathlib\ndef tested(): return tokenize.open(pathlib.Path('tests/sealed/test_m.py'))": "a sealed test",
}  # fmt: skip


@pytest.mark.parametrize("product", LOOKS)
def test_looks_are_noted_with_their_file(probe, product):
    body = disguised(probe, product)
    assert f"looks: {LOOKS[product]} from src/m.py" in body.watch
    assert not [line for line in probe.run(SECRET).watch if line.startswith("looks: ")]


HONEST = {
    "logging": "import logging\ndef tested(): logging.getLogger('a').warning('x', stack_info=True, stacklevel=2)",
    "logged exceptions": "import logging\ndef tested():\n    try: 1 / 0\n    except Exception: logging.exception('x')",
    "warnings": "import warnings\ndef tested(): warnings.warn('x', stacklevel=2)",
    "formatted exceptions": "import traceback\ndef tested():\n    try: 1 / 0\n    except Exception: return traceback.format_exc()",
    "classes": "import collections, dataclasses, enum, typing\n@dataclasses.dataclass\nclass D:\n    x: int\ndef tested(): return collections.namedtuple('A', 'b'), enum.Enum('E', 'a'), typing.NamedTuple('N', [('a', int)]), typing.TypeVar('T')",
    "signatures": "import inspect\ndef tested(): return inspect.signature(tested), inspect.getmembers(tested), inspect.getdoc(tested)",
    "its own source": "import inspect\ndef tested(): return inspect.getsource(inspect.currentframe) and open(__file__).read()",
    "a pool": "import concurrent.futures\ndef tested():\n    with concurrent.futures.ThreadPoolExecutor(2) as pool: return list(pool.map(str, range(3)))",
    "a spawned process": "import multiprocessing, os\ndef tested():\n    if __name__ != '__mp_main__':\n        with multiprocessing.get_context('spawn').Pool(1) as pool: return pool.map(abs, [-1])",
    "its home": "import pathlib\ndef tested(): (pathlib.Path.home() / 'x').mkdir(parents=True, exist_ok=True)",
    "temporary files": "import shutil, tempfile, os\ndef tested():\n    with tempfile.TemporaryDirectory() as t: shutil.copytree('src', os.path.join(t, 'x')); shutil.rmtree(os.path.join(t, 'x'))",
}  # fmt: skip


@pytest.mark.parametrize("name", HONEST)
def test_what_honest_code_does_is_no_look(probe, name):
    body = disguised(
        probe,
        HONEST[name] + "\ndef calm(): tested(); return True",
        {"tests/sealed/test_n.py": "from src import m\ndef test_n(): assert m.calm()\n"},
    )
    assert body.watch == () and body.modules["tests/sealed/test_m.py"] == "", body
    assert next(row.outcome for row in body.tests if row.id.endswith("test_n")) == "passed", probe.last.stdout
