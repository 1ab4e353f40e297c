"""The seal pins the oracle: what parses, what it says of a patch, and that anything wrong with it fails closed."""

from __future__ import annotations

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probatum.core.check import Change, Entry
from probatum.core.policy import Paths, Policy, SealPolicy
from probatum.core.seal import (
    Pin,
    Seal,
    edits,
    make_seal,
    parse_seal,
    problems,
    render,
    sealed_tree,
    unsealed,
)
from probatum.core.stage import Blob, Tree

POLICY = Policy(version=1, layout="in-place", paths=Paths(product=("src/**",), sealed=("tests/**",)))

MEAN = """\
import pytest
from .helpers import close


@pytest.fixture
def numbers():
    return [1, 2, 3]


def test_mean(numbers):
    assert close(sum(numbers) / 3, 2)


class TestEmpty:
    def test_raises(self):
        with pytest.raises(ZeroDivisionError):
            1 / 0
"""
BASE = {
    "src/mean.py": "X = 1\n",
    "tests/__init__.py": "",
    "tests/helpers.py": "def close(a, b):\n    return abs(a - b) < 1e-9\n",
    "tests/test_mean.py": MEAN,
    "tests/data/rows.csv": "1,2\n",
}


class Store:
    """Blobs by id, as git would keep them."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}

    def tree(self, texts: dict[str, str]) -> Tree:
        return Tree({path.encode(): Blob(0o100644, oid=self.add(text.encode())) for path, text in texts.items()})

    def add(self, data: bytes) -> str:
        oid = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        self.blobs[oid] = data
        return oid

    def read(self, oid: str) -> bytes:
        return self.blobs[oid]


def changes(old: Tree, new: Tree) -> list[Change]:
    found = []
    for path in sorted({*old.files, *new.files}):
        was, now = old.files.get(path), new.files.get(path)
        if was != now:
            entries = [None if blob is None else Entry(blob.mode, blob.oid, path) for blob in (was, now)]
            found.append(Change("M" if was and now else "A" if now else "D", *entries))
    return found


def judge(
    after: dict[str, str | None], base: dict[str, str] = BASE, sealed: dict[str, str] = BASE
) -> dict[str, tuple[str, tuple[str, ...]]]:
    store = Store()
    seal, left = make_seal(store.tree(sealed), POLICY, store.read, "2026-01-31")
    assert not left
    merged = store.tree({path: text for path, text in {**base, **after}.items() if text is not None})
    found = edits(changes(store.tree(base), merged), seal, POLICY, merged, store.read)
    return {edit.path: (edit.as_, edit.tests) for edit in found}


def test_a_seal_holds_what_the_globs_claim_and_names_each_modules_tests():
    store = Store()
    seal, left = make_seal(store.tree({**BASE, "conftest.py": "", "docs/conftest.py": ""}), POLICY, store.read, "2026-01-31")
    assert set(seal.paths) == {b"conftest.py", *(path.encode() for path in BASE if path.startswith("tests/"))} and not left
    assert seal.modules == (b"tests/test_mean.py",)
    assert seal.paths[b"tests/test_mean.py"].tests == ("test_mean", "TestEmpty::test_raises")
    assert sealed_tree(seal).files[b"tests/helpers.py"] == Blob(0o100644, oid=store.add(BASE["tests/helpers.py"].encode()))


def test_a_seal_reads_back_as_it_was_written_and_a_path_is_one_line():
    store = Store()
    seal, _ = make_seal(store.tree({**BASE, "tests/a\nb%c.csv": "x"}), POLICY, store.read, "2026-01-31")
    data = render(seal)
    assert parse_seal(data) == (seal, [])
    assert data.count(b"\n") == 6 + len(seal.paths) and data.endswith(b"}\n")


names = st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=8), max_size=3, unique=True)
parts = st.binary(min_size=1, max_size=6).filter(
    lambda part: b"/" not in part and b"\0" not in part and part not in (b".", b"..", b".git")
)


@given(
    st.dictionaries(
        parts, st.builds(Pin, st.sampled_from([0o100644, 0o100755]), st.just("0" * 40), names.map(tuple)), min_size=1
    )
)
def test_every_seal_reads_back(paths):
    seal = Seal(paths, "2026-01-31")
    assert parse_seal(render(seal)) == (seal, [])


GOOD = {"mode": "100644", "blob": "0" * 40, "tests": ["test_a"]}


def seal_text(paths: object, **more: object) -> bytes:
    return json.dumps({"version": 1, "sealed_at": "2026-01-31", "paths": paths, **more}).encode()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is no JSON"),
        (b"[" * 100_000, "is no JSON"),
        (b"\xff", "is no JSON"),
        (b"[]", "must hold exactly"),
        (seal_text({"a": GOOD}, extra=1), "must hold exactly"),
        (seal_text({"a": GOOD}, version=2), "version 2"),
        (seal_text({"a": GOOD}, version=True), "version True"),
        (seal_text({"a": GOOD}, sealed_at="31.1.2026"), "is no day"),
        (seal_text({"a": GOOD}, sealed_at="2026-02-30"), "is no day"),
        (seal_text([]), "must hold exactly"),
        (seal_text({}), "pins no test module"),
        (seal_text({"a": {"mode": "100644", "blob": "0" * 40}}), "pins no test module"),
        (seal_text({"a": {**GOOD, "size": 1}}), "must hold mode and blob"),
        (seal_text({"a": {**GOOD, "mode": "120000"}}), "mode '120000'"),
        (seal_text({"a": {**GOOD, "mode": []}}), "mode []"),
        (seal_text({"a": {**GOOD, "blob": "HEAD"}}), "is no object id"),
        (seal_text({"a": {**GOOD, "tests": "test_a"}}), "must be a list"),
        (seal_text({"a": {**GOOD, "tests": ["t", "t"]}}), "one twice"),
        (seal_text({"a": {**GOOD, "tests": None}}), "must be a list"),
        (seal_text({"../a": GOOD}), "no path of a tree"),
        (seal_text({"/a": GOOD}), "no path of a tree"),
        (seal_text({".git/a": GOOD}), "no path of a tree"),
        (seal_text({"%61": GOOD}), "no path of a tree"),
        (seal_text({"a": GOOD, "a/b": GOOD}), "lies below a sealed file"),
        (seal_text({"a": GOOD}).replace(b'"a": {', b'"a": {"mode": "100644"}, "a": {'), "a: is there twice"),
        (seal_text({"a": GOOD}).replace(b'"version"', b'"version": 1, "version"'), "version: is there twice"),
    ],
)  # fmt: skip
def test_anything_wrong_empties_the_seal_and_is_one_line(data, says):
    seal, found = parse_seal(data)
    assert not seal.paths and any(says in line for line in found)
    assert all(line.startswith("ci/seal.lock") and line.isprintable() for line in found)


def test_a_blob_that_is_gone_and_an_old_seal_are_problems():
    seal = Seal({b"tests/test_a.py": Pin(0o100644, "1" * 40, ("test_a",))}, "2026-01-31")
    aged = Policy(version=1, layout="in-place", seal=SealPolicy(max_days=30))
    day = 86400
    sealed = 1769817600  # 2026-01-31
    assert problems(seal, POLICY, lambda oid: False, sealed + 5000 * day) == []
    assert problems(seal, aged, lambda oid: False, sealed + 30 * day) == []
    assert "31 days ago, and policy allows 30" in problems(seal, aged, lambda oid: False, sealed + 31 * day)[0]
    assert "is not yet" in problems(seal, aged, lambda oid: False, sealed - 5 * day)[0]
    assert "tests/test_a.py: the blob 1111" in problems(seal, POLICY, lambda oid: True, sealed)[0]


def test_what_was_merged_since_is_not_in_a_scored_tree():
    store = Store()
    seal, _ = make_seal(store.tree(BASE), POLICY, store.read, "2026-01-31")
    later = {**BASE, "tests/test_new.py": "", "tests/sub/conftest.py": "", "src/tests.py": ""}
    assert unsealed(store.tree(later).files, seal, POLICY) == {b"tests/test_new.py", b"tests/sub/conftest.py"}


EDITS = {
    "a new module": ({"tests/test_new.py": "def test_x():\n    assert 1\n"}, {"tests/test_new.py": ("proposed", ())}),
    "a new helper": ({"tests/more.py": "X = 1\n"}, {"tests/more.py": ("proposed", ())}),
    "a test added": (
        {"tests/test_mean.py": MEAN + "\n\ndef test_more():\n    assert True\n"},
        {"tests/test_mean.py": ("proposed", ("test_more",))},
    ),
    "a comment and a blank line": ({"tests/test_mean.py": "# why\n\n" + MEAN}, {"tests/test_mean.py": ("proposed", ())}),
    "an import nobody sealed uses": ({"tests/test_mean.py": "import os\n" + MEAN}, {"tests/test_mean.py": ("proposed", ())}),
    "an assertion weakened": (
        {"tests/test_mean.py": MEAN.replace("/ 3, 2", "/ 3, 2.0")},
        {"tests/test_mean.py": ("oracle", ("test_mean",))},
    ),
    "a fixture changed": (
        {"tests/test_mean.py": MEAN.replace("[1, 2, 3]", "[2, 2, 2]")},
        {"tests/test_mean.py": ("oracle", ("test_mean",))},
    ),
    "a test renamed": (
        {"tests/test_mean.py": MEAN.replace("test_raises", "test_it_raises")},
        {"tests/test_mean.py": ("oracle", ("TestEmpty::test_raises",))},
    ),
    "a module that no longer parses": (
        {"tests/test_mean.py": "def (\n"},
        {"tests/test_mean.py": ("oracle", ("test_mean", "TestEmpty::test_raises"))},
    ),
    "a module deleted": (
        {"tests/test_mean.py": None},
        {"tests/test_mean.py": ("oracle", ("test_mean", "TestEmpty::test_raises"))},
    ),
    "a helper changed": ({"tests/helpers.py": "def close(a, b):\n    return True\n"}, {"tests/helpers.py": ("oracle", ())}),
    "data changed": ({"tests/data/rows.csv": "3,4\n"}, {"tests/data/rows.csv": ("oracle", ())}),
    "an autouse fixture slipped in": (
        {"tests/test_mean.py": MEAN + "\n\n@pytest.fixture(autouse=True)\ndef _quiet():\n    yield\n"},
        {"tests/test_mean.py": ("oracle", ("test_mean", "TestEmpty::test_raises"))},
    ),
    "product only": ({"src/mean.py": "X = 2\n"}, {}),
}


@pytest.mark.parametrize("case", EDITS)
def test_what_a_patch_does_to_the_oracle(case):
    after, expected = EDITS[case]
    assert judge(after) == expected


def test_a_module_without_static_tests_is_oracle_as_a_whole():
    made = "import unittest\nglobals()['test_x'] = lambda: None\n"
    base = {**BASE, "tests/test_made.py": made}
    assert judge({"tests/test_made.py": made + "# more\n"}, base, base) == {"tests/test_made.py": ("oracle", ())}


def test_the_digests_are_the_seals_and_not_what_base_became_since():
    drifted = {**BASE, "tests/test_mean.py": MEAN.replace("/ 3, 2", "/ 3, 2.5")}
    assert judge({"tests/test_mean.py": MEAN}, drifted) == {}, "back to the pinned blob"
    commented = drifted["tests/test_mean.py"] + "# more\n"
    assert judge({"tests/test_mean.py": commented}, drifted) == {"tests/test_mean.py": ("oracle", ("test_mean",))}


def test_a_change_of_mode_is_one_of_the_oracle():
    store = Store()
    base = store.tree(BASE)
    seal, _ = make_seal(base, POLICY, store.read, "2026-01-31")
    path = b"tests/test_mean.py"
    for mode in (0o100755, 0o120000):
        merged = base.with_files({path: Blob(mode, oid=base.files[path].oid)})
        assert [edit.as_ for edit in edits(changes(base, merged), seal, POLICY, merged, store.read)] == ["oracle"]


def test_links_are_left_out_of_a_seal_and_named():
    store = Store()
    tree = store.tree(BASE).with_files({b"tests/link.py": Blob(0o120000, oid=store.add(b"../src/mean.py"))})
    seal, left = make_seal(tree, POLICY, store.read, "2026-01-31")
    assert b"tests/link.py" not in seal.paths and "tests/link.py" in left[0]
