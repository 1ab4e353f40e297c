"""A ledger is exactly what its schema says, or it permits nothing; a row permits only what it names."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probatum.core.leases import (
    DAY,
    EMPTY,
    Book,
    Lease,
    Ledger,
    Malformed,
    dump,
    expected_red,
    parse,
    schema,
    sections,
    signature_matches,
)

NOW = 1_700_000_000
MODULES = ("tests/a/test_x.py", "tests/b/test_x.py", "tests/test_y.py")
HASH = "ab" * 32

LEASE: dict[str, Any] = {
    "nodeid": "tests/test_y.py::T::test_z",
    "source_digest": HASH,
    "failure_signature": "AssertionError: assert 1",
    "expires_at": NOW + DAY,
    "owner": "me@example.com",
    "reason": "undecided",
}
STANDING = {k: v for k, v in LEASE.items() if k not in ("failure_signature", "expires_at")} | {
    "condition": "sys.platform == 'win32'",
    "review_at": NOW + DAY,
}
RED = {k: v for k, v in LEASE.items() if k in ("nodeid", "owner", "reason", "expires_at")}
QUARANTINE = {"id": "tests/test_y.py::t", "first_seen": NOW, "expires": NOW + DAY, "owner": "me", "reason": "slow"}
FULL = {"leases": [LEASE], "standing": [STANDING], "expected_red": [RED], "quarantine": [QUARANTINE]}


def text(**changes: Any) -> bytes:
    """A ledger with one lease, changed; a value of ``...`` takes the key away."""
    row = {key: value for key, value in {**LEASE, **changes}.items() if value is not ...}
    return json.dumps({"leases": [row]}).encode()


def raw(field: str, literal: str) -> bytes:
    return text(**{field: "@"}).replace(b'"@"', literal.encode())


def test_a_whole_ledger_is_read_and_written_back() -> None:
    ledger = parse(json.dumps(FULL).encode())
    assert [len(rows) for _, rows in sections(ledger)] == [1, 1, 1, 1]
    assert parse(dump(ledger)) == ledger
    assert dump(ledger).startswith(b'{\n  "leases": [\n    {\n')


def test_the_generated_schema_agrees() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.validate(FULL, schema())
    for broken in ({}, {"leases": [{}]}, {"leases": [{**LEASE, "expires_at": True}]}, {"leases": [], "more": 1}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, schema())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"{}", id="no leases"),
        pytest.param(b'{"leases": null}', id="null"),
        pytest.param(b'{"leases": {}}', id="object for list"),
        pytest.param(b'{"leases": [],}', id="comma"),
        pytest.param(b'{"leases": []} x', id="trailing"),
        pytest.param(b'{"leases": [] // note\n}', id="comment"),
        pytest.param(b'{"leases": [], "leases": []}', id="key twice"),
        pytest.param(b'{"leases": [], "extra": []}', id="unknown key"),
        pytest.param(b'\xef\xbb\xbf{"leases": []}', id="byte order mark"),
        pytest.param('{"leases": []}'.encode("utf-16"), id="utf-16"),
        pytest.param(b'{"leases": ["\xff"]}', id="not utf-8"),
        pytest.param(b'{"leases": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", id="deep"),
        pytest.param(b'{"leases": []}' + b" " * (1 << 20), id="huge"),
        pytest.param(text(source_digest="*"), id="wildcard hash"),
        pytest.param(text(source_digest=""), id="empty hash"),
        pytest.param(text(source_digest=HASH.upper()), id="upper hash"),
        pytest.param(text(source_digest=HASH + "\n"), id="hash and newline"),
        pytest.param(text(bytecode_hash="*"), id="wildcard bytecode"),
        pytest.param(text(nodeid="*"), id="wildcard name"),
        pytest.param(text(nodeid="tests/*.py::t"), id="glob name"),
        pytest.param(text(nodeid=..., qualname="*"), id="wildcard qualname"),
        pytest.param(text(nodeid=...), id="no name"),
        pytest.param(text(qualname="test_y.T.test_z"), id="two names"),
        pytest.param(text(nodeid=" tests/test_y.py::t"), id="space before the name"),
        pytest.param(text(nodeid=7), id="number for text"),
        pytest.param(text(owner=""), id="empty owner"),
        pytest.param(text(owner="  \t"), id="blank owner"),
        pytest.param(text(owner=...), id="no owner"),
        pytest.param(text(owner=None), id="null owner"),
        pytest.param(text(reason=""), id="empty reason"),
        pytest.param(text(failure_signature=""), id="empty signature"),
        pytest.param(text(failure_signature=...), id="no signature"),
        pytest.param(text(failure_signature="AssertionError"), id="type alone"),
        pytest.param(text(failure_signature="AssertionError: "), id="type and colon"),
        pytest.param(text(failure_signature="AssertionError:  \t "), id="type and blank"),
        pytest.param(text(failure_signature=": x"), id="no type"),
        pytest.param(text(failure_signature="*: x"), id="wildcard type"),
        pytest.param(text(expires_at=True), id="true"),
        pytest.param(text(expires_at=False), id="false"),
        pytest.param(text(expires_at=str(NOW + DAY)), id="text for number"),
        pytest.param(text(expires_at=None), id="null for number"),
        pytest.param(text(expires_at=...), id="no expiry"),
        pytest.param(text(expires_at=[NOW]), id="list for number"),
        pytest.param(text(expires_at=-1), id="negative"),
        pytest.param(text(expires_at=0), id="zero"),
        pytest.param(raw("expires_at", "NaN"), id="NaN"),
        pytest.param(raw("expires_at", "Infinity"), id="Infinity"),
        pytest.param(raw("expires_at", "-Infinity"), id="-Infinity"),
        pytest.param(raw("expires_at", "1e400"), id="1e400"),
        pytest.param(raw("expires_at", "1e12"), id="1e12"),
        pytest.param(raw("expires_at", "1800000000.5"), id="fraction"),
        pytest.param(raw("expires_at", "9" * 5000), id="very long number"),
        pytest.param(raw("expires_at", "99999999999999"), id="far year"),
        pytest.param(raw("expires_at", "017"), id="octal"),
        pytest.param(raw("owner", '"\\ud800"'), id="lone surrogate"),
        pytest.param(text(note="x"), id="unknown field"),
        pytest.param(text(python="3"), id="python without minor"),
        pytest.param(
            json.dumps({"leases": [], "quarantine": [{**QUARANTINE, "expires": True}]}).encode(), id="quarantine true"
        ),
        pytest.param(json.dumps({"leases": [], "standing": [LEASE]}).encode(), id="lease as standing row"),
        pytest.param(json.dumps({"leases": [], "expected_red": [{**RED, "owner": ""}]}).encode(), id="red without owner"),
    ],
)
def test_junk_permits_nothing(data: bytes) -> None:
    with pytest.raises(Malformed) as caught:
        parse(data)
    assert caught.value.what and "\n" not in caught.value.line()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from([HASH, *LEASE.values()]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*LEASE, "x"]), inner, max_size=7),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["leases", "standing", "expected_red", "quarantine", "x"]), JSON) | JSON)
def test_what_the_parser_accepts_the_schema_accepts(value: Any) -> None:
    data = json.dumps(value).encode()
    try:
        ledger = parse(data)
    except Malformed:
        return
    jsonschema.validate(value, schema())
    assert parse(dump(ledger)) == ledger


@given(st.binary(max_size=200))
def test_bytes_are_a_ledger_or_malformed(data: bytes) -> None:
    try:
        assert isinstance(parse(data), Ledger)
    except Malformed:
        pass


@given(row=st.fixed_dictionaries({}, optional=dict.fromkeys(LEASE, JSON)))
def test_a_row_with_anything_odd_is_malformed(row: dict[str, Any]) -> None:
    odd = {key: value for key, value in row.items() if type(value) is not type(LEASE[key])}
    if odd and odd != {"source_digest": None}:
        with pytest.raises(Malformed):
            parse(json.dumps({"leases": [{**LEASE, **odd}]}).encode())


@pytest.mark.parametrize(
    ("leased", "seen", "same"),
    [
        ("AssertionError: assert [] == [0.0]", "AssertionError: assert [] == [0.0]", True),
        ("AssertionError: assert []", "AssertionError: assert [] == [0.0] More", True),
        ("AssertionError:   assert\n[]", "AssertionError: assert [] == 1", True),
        ("AssertionError: assert [] == [0.0]", "AssertionError: assert []", False),
        ("AssertionError: assert", "ZeroDivisionError: assert", False),
        ("Error: x", "AssertionError: x", False),
        ("AssertionError", "AssertionError: x", False),
        ("AssertionError: ", "AssertionError: x", False),
        ("AssertionError: x", "", False),
        ("", "", False),
        ("", "AssertionError: x", False),
    ],
)
def test_signature(leased: str, seen: str, same: bool) -> None:
    assert signature_matches(leased, seen) is same


def book(*rows: dict[str, Any], now: int = NOW, days: int = 90, **digests: str) -> tuple[Book, tuple[Lease, ...]]:
    ledger = parse(
        json.dumps({"leases": [{k: v for k, v in {**LEASE, **row}.items() if v is not ...} for row in rows]}).encode()
    )
    return Book(ledger, MODULES, lambda stem: digests.get("digest", HASH), now, days), ledger.leases


def wrong(*rows: dict[str, Any], now: int = NOW, days: int = 90, **digests: str) -> str:
    found, leases = book(*rows, now=now, days=days, **digests)
    return (found.wrong(leases[0], leases) or ("",))[0]


def test_rules_of_a_row() -> None:
    assert wrong({}) == ""
    assert wrong({}, now=NOW + DAY - 1) == ""
    assert wrong({}, now=NOW + DAY) == "expired"
    assert wrong({"expires_at": NOW + 90 * DAY}) == ""
    assert wrong({"expires_at": NOW + 90 * DAY + 1}) == "too-long"
    assert wrong({"expires_at": NOW + 8 * DAY}, days=7) == "too-long"
    assert wrong({}, digest="cd" * 32) == "drifted"
    assert wrong({}, digest="") == "drifted"
    assert wrong({"source_digest": ..., "bytecode_hash": "9c1e0a77ab12f0d1"}) == "no-digest"
    assert wrong({"source_digest": ...}) == "no-digest"
    assert wrong({"nodeid": ..., "qualname": "test_y.T.test_z"}) == ""
    assert wrong({"nodeid": ..., "qualname": "test_x.test_z"}) == "ambiguous"
    assert wrong({"nodeid": ..., "qualname": "test_none.test_z"}) == "no-such-test"
    assert wrong({"nodeid": "src/pay.py::test_z"}) == "no-such-test"


@pytest.mark.parametrize("late", [0, 1])
def test_duplicates_in_either_order(late: int) -> None:
    rows = [{}, {}]
    rows[late] = {"expires_at": NOW - 5}
    assert wrong(*rows) == wrong(*reversed(rows)) == "duplicate"
    assert wrong({}, {"nodeid": ..., "qualname": "test_y.T.test_z"}) == "duplicate"
    assert wrong({}, {"nodeid": LEASE["nodeid"] + "[1]"}) == "duplicate"
    assert wrong({"nodeid": LEASE["nodeid"] + "[2]"}, {"nodeid": LEASE["nodeid"] + "[1]"}) == ""


def test_expected_red_rows_live_until_they_expire() -> None:
    rows = [RED, {**RED, "nodeid": "tests/test_y.py::t[a]"}, {**RED, "nodeid": "tests/test_y.py::dead", "expires_at": NOW}]
    ledger = parse(json.dumps({"leases": [], "expected_red": rows}).encode())
    found = expected_red(ledger, MODULES, lambda stem: HASH, NOW, 90)
    assert found == {"tests/test_y.py::T::test_z", "tests/test_y.py::t[a]"}
    assert expected_red(EMPTY, MODULES, lambda stem: HASH, NOW, 90) == frozenset()
