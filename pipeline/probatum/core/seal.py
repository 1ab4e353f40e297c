"""``ci/seal.lock`` pins every sealed path to its blob: nothing that was merged since is oracle until a human seals again.

    {
      "version": 1,
      "sealed_at": "2026-01-31",
      "paths": {
        "tests/conftest.py": {"mode": "100644", "blob": "…"},
        "tests/test_mean.py": {"mode": "100644", "blob": "…", "tests": ["test_mean", "TestEmpty::test_raises"]}
      }
    }

One line a path, sorted, so that a diff shows what a human is asked to seal. ``tests`` marks a test module.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from ..errors import one_line
from .canonical import escape, unescape
from .check import Change
from .closure import Closures
from .globs import compiled, text
from .modules import LazyFiles, Unresolved
from .policy import SEAL, Policy
from .records import Edit
from .stage import Blob, Tree
from .static_tests import CONFIG_FILES, Conventions, conventions, try_static_tests

VERSION = 1
_MODES = {"100644": 0o100644, "100755": 0o100755}
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Pin(msgspec.Struct, frozen=True):
    """One sealed path: git mode, blob id, and for a test module the names of its static tests (None for other files)."""

    mode: int
    oid: str
    tests: tuple[str, ...] | None = None


class Seal(msgspec.Struct, frozen=True):
    """The pinned oracle. ``sealed_at`` is the day on which a human sealed it, as YYYY-MM-DD, UTC."""

    paths: dict[bytes, Pin]
    sealed_at: str

    @property
    def modules(self) -> tuple[bytes, ...]:
        """The sealed test modules, sorted."""
        return tuple(sorted(path for path, pin in self.paths.items() if pin.tests is not None))


def parse_seal(data: bytes) -> tuple[Seal, list[str]]:
    """The seal in ``data`` and what is wrong with it, one line each. With anything wrong the seal is empty: fail closed."""
    problems: list[str] = []
    try:
        raw = json.loads(data.decode("utf-8"), object_pairs_hook=lambda pairs: _once(pairs, problems))
    except (ValueError, RecursionError) as error:
        return Seal({}, ""), [one_line(f"{SEAL}: is no JSON: {error}; run probatum seal")]
    if not isinstance(raw, dict) or set(raw) != {"version", "sealed_at", "paths"} or not isinstance(raw["paths"], dict):
        return Seal({}, ""), [f"{SEAL}: must hold exactly version, sealed_at and paths; run probatum seal", *problems]
    if raw["version"] is not VERSION:
        problems.append(f"{SEAL}: version {raw['version']!r} is not {VERSION}; use the probatum that wrote it")
    if not isinstance(raw["sealed_at"], str) or _day(raw["sealed_at"]) is None:
        problems.append(f"{SEAL}: sealed_at {raw['sealed_at']!r} is no day; write it as YYYY-MM-DD")
    paths: dict[bytes, Pin] = {}
    for name, entry in raw["paths"].items():
        why, pin = _pin(name, entry)
        if pin is None:
            problems.append(f"{SEAL}: {name}: {why}; run probatum seal")
        else:
            paths[unescape(name)] = pin
    for path in paths:
        parents = path.split(b"/")[:-1]
        for cut in range(1, len(parents) + 1):
            if b"/".join(parents[:cut]) in paths:
                problems.append(f"{SEAL}: {escape(path)}: lies below a sealed file; run probatum seal")
    if not problems and not any(pin.tests is not None for pin in paths.values()):
        problems.append(f"{SEAL}: pins no test module; check paths.sealed in ci/gate.yaml, then run probatum seal")
    return (Seal({}, ""), [one_line(line) for line in problems]) if problems else (Seal(paths, raw["sealed_at"]), [])


def render(seal: Seal) -> bytes:
    """The bytes of ``ci/seal.lock``."""
    lines = [f'{{\n  "version": {VERSION},\n  "sealed_at": "{seal.sealed_at}",\n  "paths": {{']
    rows = []
    for path in sorted(seal.paths):
        pin = seal.paths[path]
        entry: dict[str, Any] = {"mode": f"{pin.mode:o}", "blob": pin.oid}
        if pin.tests is not None:
            entry["tests"] = list(pin.tests)
        rows.append(f"    {json.dumps(escape(path), ensure_ascii=False)}: {json.dumps(entry, ensure_ascii=False)}")
    return "\n".join([*lines, ",\n".join(rows), "  }\n}\n"]).encode()


def make_seal(base: Tree, policy: Policy, read: Callable[[str], bytes], today: str) -> tuple[Seal, list[str]]:
    """What a human would seal now: every file of ``base`` that a sealed glob claims, and the conftest files above them.

    Also returns the paths that cannot be sealed, with the reason, one line each.
    """
    claimed = compiled(policy.paths.sealed)
    rules = rules_of(base, read)
    chosen = {path for path in base.files if claimed.fullmatch(text(path))}
    modules = {path for path in chosen if rules.is_module(path)}
    for path in modules:
        folder = path
        while folder:
            folder = folder.rpartition(b"/")[0]
            conftest = folder + b"/conftest.py" if folder else b"conftest.py"
            chosen |= {conftest} & base.files.keys()
    pins: dict[bytes, Pin] = {}
    left: list[str] = []
    for path in sorted(chosen):
        blob = base.files[path]
        if blob.mode not in (0o100644, 0o100755):
            left.append(f"{escape(path)}: a symlink or submodule is not sealed; replace it by a file")
            continue
        tests = try_static_tests(path, read(blob.oid), rules) if path in modules else None
        pins[path] = Pin(blob.mode, blob.oid, tests)
    return Seal(pins, today), left


def rules_of(base: Tree, read: Callable[[str], bytes]) -> Conventions:
    """How base's own configuration names test files, classes and functions."""
    found = {path: base.files[path] for path in CONFIG_FILES if path in base.files}
    return conventions({path: blob.data if blob.data is not None else read(blob.oid) for path, blob in found.items()})


