"""What control twins, the disguised run and the audit hook's lines prove, and which of their jobs base must run as well."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping

from .canonical import digest_of, escape, unescape
from .check import Note, Patch
from .records import Body, PatchBody, SuiteBody, TestRow
from .verdict import Finding, Verdict

RED = ("failed", "error")
DISGUISED = "w"
"""Label of the job that runs the sealed tests unchanged, in disguise."""

FRAMES = ("tb_frame", "gi_frame", "cr_frame", "ag_frame")
NAMES: Mapping[str, tuple[str, ...]] = {
    "sys._getframe": (
        "_getframe", "currentframe", "inspect.stack", "getouterframes", "extract_stack", "format_stack", "print_stack",
        "walk_stack",
    ),
    "sys._getframemodulename": ("_getframemodulename",),
    "sys._current_frames": ("_current_frames",),
    "sys.settrace": ("settrace",),
    "sys.setprofile": ("setprofile",),
    "gc.get_objects": ("get_objects",),
    "gc.get_referrers": ("get_referrers",),
    "gc.get_referents": ("get_referents",),
    **{name: (name,) for name in FRAMES},
    "a sealed test": ("inspect.getsource", "getsource", "getsourcelines", "linecache"),
    "the probe": ("inspect.stack", "getouterframes", "getinnerframes"),
}  # fmt: skip
"""What the probe can hear, and the names in a file's code that lead there."""

_PLACES = re.compile(r"/w/[0-9a-f]{16}|0x[0-9a-f]+")


class LooksBody(Body, frozen=True, kw_only=True):
    """Escaped path of a changed product file to what base's version of it looks at, as its code shows (keys of NAMES)."""

    words: dict[str, tuple[str, ...]]


def looks_note(patch: Patch) -> Note:
    """The record ``looks``, from base's blobs of the changed product files."""
    words = {}
    for change in patch.changes:
        blob = patch.base.files.get(change.path)
        if blob is not None and blob.oid and patch.classes.get(change.path) == "product" and change.path.endswith(b".py"):
            found = _words(patch.read(blob.oid))
            if found:
                words[escape(change.path)] = found
    return Note(kind="looks", part="", body=LooksBody(words=words), input_digest=digest_of([patch.base.digest, words]))


