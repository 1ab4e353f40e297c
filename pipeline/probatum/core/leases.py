"""The ledger of expiring permissions: strict to parse, and a row permits only what it names, until it expires."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any

import msgspec

from ..errors import Exit, ProbatumError, one_line
from .closure import split_id

DAY = 86_400
LONGEST = 1 << 20
"""A ledger above this many bytes is malformed: nobody reads it."""

Stamp = Annotated[int, msgspec.Meta(ge=1, le=253_402_300_799, description="unix seconds, UTC")]
Line = Annotated[str, msgspec.Meta(min_length=1, max_length=2000, pattern=r"\S")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=4000, pattern=r"^[^*?\[]+(\[.*)?$")]
Hash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)", description="as `probatum lease digest` prints it")]
OldHash = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{16}([0-9a-f]{48})?$(?!\n)")]
Signature = Annotated[str, msgspec.Meta(pattern=r"^\s*[A-Za-z_][\w.]*:\s+\S", max_length=2000)]


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What every row says: whose test (a node id, or ``module_stem.Class.name``), who answers for it, and why."""

    nodeid: Name | None = None
    qualname: Name | None = None
    owner: Line
    reason: Line
    first_seen: Stamp | None = None

    @property
    def name(self) -> str:
        """The test as the row names it."""
        return self.nodeid or self.qualname or ""


class Lease(Row, frozen=True, kw_only=True, omit_defaults=True):
    """Permits a skip or xfail of one test, while its source digest and its way of failing stay what they were."""

    failure_signature: Signature
    expires_at: Stamp
    source_digest: Hash | None = None
    bytecode_hash: OldHash | None = None
    python: Annotated[str, msgspec.Meta(pattern=r"^3\.[0-9]{1,2}$(?!\n)")] | None = None
    marker: Line | None = None


class Standing(Row, frozen=True, kw_only=True, omit_defaults=True):
    """Permits a conditional skip whose condition is true at base (a platform, a missing optional module)."""

    condition: Line
    source_digest: Hash
    review_at: Stamp


class ExpectedRed(Row, frozen=True, kw_only=True, omit_defaults=True):
    """A test that was landed red: it exempts unrelated patches until it expires."""

    expires_at: Stamp
    source_digest: Hash | None = None