def sealed_tree(seal: Seal) -> Tree:
    """The oracle: the pinned blobs, whatever base holds at those paths now."""
    return Tree({path: Blob(pin.mode, oid=pin.oid) for path, pin in seal.paths.items()})


def unsealed(paths: Iterable[bytes], seal: Seal, policy: Policy) -> frozenset[bytes]:
    """Paths that a sealed glob claims and nobody sealed: a scored tree must not hold them beside the oracle."""
    claimed = compiled(policy.paths.sealed)
    return frozenset(path for path in paths if path not in seal.paths and claimed.fullmatch(text(path)))


def problems(seal: Seal, policy: Policy, missing: Callable[[str], bool], now: int) -> list[str]:
    """What is wrong with a seal that parsed: blobs that the repository lacks, and its age. ``now`` is unix seconds."""
    found = [
        f"{SEAL}: {escape(path)}: the blob {pin.oid} is not in the repository; run probatum seal"
        for path, pin in sorted(seal.paths.items())
        if missing(pin.oid)
    ]
    most = policy.seal.max_days
    day = _day(seal.sealed_at)
    if most is not None and day is not None:
        today = datetime.datetime.fromtimestamp(now, datetime.UTC).date()
        age = (today - day).days
        if age < -1:
            found.append(f"{SEAL}: sealed_at {seal.sealed_at} is not yet; run probatum seal")
        elif age > most:
            found.append(f"{SEAL}: sealed {age} days ago, and policy allows {most}; run probatum seal")
    return found


