"""The probe runs base's own suite as pytest would, and tells all of it."""

import sys

import pytest

SUITE = """
    import unittest, pytest

    def test_good(): pass
    def test_bad(): assert 1 == 2
    @pytest.mark.skip(reason="later")
    def test_skip(): pass
    @pytest.mark.xfail(reason="known")
    def test_xfail(): raise KeyError("  a   b ")
    @pytest.mark.xfail
    def test_xpass(): pass
    @pytest.fixture
    def broken(): raise OSError("no")
    def test_setup(broken): pass
    @pytest.fixture
    def messy():
        yield
        raise OSError("late")
    def test_teardown(messy): pass
    @pytest.mark.parametrize("n", [1, 2])
    def test_param(n): assert n == 1
    class TestUnit(unittest.TestCase):
        def test_subtests(self):
            for i in range(3):
                with self.subTest(i=i):
                    self.assertNotEqual(i, 1)
        def test_skipped_subtest(self):
            with self.subTest(i=1):
                self.skipTest("not here")
        @unittest.expectedFailure
        def test_expected(self): self.fail("as known")
        @unittest.expectedFailure
        def test_unexpected(self): pass
        @unittest.skip("away")
        def test_away(self): self.fail("ran")
    @unittest.skip("whole")
    class TestWhole(unittest.TestCase):
        def test_inside(self): self.fail("inside ran")
    """


def test_every_kind_of_outcome_is_told_apart(probe, outcomes):
    body = probe.run({"tests/test_all.py": SUITE})
    assert body.junk == "" and body.finished and body.nonce_ok and body.exitstatus == 1
    assert body.modules == {"tests/test_all.py": ""}
    assert outcomes(body) == {
        "test_good": "passed",
        "test_bad": "failed",
        "test_skip": "skipped",
        "test_xfail": "xfailed",
        "test_xpass": "xpassed",
        "test_setup": "error",
        "test_teardown": "error",
        "test_param[1]": "passed",
        "test_param[2]": "failed",
        "TestUnit::test_subtests": "failed",
        "TestUnit::test_skipped_subtest": "skipped",
        "TestUnit::test_expected": "xfailed",
        "TestUnit::test_unexpected": "failed",
        "TestUnit::test_away": "skipped",
        "TestWhole::test_inside": "skipped",
    }
    rows = {row.id.rpartition("::")[2]: row for row in body.tests}
    assert set(body.collected) == {row.id for row in body.tests} and all(row.times == 1 for row in body.tests)
    assert rows["test_bad"].signature == "AssertionError: assert 1 == 2"
    assert rows["test_xfail"].signature == "KeyError: ' a b '" and rows["test_xfail"].reason == "known"
    assert rows["test_skip"].reason == "Skipped: later"
    assert rows["test_setup"].phases == ("failed", "", "passed")
    assert rows["test_subtests"].signature.startswith("AssertionError: 1 == 1")


def test_a_forced_run_runs_what_marks_would_skip(probe, outcomes):
    body = probe.run({"tests/test_all.py": SUITE}, strip=True)
    assert outcomes(body) | {
        "test_skip": "passed",
        "test_xfail": "failed",
        "test_xpass": "passed",
        "TestUnit::test_expected": "failed",
        "TestUnit::test_unexpected": "passed",
        "TestUnit::test_away": "failed",
        "TestWhole::test_inside": "failed",
    } == outcomes(body)


def test_module_marks_and_imperative_xfail_are_forced_too(probe, outcomes):
    body = probe.run(
        {
            "tests/test_marked.py": """
                import pytest, unittest
                pytestmark = [pytest.mark.skip(reason="all")]
                def test_a(): assert False, "ran"
                class TestB:
                    pytestmark = pytest.mark.skipif(True, reason="here")
                    def test_b(self): pytest.xfail("now")
                @unittest.skip("plain")
                def test_c(): assert 0, "c ran"
                @pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.xfail(run=False))])
                def test_d(n): raise KeyError(n)
                """
        },
        strip=True,
    )
    assert outcomes(body) == {"test_a": "failed", "TestB::test_b": "passed", "test_c": "failed", "test_d[1]": "failed"}


