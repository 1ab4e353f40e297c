"""The page's decision table is the test: every row is made, judged, and compared."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import pages
from probatum.checks import cold_replay
from probatum.core import canonical
from probatum.core.replay import Options
from probatum.core.replay_ledger import line_after, parse
from probatum.core.stage import Facts
from probatum.core.verdict import Verdict, verdict_of
from probatum.host import received, sign
from replay_kit import START, Case

Have = dict[str, Any]
SCENARIOS: dict[str, Callable[[Path], Have]] = {}


def scenario(name: str) -> Callable[[Callable[[Case, Path], Have | None]], Callable[[Case, Path], Have | None]]:
    """A row of the table. The function breaks a whole case; what it returns, or the case's own parts, are judged."""

    def register(function: Callable[[Case, Path], Have | None]) -> Callable[[Case, Path], Have | None]:
        def made(tmp: Path) -> Have:
            case = Case()
            return function(case, tmp) or case.have()

        SCENARIOS[name] = made
        return function

    return register


def reality(**changed: Any) -> Callable[[Case, Path], None]:
    def change(case: Case, tmp: Path) -> None:
        case.reality = msgspec.structs.replace(case.reality, **changed)

    return change


def body(settled: bool = True, **changed: Any) -> Callable[[Case, Path], None]:
    """The record says otherwise. ``settled``: and the ledger's last line was written for it."""

    def change(case: Case, tmp: Path) -> None:
        case.body = changed
        if settled:
            case.resettle()

    return change


def measured(**changed: Any) -> Callable[[Case, Path], None]:
    """A record that says cold and was measured otherwise, by someone who writes the ledger too."""

    def change(case: Case, tmp: Path) -> None:
        case.measured = changed
        case.resettle()

    return change


for name, change in {
    "base moved after the replay": reality(base="d" * 40, merged_tree="f" * 40),
    "merged tree changed after the replay": reality(head="d" * 40, merged_tree="f" * 40),
    "another head with the same tree": reality(head="d" * 40),
    "image rotated since the replay": reality(runner_image="sha256:" + "9" * 64),
    "environment rotated since the replay": reality(environment="sha256:" + "9" * 64),
    "hook version raised since the replay": reality(hook_version=2),
    "hook version changed in this diff": reality(hook_changed="hook_version 1 becomes 2"),
    "hook version changed, harness alone": reality(hook_changed="hook_version 1 becomes 2", alone=True),
    "another suite was replayed": reality(suite="sealed tests/unit/**"),
    "product assertion failed": body(result="fail", failed=("t.py::test_a",), reason="1 failed, the first is t.py::test_a"),
    "record of an unknown schema": body(schema="admission/v2"),
    "record says its cache was warm": body(cache="warm", result="fail", reason="cache/uv held 3 entries"),
    "pass with a failed test in it": body(failed=("t.py::test_a",)),
    "seed otherwise than in the ledger": body(seed=43),
    "warm environment presented as cold": measured(mtime_us=START - 3_600_000_000, ctime_us=START - 3_600_000_000),
    "first process older than the replay": measured(first_process_us=START - 1_000_000),
    "package cache held something at the start": measured(caches={"cache": 1, "cache/uv": 41}),
    "scratch held a file before the first test": measured(spaces={"/tmp": 1}),
    "compiled files in the tree": measured(bytecode=3),
    "no measuring line came from inside": measured(nonce="", junk="no first line from inside: empty"),
    "another run's answer": measured(nonce="2" * 32, launcher_nonce="2" * 32),
}.items():
    scenario(name)(change)


@scenario("all match")
def _(case: Case, tmp: Path) -> None:
    pass


@scenario("infrastructure replay after the record")
def _(case: Case, tmp: Path) -> None:
    case.add("began", run="2" * 32, attempt=2)
    case.add("infrastructure", run="2" * 32, attempt=2, why="no record from the launcher")


@scenario("replay cancelled after the record")
def _(case: Case, tmp: Path) -> None:
    case.add("began", run="2" * 32, attempt=2)


@scenario("later replay has a record of its own")
def _(case: Case, tmp: Path) -> None:
    case.add("began", run="2" * 32, attempt=2)
    case.add("passed", run="2" * 32, attempt=2, record="sha256:" + "4" * 64)