def edits(changes: Iterable[Change], seal: Seal, policy: Policy, merged: Tree, read: Callable[[str], bytes]) -> list[Edit]:
    """What a patch does to paths that are sealed or that a sealed glob claims.

    A path that nobody sealed is ``proposed``. A sealed module whose every sealed test has the closure digest that it was
    sealed with is ``proposed``; ``tests`` then names what is new in it. Everything else is ``oracle``; ``tests`` then names
    the sealed tests that changed or went. A change back to the pinned blob is no edit.
    """
    claimed = compiled(policy.paths.sealed)
    changed = [change for change in changes if change.path in seal.paths or claimed.fullmatch(text(change.path))]
    closures = _Sides(seal, policy, merged, read, [change.path for change in changed])
    found = []
    for change in changed:
        path, new = change.path, change.new
        pin = seal.paths.get(path)
        if pin is None:
            found.append(Edit(path=escape(path), as_="proposed"))
        elif new is not None and (new.mode, new.oid) == (pin.mode, pin.oid):
            continue
        elif new is None or pin.tests is None or new.mode != pin.mode:
            found.append(Edit(path=escape(path), as_="oracle", tests=pin.tests or ()))
        else:
            moved = closures.moved(path, pin.tests)
            added = () if moved else tuple(name for name in closures.names(path) if name not in pin.tests)
            # Without a static name there is no digest to hold it by: any change of such a module is one of the oracle.
            as_oracle = bool(moved) or not pin.tests
            found.append(Edit(path=escape(path), as_="oracle" if as_oracle else "proposed", tests=moved or added))
    return found


class _Sides:
    """Closures of the oracle as sealed, and as the patch would have it."""

    def __init__(
        self, seal: Seal, policy: Policy, merged: Tree, read: Callable[[str], bytes], changed: Iterable[bytes]
    ) -> None:
        self._read, self._merged = read, merged
        self._changed = list(changed)
        self._pins = sealed_tree(seal).files
        self._roots = tuple(root.encode() for root in policy.pythonpath)
        self._both: tuple[Closures, Closures] | None = None
        self._rules: Conventions | None = None

    def moved(self, path: bytes, tests: tuple[str, ...]) -> tuple[str, ...]:
        """The sealed tests whose digest changed, or that are gone, or that cannot be digested."""
        if self._both is None:
            old = LazyFiles(self._pins, self._read)
            mine = {name: self._merged.files[name] for name in self._changed if name in self._merged.files}
            kept = {name: blob for name, blob in self._pins.items() if name not in set(self._changed)}
            self._both = Closures(old, self._roots), Closures(LazyFiles({**kept, **mine}, self._read), self._roots)
        return tuple(name for name in tests if not self._same(path, name, *self._both))

    def names(self, path: bytes) -> tuple[str, ...]:
        """The static tests of the patch's version."""
        self._rules = self._rules or rules_of(self._merged, self._read)
        return try_static_tests(path, self._read(self._merged.files[path].oid), self._rules)

    @staticmethod
    def _same(path: bytes, name: str, old: Closures, new: Closures) -> bool:
        try:
            return old.digest(path, name) == new.digest(path, name)
        except Unresolved:
            return False


def _pin(name: str, entry: Any) -> tuple[str, Pin | None]:
    path = unescape(name)
    if escape(path) != name or any(part in (b"", b".", b"..", b".git") for part in path.split(b"/")):
        return "is no path of a tree", None
    if not isinstance(entry, dict) or not {"mode", "blob"} <= set(entry) <= {"mode", "blob", "tests"}:
        return "must hold mode and blob, and for a test module tests", None
    mode, oid, tests = entry["mode"], entry["blob"], entry.get("tests")
    if not isinstance(mode, str) or mode not in _MODES:
        return f"mode {mode!r} is not 100644 or 100755", None
    if not isinstance(oid, str) or _OID.fullmatch(oid) is None:
        return f"blob {oid!r} is no object id", None
    if "tests" in entry:
        if not isinstance(tests, list) or not all(isinstance(test, str) and test for test in tests):
            return "tests must be a list of names", None
        if len(set(tests)) != len(tests):
            return "tests names one twice", None
        return "", Pin(_MODES[mode], oid, tuple(tests))
    return "", Pin(_MODES[mode], oid)


def _once(pairs: list[tuple[str, Any]], problems: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            problems.append(f"{SEAL}: {key}: is there twice; run probatum seal")
        found[key] = value
    return found


def _day(value: str) -> datetime.date | None:
    try:
        return datetime.date.fromisoformat(value) if re.fullmatch(r"\d{4}-\d{2}-\d{2}", value) else None
    except ValueError:
        return None