def _words(source: bytes) -> tuple[str, ...]:
    """Only code counts: a name in a comment or a string looks at nothing."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    seen: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            seen.add(node.id)
        elif isinstance(node, ast.Attribute):
            seen.add(node.attr)
            if isinstance(node.value, ast.Name):
                seen.add(f"{node.value.id}.{node.attr}")
        elif isinstance(node, ast.ImportFrom):
            seen |= {name for one in node.names for name in (one.name, f"{node.module}.{one.name}")}
        elif isinstance(node, ast.Import):
            seen |= {one.name for one in node.names}
    return tuple(word for word, names in NAMES.items() if seen & set(names))


def suspects(twins: SuiteBody) -> list[str]:
    """``LABEL ID`` of the control twins that did not fail."""
    red = {row.id for row in twins.tests if row.outcome in RED}
    return [name for name in twins.collected if name not in red and not _plain(name)]


def undisguised(run: SuiteBody, twins: SuiteBody) -> list[str]:
    """``w ID`` of the tests that pass in the run and not in disguise."""
    good = {row.id for row in run.tests if row.outcome == "passed"}
    bare = {id_.partition("[")[0] for id_ in good}
    passed = {row.id for row in twins.tests if row.outcome == "passed"}
    planned = [name for name in twins.collected if _plain(name) and name not in passed]
    return [name for name in planned if _id(name) in good or ("[" not in name and _id(name) in bare)]


def looking(patch: PatchBody, words: LooksBody | None, twins: SuiteBody, check: SuiteBody | None) -> list[tuple[str, str]]:
    """(what, escaped path) of product files of the patch that look where base's version does not.

    Lines are made and compared, not read: a path may hold anything.
    """
    told = {line for line in twins.watch if line.startswith("looks: ")} - set(check.watch if check else ())
    known = words.words if words else {}
    found = []
    for row in patch.changes if told else ():
        if row.new_oid and row.class_ == "product":
            path = unescape(row.path).decode("utf-8", "surrogateescape").encode("utf-8", "backslashreplace").decode()
            lines = ((what, f"looks: {what} from {path}"[:300]) for what in NAMES if what not in known.get(row.path, ()))
            found += [(what, row.path) for what, line in lines if line in told]
    return found


def judged(
    patch: PatchBody, base: SuiteBody, run: SuiteBody, twins: SuiteBody, check: SuiteBody | None, words: LooksBody | None
) -> Iterator[Finding]:
    """Everything that the stage ``suite.twins`` says."""
    rows = {row.id for row in twins.tests}
    real = [name for name in twins.collected if not _plain(name)]
    silent = [name for name in real if name not in rows]
    if silent:
        said = f"{len(silent)} of {len(real)} control twins were never reported ({twins.end.how} {twins.end.code})"
        yield finding(Verdict.BLOCK, "twins-silent", said, _id(silent[0]), "")
    yield from _forged(base, twins, check)
    yield from _disguised(base, run, twins, check)
    for what, path in looking(patch, words, twins, check):
        yield finding(Verdict.HOLD, "looks-around", f"this product file now looks at {what}", path, _LOOK)
    sure = {_id(name) for name in real}
    yield finding(Verdict.PASS, "twins", f"{len(sure)} of {len(base.tests)} tests had a control twin", "", "")


def _forged(base: SuiteBody, twins: SuiteBody, check: SuiteBody | None) -> Iterator[Finding]:
    """A twin cannot pass whatever the code does: one that does, and that base fails because of the twin, proves forging."""
    was = {row.id: row for row in base.tests}
    again = {row.id: row for row in check.tests} if check else {}
    rows = {row.id for row in twins.tests}
    forged: dict[str, str] = {}
    for name in suspects(twins):
        seen = again.get(name)
        if name in rows and (seen is None or (seen.outcome in RED and counts(was.get(_id(name)), seen))):
            forged.setdefault(_id(name), name.partition(" ")[0])
    for id_, kind in forged.items():
        said = f"a control twin ({kind}) that cannot pass did"
        yield finding(Verdict.BLOCK, "forged", said, id_, "the code must not know that it is tested")


def _disguised(base: SuiteBody, run: SuiteBody, twins: SuiteBody, check: SuiteBody | None) -> Iterator[Finding]:
    """A test that passes, but not in disguise, counts where the disguise changes nothing for base."""
    was = {row.id: row for row in base.tests}
    here = {row.id: row for row in twins.tests}
    again = {row.id: row for row in check.tests} if check else {}
    asked = {name.partition("[")[0] for name in check.collected} if check else set()
    for name in undisguised(run, twins):
        before, seen = was.get(_id(name)), again.get(name)
        if seen is not None and name.partition("[")[0] in asked and not _same(before, seen):
            continue
        row = here.get(name)
        how = f"{row.outcome}: {row.signature or row.reason}" if row else "never reported"
        said = f"passes where it is tested, not in disguise ({how})"
        yield finding(Verdict.HOLD, "knows-the-place", said, _id(name), "the code must not know that it is tested; " + _LOOK)


def _same(was: TestRow | None, seen: TestRow) -> bool:
    """Whether base fares alike with the disguise and without it; places and addresses differ from run to run."""
    return was is not None and was.outcome == seen.outcome and _steady(was.signature) == _steady(seen.signature)


def _steady(text: str) -> str:
    return _PLACES.sub("~", text)


def counts(was: TestRow | None, seen: TestRow) -> bool:
    """A twin of a test that is red on base counts only if it changes the failure's text there."""
    return was is None or was.outcome not in RED or was.signature != seen.signature


def finding(verdict: Verdict, name: str, reason: str, subject: str, remedy: str) -> Finding:
    """One finding of src_score."""
    again = "probatum judge src_score --evidence ci_out"
    return Finding(id=f"src_score/{name}", verdict=verdict, reason=reason, subject=subject, remedy=remedy, reproduce=again)


def _plain(name: str) -> bool:
    return name.startswith(f"{DISGUISED} ")


def _id(name: str) -> str:
    return name.partition(" ")[2]


_LOOK = "a human looks at it"