@scenario("product failure replayed until it passed")
def _(case: Case, tmp: Path) -> Have:
    retried = Case(nonce="3" * 32)
    retried.lines = []
    retried.add("began", run="2" * 32)
    retried.add("failed", run="2" * 32, why="1 failed")
    retried.began = retried.add("began", attempt=2)
    retried.envelope = {"attempt": 2}
    retried.add("passed", attempt=2, record=canonical.digest(retried.data()))
    return retried.have()


@scenario("third replay of a change")
def _(case: Case, tmp: Path) -> Have:
    late = Case(nonce="9" * 32)
    late.lines = []
    for number in (1, 2, 3):
        late.add("began", run=str(number) * 32, attempt=number)
        late.add("infrastructure", run=str(number) * 32, attempt=number, why="lost")
    late.began = late.add("began", attempt=4)
    late.envelope = {"attempt": 4}
    late.add("passed", attempt=4, record=canonical.digest(late.data()))
    return late.have()


@scenario("no record")
def _(case: Case, tmp: Path) -> Have:
    _, note = received.receive(tmp, "admission", cold_replay.BODIES["admission"], "")
    return {"replay": case.reality, "received.admission": note.body}


@scenario("no evidence handed in")
def _(case: Case, tmp: Path) -> Have:
    _, note = received.receive(None, "admission", cold_replay.BODIES["admission"], "")
    return {"replay": case.reality, "received.admission": note.body}


@scenario("base and head do not merge")
def _(case: Case, tmp: Path) -> Have:
    return {key: value for key, value in case.have().items() if key != "replay"}


@scenario("record is no canonical record")
def _(case: Case, tmp: Path) -> Have:
    (tmp / "admission.json").write_bytes(case.data().replace(b'"cold"', b'"cold" '))
    data, note = received.receive(tmp, "admission", cold_replay.BODIES["admission"], "")
    assert data is None
    return {"replay": case.reality, "received.admission": note.body}


@scenario("engine answered from its cache")
def _(case: Case, tmp: Path) -> None:
    case.envelope = {"engine": Facts(name="dagger", cache="reused")}
    case.resettle()


@scenario("nonce of an earlier replay")
def _(case: Case, tmp: Path) -> Have:
    """Replay 2 began; its record carries the nonce, and the measurements, of replay 1."""
    second = Case()
    second.began = second.add("began", run="2" * 32, attempt=2)
    second.envelope = {"attempt": 2}
    second.add("passed", run="2" * 32, attempt=2, record=canonical.digest(second.data()))
    return second.have()


@scenario("nonce begun twice in the ledger")
def _(case: Case, tmp: Path) -> None:
    case.add("began", attempt=2)


@scenario("record edited, its digest not in the ledger")
def _(case: Case, tmp: Path) -> None:
    body(settled=False, tests=21)(case, tmp)


@scenario("record of a replay that the ledger does not know")
def _(case: Case, tmp: Path) -> None:
    case.lines = Case(nonce="5" * 32).lines


@scenario("envelope of another base than the record")
def _(case: Case, tmp: Path) -> None:
    case.envelope = {"base": "d" * 40}
    case.resettle()


def _signed(case: Case, tmp: Path, kept: bytes, make: bool = True, other: bool = False) -> Have:
    """``kept`` is in the folder; what was signed is the case's own record."""
    ed25519 = pytest.importorskip("cryptography.hazmat.primitives.asymmetric.ed25519")
    key = ed25519.Ed25519PrivateKey.generate()
    asked = ed25519.Ed25519PrivateKey.generate() if other else key
    (tmp / "admission.json").write_bytes(kept)
    (tmp / "admission.json.ledger").write_bytes(b"".join(case.lines))
    if make:
        (tmp / "admission.json.dsse").write_bytes(sign.sign(key, "admission.json", case.data()))
    public = base64.b64encode(asked.public_key().public_bytes_raw()).decode()
    data, note = received.receive(tmp, "admission", cold_replay.BODIES["admission"], public)
    assert data == kept
    from probatum.core import evidence

    record = evidence.unseal(data, cold_replay.BODIES["admission"], "admission.json")
    return {"replay": case.reality, "received.admission": note.body, "admission": record}


