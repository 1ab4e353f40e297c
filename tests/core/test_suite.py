"""Reports of a hostile interpreter are read without ever raising, and less of a report never reads better."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probatum.core import canonical
from probatum.core.check import Patch
from probatum.core.evidence import Subject
from probatum.core.policy import Policy
from probatum.core.records import SuiteBody
from probatum.core.stage import Blob, End, Outcome, Runtime, Tree
from probatum.core.suite import Job, probe_tree, suite_stage
from probatum.core.testimony import parse

NONCE = "ab" * 16


def lines(*rows, job=""):
    return [{"n": number, "job": job, **row} for number, row in enumerate(rows, 1)]


def report(rows):
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def body(rows, **options):
    data = rows if isinstance(rows, bytes) else report(rows)
    return parse(Outcome(end=End("exited", 0), nonce=NONCE, report=data, **options))


def run(id_, setup="passed", call="passed", teardown="passed"):
    phases = [("setup", setup), *([("call", call)] if call else []), ("teardown", teardown)]
    return [{"r": "phase", "id": id_, "when": when, "outcome": outcome, "us": 5} for when, outcome in phases]


START = {"r": "start", "python": "3.11.7", "pytest": "9.0"}
END = [{"r": "watch", "found": []}, {"r": "finish", "nonce": NONCE, "exit": 0}]
WHOLE = lines(
    START,
    {"r": "module", "path": "t.py", "error": ""},
    {"r": "ids", "ids": ["t.py::a", "t.py::b"]},
    *run("t.py::a"),
    *run("t.py::b"),
    *END,
)


def good(found):
    """How good a body looks: what a rule would want before it lets something pass."""
    return (
        found.junk == "" and found.finished and found.nonce_ok,
        {row.id for row in found.tests if row.outcome == "passed" and row.times == 1},
    )


def test_a_whole_report_is_read():
    found = body(WHOLE)
    assert found.junk == "" and found.finished and found.nonce_ok and found.exitstatus == 0
    assert [(row.id, row.outcome, row.times, row.phases) for row in found.tests] == [
        (id_, "passed", 1, ("passed", "passed", "passed")) for id_ in ("t.py::a", "t.py::b")
    ]
    assert found.collected == ("t.py::a", "t.py::b") and found.modules == {"t.py": ""}


SUBTEST = {"r": "subtest", "id": "t", "when": "call", "us": 1}

OUTCOMES = {
    "passed": (run("t"), "passed"),
    "failed": (run("t", call="failed"), "failed"),
    "setup error": (run("t", setup="failed", call=None), "error"),
    "teardown error": (run("t", teardown="failed"), "error"),
    "failed and teardown error": (run("t", call="failed", teardown="failed"), "error"),
    "skipped in setup": (run("t", setup="skipped", call=None), "skipped"),
    "skipped in call": (run("t", call="skipped"), "skipped"),
    "no teardown": (run("t")[:2], "error"),
    "no call": (run("t")[::2], "error"),
    "no setup": (run("t")[1:], "error"),
    "call after failed setup": (run("t", setup="failed"), "error"),
    "teardown first": (run("t")[::-1], "error"),
    "call twice": ([*run("t")[:2], *run("t")[1:]], "error"),
    "failed subtest": ([run("t")[0], {**SUBTEST, "outcome": "failed"}, *run("t")[1:]], "failed"),
    "skipped subtest": ([run("t")[0], {**SUBTEST, "outcome": "skipped", "reason": "x"}, *run("t")[1:]], "skipped"),
    "passed subtest": ([run("t")[0], {**SUBTEST, "outcome": "passed"}, *run("t")[1:]], "passed"),
    "only a subtest": ([{**SUBTEST, "outcome": "passed"}], "error"),
    "failed once, passed once": ([*run("t", call="failed"), *run("t")], "failed"),
}
OUTCOMES["xfailed"] = ([run("t")[0], {**run("t", call="skipped")[1], "xfail": "known"}, run("t")[2]], "xfailed")
OUTCOMES["xpassed"] = ([run("t")[0], {**run("t")[1], "xfail": ""}, run("t")[2]], "xpassed")


@pytest.mark.parametrize("name", OUTCOMES)
def test_passed_means_that_every_phase_passed(name):
    phases, outcome = OUTCOMES[name]
    found = body(lines(START, {"r": "ids", "ids": ["t"]}, *phases, *END))
    assert found.junk == "" and [row.outcome for row in found.tests] == [outcome]


def test_an_id_that_ran_twice_says_so():
    found = body(lines(START, {"r": "ids", "ids": ["t"]}, *run("t"), *run("t"), *END))
    assert [(row.id, row.times) for row in found.tests] == [("t", 2)]


JUNK = {
    "no json": report(WHOLE) + b"{\n",
    "cut line": report(WHOLE)[:-1],
    "cut in the middle": report(WHOLE)[:-20],
    "unknown kind": report(lines(START, {"r": "pass", "id": "t"}, *END)),
    "unknown field": report(lines({**START, "x": 1}, *END)),
    "wrong type": report(lines({**START, "python": 3}, *END)),
    "deep": b"[" * 200_000 + b"\n",
    "invalid utf-8": b'{"r":"start","n":1,"job":"","python":"\xff","pytest":""}\n',
    "line removed": report([*WHOLE[:4], *WHOLE[5:]]),
    "line twice": report([*WHOLE[:4], WHOLE[3], *WHOLE[4:]]),
    "lines swapped": report([*WHOLE[:4], WHOLE[5], WHOLE[4], *WHOLE[6:]]),
    "after the finish": report([*WHOLE, {**WHOLE[3], "n": len(WHOLE) + 1}]),
    "two finishes": report(lines(START, {"r": "ids", "ids": []}, *END, END[1])),
    "two collections": report(lines(START, {"r": "ids", "ids": []}, {"r": "ids", "ids": []}, *END)),
    "no start": report(lines({"r": "ids", "ids": []}, *END)),
    "no watch": report(lines(START, {"r": "ids", "ids": []}, END[1])),
    "no collection": report(lines(START, *END)),
    "another job": report([*WHOLE[:-1], {**WHOLE[-1], "job": "b"}]),
    "negative time": report(lines(START, {**run("t")[0], "us": -1}, *END)),
    "huge number": report(lines(START, {**run("t")[0], "us": 10**30}, *END)),
    "nul and nothing": b"\0\n",
    "empty line": report(WHOLE) + b"\n",
}


@pytest.mark.parametrize("name", JUNK)
def test_junk_says_junk_and_never_finished(name):
    found = body(JUNK[name])
    assert found.junk != "" and not found.finished


def test_silence_is_not_finished():
    found = body(b"")
    assert not found.finished and found.tests == () and found.exitstatus == -1


@pytest.mark.parametrize("nonce", ["", NONCE[:-1], NONCE + "0", "zz" * 16])
def test_another_nonce_is_not_finished(nonce):
    assert not body(lines(START, {"r": "ids", "ids": []}, END[0], {**END[1], "nonce": nonce})).finished


def test_what_is_told_can_be_sealed():
    """Lone surrogates, control characters and very long texts become canonical bytes."""
    odd = "t.py::x[\ud800\x07" + "y" * 9_000 + "]"
    phases = [{**each, "sig": "E: " + "z" * 9_000} for each in run(odd, call="failed")]
    rows = lines(START, {"r": "ids", "ids": [odd]}, *phases, {"r": "watch", "found": ["w" * 9_000]}, END[1])
    text = report(rows).replace(b"\\ud800", b"\xed\xa0\x80".decode("utf-8", "replace").encode())
    found = body(text, stdout=b"\xff\x1b[31m" * 5_000)
    assert found.junk == "" and canonical.decode(canonical.encode(found), SuiteBody, "x") == found
    assert len(found.tests[0].signature) <= 2_000 and "\x1b" not in found.tail


@given(st.binary(max_size=300))
def test_parse_never_raises_on_bytes(data):
    found = body(data)
    assert isinstance(canonical.encode(found), bytes) and not found.finished


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x))
)
def test_parse_never_raises_on_json(value):
    assert not body(json.dumps(value).encode() + b"\n").finished


@given(st.data())
def test_fewer_lines_never_give_a_better_body(data):
    keep = data.draw(st.lists(st.booleans(), min_size=len(WHOLE), max_size=len(WHOLE)))
    some = [row for row, kept in zip(WHOLE, keep, strict=True) if kept]
    if data.draw(st.booleans()):  # whoever drops lines may also count again
        some = [{**row, "n": number} for number, row in enumerate(some, 1)]
    done, passed = good(body(some))
    whole, all_passed = good(body(WHOLE))
    assert done <= whole and passed <= all_passed
    if len(some) < len(WHOLE) and done:
        # Only a whole test (or the module's line) can vanish unseen, and then its id is missing.
        assert passed < all_passed or not any(row["r"] == "module" for row in some)


@given(st.integers(0, len(report(WHOLE)) - 1))
def test_a_report_cut_anywhere_is_not_finished(at):
    assert not body(report(WHOLE)[:at]).finished


def test_the_shipped_probe_is_a_tree_of_its_own():
    names = ("run.py", "plugin.py", "fixed.py", "watch.py", "look.py", "clock.py", "disguise.py", "looks.py")
    tree = probe_tree(dict.fromkeys((*names, "launcher.py"), b"x"))
    assert set(tree.files) == {name.encode() for name in names}
    assert isinstance(tree, Tree) and tree.files[b"run.py"] == Blob(0o100644, data=b"x")


def test_a_disguised_job_hides_test_folders_but_none_that_holds_base_s_product():
    modules = (b"src/pkg/tests/test_a.py", b"tests/unit/test_b.py", b"test_c.py")
    files = {path: Blob(0o100644, oid="1") for path in (*modules, b"src/pkg/a.py", b"tests/data.json")}
    merged = {**files, b"tests/unit/mine.py": Blob(0o100644, oid="2")}
    tree = Tree(merged)
    patch = Patch(
        subject=Subject(base="1", head="2"), policy=Policy(version=1), changes=(), classes={}, base=Tree(files), merged=tree,
        class_of=lambda path: "product" if path.endswith((b"/a.py", b"mine.py")) else "oracle", modules=modules,
        read=lambda oid: b"", environment=Runtime("environment", ""), probe=Tree({}), generated=Tree({}), seed="s", now=0,
        sealed=tree,
    )  # fmt: skip
    jobs = [Job(label=label, tree=tree, modules=modules, disguise=label == "w") for label in ("t0", "w")]
    plain, worn = json.loads(suite_stage(patch, "twins", jobs, trust="candidate").stdin)["jobs"]
    assert "disguise" not in plain
    folders = {"src/pkg/tests", "tests", "tests/unit"}
    assert set(worn["disguise"]["hidden"]) == folders | {path.decode() for path in modules}
    assert 1_900_000_000 < worn["disguise"]["epoch"] < 1 << 31
