"""Which change classes a patch holds, and whether scoring it would be self-referential (section 0)."""

from __future__ import annotations

from .records import Class, PatchBody


def classes_of(patch: PatchBody) -> frozenset[Class]:
    """The classes that the patch touches. A sealed-glob file whose every sealed test is unchanged counts as proposed."""
    proposed = {edit.path for edit in patch.edits if edit.as_ == "proposed"}
    return frozenset("proposed" if row.path in proposed else row.class_ for row in patch.changes)


def self_referential(patch: PatchBody) -> bool:
    """A patch that moves the oracle and the product together is not scored in the strict layout."""
    return patch.layout == "strict" and {"product", "oracle"} <= classes_of(patch)