def test_only_the_ids_asked_for_run(probe, outcomes):
    wanted = ["tests/test_all.py::test_param[2]", "tests/test_all.py::test_good"]
    body = probe.run({"tests/test_all.py": SUITE}, ids=wanted)
    assert outcomes(body) == {"test_good": "passed", "test_param[2]": "failed"}


def test_collection_errors_and_module_skips_are_reported(probe):
    body = probe.run(
        {
            "tests/test_a.py": "import nothing_of_the_kind",
            "tests/test_b.py": "import pytest; pytest.skip('not today', allow_module_level=True)",
            "tests/test_c.py": "import pytest; pytest.importorskip('nothing_of_the_kind')",
            "tests/test_d.py": "def test_d(): pass",
            "tests/test_e.py": "def test_e(: pass",
        }
    )
    assert body.modules["tests/test_a.py"] == "ModuleNotFoundError: No module named 'nothing_of_the_kind'"
    assert body.modules["tests/test_b.py"] == "Skipped: not today"
    assert body.modules["tests/test_c.py"].startswith("Skipped: could not import 'nothing_of_the_kind'")
    assert body.modules["tests/test_d.py"] == ""
    assert body.modules["tests/test_e.py"].startswith("SyntaxError: ")
    assert [row.outcome for row in body.tests] == ["passed"]
    assert body.junk == "" and body.finished and body.exitstatus == 1


def test_the_trees_own_configuration_applies_and_runs_each_test_once(probe, outcomes):
    body = probe.run(
        {
            "pyproject.toml": """
                [tool.pytest.ini_options]
                addopts = "-x --lf -q --strict-markers -p no:doctest"
                markers = ["slow: takes long"]
                xfail_strict = true
                """,
            "conftest.py": "import pytest\n@pytest.fixture\ndef four(): return 4",
            "tests/conftest.py": "import pytest\n@pytest.fixture\ndef five(four): return four + 1",
            "tests/test_a.py": """
                import pytest
                @pytest.mark.xfail(reason="strictly")
                def test_x(): pass
                @pytest.mark.slow
                def test_y(five, cache): cache.set("a/b", 1); assert five == 5
                """,
        }
    )
    assert outcomes(body) == {"test_x": "failed", "test_y": "passed"}
    assert not (probe.tree / ".pytest_cache").exists()


def test_jobs_run_in_forks_of_their_own(probe, outcomes):
    other = probe.folder / "w" / "fedcba9876543210"
    probe.write({"src/m.py": "VALUE = 1", "tests/test_a.py": "from src.m import VALUE\ndef test_v(): assert VALUE == 1"})
    probe.write({"src/m.py": "VALUE = 2", "tests/test_a.py": "from src.m import VALUE\ndef test_v(): assert VALUE == 1"}, other)
    bodies = probe.jobs([probe.job(label="a"), probe.job(label="b", tree=other)])
    assert outcomes(bodies["a"]) == {"test_v": "passed"} and outcomes(bodies["b"]) == {"test_v": "failed"}
    assert all(body.finished and not body.junk and body.end.how == "exited" for body in bodies.values())


def test_a_job_that_hangs_is_ended_and_the_next_one_runs(probe, outcomes):
    other = probe.folder / "w" / "fedcba9876543210"
    probe.write({"tests/test_a.py": "import time\ndef test_v(): time.sleep(600)"})
    probe.write({"tests/test_a.py": "def test_v(): pass"}, other)
    bodies = probe.jobs([probe.job(label="a", wall=2), probe.job(label="b", tree=other, wall=60)])
    assert bodies["a"].end.how == "over" and not bodies["a"].finished
    assert outcomes(bodies["b"]) == {"test_v": "passed"} and bodies["b"].finished


def test_order_is_shuffled_by_its_seed(probe):
    files = {f"tests/test_{c}.py": "".join(f"def test_{i}(): pass\n" for i in range(9)) for c in "abc"}
    plain = probe.run(files).collected
    one, again, two = (probe.run(order=order).collected for order in (1, 1, 2))
    assert one == again and len({plain, one, two}) == 3 and set(plain) == set(one) == set(two)


