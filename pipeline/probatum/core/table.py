"""Which change classes a patch holds, and whether scoring it would be self-referential (section 0)."""

from __future__ import annotations

from .records import ChangeRow, Class, PatchBody


def class_of(row: ChangeRow, patch: PatchBody) -> Class:
    """The class that counts: a file of the oracle in which every sealed test is unchanged is proposed. A new conftest is not."""
    if row.class_ == "oracle" and any(edit.path == row.path and edit.as_ == "proposed" for edit in patch.edits):
        return "proposed"
    return row.class_


def classes_of(patch: PatchBody) -> frozenset[Class]:
    """The classes that the patch touches."""
    return frozenset(class_of(row, patch) for row in patch.changes)


def self_referential(patch: PatchBody) -> bool:
    """A patch that moves the oracle and the product together is not scored in the strict layout."""
    return patch.layout == "strict" and {"product", "oracle"} <= classes_of(patch)