@scenario("record edited, key configured")
def _(case: Case, tmp: Path) -> Have:
    edited = Case()
    edited.body = {"tests": 21}
    edited.resettle()
    case.lines = edited.lines  # the ledger was rewritten along with it
    return _signed(case, tmp, edited.data())


@scenario("not signed, key configured")
def _(case: Case, tmp: Path) -> Have:
    return _signed(case, tmp, case.data(), make=False)


@scenario("signed by another key")
def _(case: Case, tmp: Path) -> Have:
    return _signed(case, tmp, case.data(), other=True)


@scenario("no ledger")
def _(case: Case, tmp: Path) -> Have:
    have = case.have()
    have["received.admission"] = msgspec.structs.replace(have["received.admission"], ledger=None)
    return have


def _long(case: Case) -> None:
    case.lines = Case(nonce="2" * 32).lines
    case.began = case.add("began", attempt=2)
    case.envelope = {"attempt": 2}
    case.add("passed", attempt=2, record=canonical.digest(case.data()))
    assert len(parse(b"".join(case.lines))) == 4


@scenario("ledger line removed")
def _(case: Case, tmp: Path) -> None:
    _long(case)
    del case.lines[1]


@scenario("ledger line edited")
def _(case: Case, tmp: Path) -> None:
    _long(case)
    case.lines[1] = case.lines[1].replace(b'"passed"', b'"failed"')


@scenario("ledger lines reordered")
def _(case: Case, tmp: Path) -> None:
    _long(case)
    case.lines[0], case.lines[1] = case.lines[1], case.lines[0]


@pytest.mark.parametrize(("name", "verdict", "expected"), pages.rows("cold_replay"))
def test_row(name: str, verdict: str, expected: str, tmp_path: Path) -> None:
    have = SCENARIOS[name](tmp_path)
    findings = cold_replay.judge(have, Options(), START // 1_000_000)
    assert verdict_of(findings).value == verdict, findings
    # One cause, one reason: nothing else is said beside it.
    assert {finding.id for finding in findings} == {f"cold_replay/{expected}"}, findings
    assert all("\n" not in finding.reason and finding.reason for finding in findings)


def test_the_table_has_every_scenario_and_no_other() -> None:
    names = [row[0] for row in pages.rows("cold_replay")]
    assert sorted(names) == sorted(SCENARIOS) and len(names) == len(set(names))


def test_every_attack_has_a_reason_of_its_own(tmp_path: Path) -> None:
    """Two rows may share a finding; no two that block share the words."""
    said: dict[str, str] = {}
    for number, (name, verdict, _) in enumerate(pages.rows("cold_replay")):
        if verdict != "BLOCK":
            continue
        folder = tmp_path / str(number)
        folder.mkdir()
        reason = cold_replay.judge(SCENARIOS[name](folder), Options(), 0)[0].reason
        assert reason not in said, (name, said[reason])
        said[reason] = name


@pytest.mark.parametrize("gone", ["replay", "received.admission", "admission"])
def test_taking_evidence_away_never_admits(gone: str) -> None:
    for name in ("all match", "hook version raised since the replay"):
        have = SCENARIOS[name](Path())
        findings = cold_replay.judge({key: value for key, value in have.items() if key != gone}, Options(), 0)
        assert verdict_of(findings) is Verdict.BLOCK


def test_a_ledger_without_its_last_line_admits_nothing() -> None:
    case = Case()
    case.lines.pop()
    assert [one.id for one in cold_replay.judge(case.have(), Options(), 0)] == ["cold_replay/edited"]


def test_a_forged_ledger_needs_every_line() -> None:
    """Whoever moves the beginning of a replay breaks the record's own word for it."""
    case = Case()
    first = parse(b"".join(case.lines))[0]
    _, raw = line_after([], **{**msgspec.to_builtins(msgspec.structs.replace(first, seed=first.seed)), "at": "another time"})
    _, last = line_after([canonical.decode(raw, type(first), "x")], **{
        **{key: value for key, value in msgspec.to_builtins(first).items() if key not in ("seq", "previous")},
        "what": "passed", "record": canonical.digest(case.data()),
    })  # fmt: skip
    case.lines = [raw, last]
    assert [one.id for one in cold_replay.judge(case.have(), Options(), 0)] == ["cold_replay/edited"]
