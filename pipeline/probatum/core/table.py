"""Which change classes a patch holds, whether scoring it would be self-referential (section 0), and which tests it brings."""

from __future__ import annotations

from .records import Class, PatchBody


def counted(patch: PatchBody) -> list[tuple[str, Class]]:
    """(path, the class that counts) of every change: a file of the oracle in which every sealed test is unchanged is proposed.

    Only a file of the oracle can be: a new conftest stays harness.
    """
    free = {edit.path for edit in patch.edits if edit.as_ == "proposed"}
    return [(row.path, "proposed" if row.class_ == "oracle" and row.path in free else row.class_) for row in patch.changes]


def classes_of(patch: PatchBody) -> frozenset[Class]:
    """The classes that the patch touches."""
    return frozenset(class_ for _, class_ in counted(patch))


def self_referential(patch: PatchBody) -> bool:
    """A patch that moves the oracle and the product together is not scored in the strict layout."""
    return patch.layout == "strict" and {"product", "oracle"} <= classes_of(patch)


def proposed_paths(record: PatchBody) -> tuple[str, ...]:
    """Escaped paths of the test modules that the patch brings and that are nobody's oracle."""
    free = {edit.path for edit in record.edits if edit.as_ == "proposed"}
    rows = (row for row in record.changes if row.new_oid and (row.path in free or row.class_ == "proposed"))
    return tuple(sorted(row.path for row in rows if _is_test(row.path)))


def _is_test(path: str) -> bool:
    name = path.rsplit("/", 1)[-1]
    return name.endswith(".py") and (name.startswith("test_") or name.endswith("_test.py"))