class Quarantined(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An id that other checks may hold instead of block, until it expires."""

    id: Name
    first_seen: Stamp
    expires: Stamp
    owner: Line
    reason: Line

    @property
    def name(self) -> str:
        return self.id


class Ledger(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """``ci/flake_leases.json``."""

    leases: tuple[Lease, ...]
    standing: tuple[Standing, ...] = ()
    expected_red: tuple[ExpectedRed, ...] = ()
    quarantine: tuple[Quarantined, ...] = ()


EMPTY = Ledger(leases=())


class Malformed(ProbatumError):
    """A ledger that is not exactly what its schema says. It permits nothing."""

    exit = Exit.USAGE

    def __init__(self, what: str) -> None:
        super().__init__("ci/flake_leases.json", what, "mend the ledger in a change of its own")


def parse(data: bytes) -> Ledger:
    """The ledger in ``data``. Raises Malformed: not UTF-8, a byte order mark, not JSON, a key twice, NaN, an unknown key,
    text or true for a number, an empty owner, reason or signature, a wildcard.
    """
    if len(data) > LONGEST:
        raise Malformed(f"has {len(data)} bytes; at most {LONGEST}")
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        raise Malformed("starts with a byte order mark")
    try:
        plain = json.loads(
            data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_no_float, parse_int=_number
        )
        json.dumps(plain, ensure_ascii=False).encode("utf-8")  # a lone surrogate has no UTF-8
        ledger = msgspec.convert(plain, Ledger, strict=True)
    except UnicodeDecodeError as error:
        raise Malformed(f"is not UTF-8 at byte {error.start}") from None
    except msgspec.ValidationError as error:
        raise Malformed(one_line(str(error))) from None
    except (ValueError, RecursionError) as error:
        raise Malformed(f"is not strict JSON: {one_line(str(error)) or type(error).__name__}") from None
    for section, rows in sections(ledger):
        for index, row in enumerate(rows):
            if isinstance(row, Row) and (row.nodeid is None) == (row.qualname is None):
                raise Malformed(f"{section}[{index}] needs exactly one of nodeid and qualname")
            for field in (row.name, getattr(row, "condition", None) or "x"):
                if field != field.strip():
                    raise Malformed(f"{section}[{index}] has white space around {one_line(repr(field))}")
    return ledger


def sections(ledger: Ledger) -> Iterable[tuple[str, Sequence[Any]]]:
    """The four lists by name."""
    for field in Ledger.__struct_fields__:
        yield field, getattr(ledger, field)


def dump(ledger: Ledger) -> bytes:
    """The ledger as it is written: two spaces a level, keys as the types order them, one newline at the end.

    Raises Malformed for what ``parse`` would refuse.
    """
    text = json.dumps(msgspec.to_builtins(ledger), indent=2, ensure_ascii=False) + "\n"
    data = text.encode("utf-8", "surrogatepass")
    parse(data)
    return data


def schema() -> dict[str, Any]:
    """The JSON Schema of the ledger, from the types."""
    return msgspec.json.schema(Ledger)


def normal(text: str) -> str:
    """White space normalised: runs become one space, none at the ends."""
    return " ".join(text.split())


def signature_matches(leased: str, seen: str) -> bool:
    """``Type: `` and a prefix of the message; the type alone is not enough, and no more white space counts than one."""
    leased, seen = normal(leased), normal(seen)
    kind, colon, message = leased.partition(": ")
    return bool(kind and colon and message) and seen.startswith(leased)


def matches(row_name: str, is_qualname: bool, stem: str) -> bool:
    """Whether a row names the test ``PATH::CLASS::NAME`` (without parameters)."""
    path, name = split_id(stem)
    if not is_qualname:
        row_path, row_test = split_id(row_name)
        return (row_path, row_test) == (path, name)
    return row_name.partition("[")[0] == qualname(path, name)


def qualname(path: str, name: str) -> str:
    """``module_stem.Class.name``, the source article's form."""
    stem = path.rpartition("/")[2].removesuffix(".py")
    return ".".join(filter(None, (stem, *name.split("::"))))


class Book:
    """A ledger against the sealed modules: which row speaks of which test, and what is wrong with a row.

    ``modules`` are the sealed test modules' paths as text; ``digest`` gives a test's source digest ("" when it has none).
    """

    def __init__(self, ledger: Ledger, modules: Iterable[str], digest: Callable[[str], str], now: int, max_days: int) -> None:
        self.ledger, self.now, self.max_days, self.digest = ledger, now, max_days, digest
        self.modules = tuple(modules)

    def stem(self, row: Row) -> str:
        """The test a row names, as ``PATH::CLASS::NAME``; "" when no sealed module, or more than one, answers to it."""
        if row.nodeid is not None:
            path, name = split_id(row.nodeid)
            return "::".join(filter(None, (path, name))) if path in self.modules else ""
        found = self.candidates(row)
        return found[0] if len(found) == 1 else ""

    def candidates(self, row: Row) -> list[str]:
        """Every test that a ``qualname`` may mean: two sealed modules of one stem make two."""
        head, _, rest = (row.qualname or "").partition("[")[0].partition(".")
        paths = [path for path in self.modules if path.rpartition("/")[2].removesuffix(".py") == head]
        return ["::".join(filter(None, (path, *rest.split(".")))) for path in paths]

    def param(self, row: Row) -> str:
        """The ``[param]`` that a row is limited to; "" for every one."""
        _, bracket, rest = row.name.rpartition("::")[2].partition("[")
        return bracket + rest

    def wrong(self, row: Lease | Standing | ExpectedRed, rows: Sequence[Row]) -> tuple[str, str] | None:
        """(finding name, reason) of the first thing wrong with a row, or None."""
        if row.qualname is not None and len(self.candidates(row)) > 1:
            return "ambiguous", f"{row.name} may be {' or '.join(self.candidates(row))}"
        stem = self.stem(row)
        if not stem:
            return "no-such-test", f"no sealed module holds {row.name}"
        if sum(self.same(row, other) for other in rows) > 1:
            return "duplicate", f"{len([1 for other in rows if self.same(row, other)])} rows name {row.name}"
        wrong = self._dead(row)
        if wrong is None and isinstance(row, Lease) and row.source_digest is None:
            what = "only a bytecode_hash" if row.bytecode_hash else "no source_digest"
            return "no-digest", f"the row has {what}"
        if wrong is None and row.source_digest is not None and row.source_digest != self.digest(stem):
            now = self.digest(stem)[:12] or "nothing"
            return "drifted", f"the test is no longer the leased one: {row.source_digest[:12]}… leased, {now}… sealed"
        return wrong

    def same(self, row: Row, other: Row) -> bool:
        """Whether two rows speak of the same test: one for all parameters overlaps every one."""
        mine, theirs = self.stem(row), self.stem(other)
        if isinstance(row, Standing) and isinstance(other, Standing) and normal(row.condition) != normal(other.condition):
            return False
        one, two = self.param(row), self.param(other)
        return (mine or row.name) == (theirs or other.name) and (one == two or not one or not two)

    def _dead(self, row: Lease | Standing | ExpectedRed) -> tuple[str, str] | None:
        until = row.review_at if isinstance(row, Standing) else row.expires_at
        if self.now >= until:
            return "expired", f"{'review was due' if isinstance(row, Standing) else 'expired'} {ago(self.now - until)} ago"
        if not isinstance(row, Standing) and until - self.now > self.max_days * DAY:
            return "too-long", f"expires in {ago(until - self.now)}; the policy allows {self.max_days} days"
        return None


def expected_red(
    ledger: Ledger, modules: Iterable[str], digest: Callable[[str], str], now: int, max_days: int
) -> frozenset[str]:
    """The tests (``PATH::CLASS::NAME``, with ``[param]`` where the row has one) that may be red on base, live rows only."""
    book = Book(ledger, modules, digest, now, max_days)
    return frozenset(
        book.stem(row) + book.param(row) for row in ledger.expected_red if book.wrong(row, ledger.expected_red) is None
    )


def ago(seconds: int) -> str:
    """A duration in its largest fitting unit."""
    for unit, size in (("days", DAY), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} stands twice")
        found[key] = value
    return found


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _no_float(text: str) -> Any:
    raise ValueError(f"{text[:40]} is no whole number")


def _number(text: str) -> int:
    if len(text) > 12:
        raise ValueError(f"{text[:40]}… is no time")
    return int(text)