def test_the_clock_stands_still_when_asked(probe, outcomes):
    files = {
        "tests/test_clock.py": """
            import copy, pickle, time
            import datetime as d
            from datetime import date, datetime, timezone
            def test_wall():
                assert time.time() == 1700000000 and time.time_ns() == 1700000000 * 10**9
                assert datetime.now(timezone.utc).timestamp() == 1700000000
                assert datetime.utcnow() == datetime.now() == datetime(2023, 11, 14, 22, 13, 20) == datetime.today()
                assert date.today() == date(2023, 11, 14)
                assert time.localtime()[:3] == time.gmtime()[:3] == (2023, 11, 14) and time.strftime("%Y") == "2023"
            def test_values_are_ordinary():
                now = datetime.now()
                assert isinstance(now, d.datetime) and isinstance(now, date) and isinstance(date.today(), date)
                assert not isinstance(date.today(), datetime)
                later = now + d.timedelta(1)
                assert pickle.loads(pickle.dumps(later)) == later and copy.deepcopy(now) == now
                assert pickle.loads(pickle.dumps(date.today())) == date.today()
                assert repr(now).startswith("datetime.datetime(2023") and (later - now).days == 1
            def test_monotonic():
                a = time.perf_counter(); b = time.monotonic(); time.sleep(0.01)
                assert time.perf_counter() > a and time.monotonic() > b
            """
    }
    body = probe.run(files, freeze=True)
    assert set(outcomes(body).values()) == {"passed"}, [row.signature for row in body.tests]
    assert outcomes(probe.run(files))["test_wall"] == "failed"


def test_random_numbers_and_hypothesis_give_the_same_twice(probe, outcomes):
    files = {
        "tests/test_random.py": """
            import random
            from hypothesis import given, settings, strategies as st
            seen = []
            def test_seeded():
                first = [random.random() for _ in range(3)]
                assert first == ANSWER
            @settings(max_examples=30)
            @given(st.integers())
            def test_property(n): seen.append(n)
            def test_seen():
                assert False, hash(tuple(seen))
            """.replace("ANSWER", repr([0.8444218515250481, 0.7579544029403025, 0.420571580830845]))
    }
    probe.env = {}
    one, two = probe.run(files), probe.run()
    assert outcomes(one)["test_seeded"] == "passed" and outcomes(one)["test_property"] == "passed"
    assert [row.signature for row in one.tests] == [row.signature for row in two.tests]
    assert not (probe.tree / ".hypothesis").exists()


@pytest.mark.parametrize("version", ["3.12.1", "3.13.0"])
def test_hash_seed_is_fixed(probe, version, outcomes):
    files = {"tests/test_hash.py": "import sys\ndef test_hash(): assert 0, (hash('text'), sys.path[:1])"}
    one, two = probe.run(files), probe.run()
    assert one.tests[0].signature == two.tests[0].signature
    assert str(probe.tree) in one.tests[0].signature and "/probe" not in one.tests[0].signature.replace(str(probe.tree), "")
    assert sys.flags.hash_randomization in (0, 1)


def test_the_report_is_neither_inherited_nor_on_a_low_descriptor(probe, outcomes):
    body = probe.run(
        {
            "tests/test_fd.py": """
                import os, subprocess, sys
                def named(numbers):
                    return {os.path.realpath(f"/proc/self/fd/{n}").rpartition("/")[2] for n in numbers}
                LOOK = "import os; print([os.path.realpath('/proc/self/fd/' + n) for n in os.listdir('/proc/self/fd')])"
                def test_fd():
                    argv = [sys.executable, "-c", LOOK]
                    shown = subprocess.run(argv, close_fds=False, capture_output=True, text=True).stdout
                    assert "/report" not in shown and "pipe" in shown
                    assert "report" in named(os.listdir("/proc/self/fd"))
                    assert "report" not in named(range(60))
                    assert os.read(0, 10) == b""
                """
        }
    )
    assert outcomes(body) == {"test_fd": "passed"}, body.tests
