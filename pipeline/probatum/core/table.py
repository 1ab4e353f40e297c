"""Which change classes a patch holds, and whether scoring it would be self-referential (section 0)."""

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
