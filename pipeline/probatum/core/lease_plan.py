"""The evidence behind flake_lease: what base's ledger and sealed files say, and leased tests forced to run."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from . import canonical
from .bytecode import PYTHON, bytecode_hash
from .check import Have, Note, Patch
from .closure import Closures, split_id
from .leases import EMPTY, Book, Ledger, Malformed, Row, parse
from .modules import LazyFiles, Library, Unresolved
from .policy import LEDGER
from .records import Body, PatchBody, SuiteBody
from .skips import Skip, scan
from .stage import Outcome, Stage, Tree
from .suite import Job, base_tree, scored_tree, suite_stage
from .table import self_referential
from .testimony import parse as parse_report

SKIPPED = ("skipped", "xfailed", "xpassed")
_WORDS = re.compile(rb"skip|Skip|xfail|XFail|expectedFailure|pytestmark")
"""A file with none of these holds no skip that a reader could see; what hides better is seen at run time."""


class SkipsBody(Body, frozen=True, kw_only=True):
    """What base's ledger says and what its sealed files show, nothing executed.

    ``ledger`` is its text ("" when missing) or ``problem`` why it permits nothing. ``digests``: test to source digest for
    every test that a row names, ``unresolved``: test to why it has none. ``bytecode``: test to the hash on ``python``, the
    gate's own interpreter. ``added``: skips that the merged sealed files have and base's have not, ``moved``: the source
    digest there of the tests that those skip.
    """

    ledger: str
    problem: str
    modules: tuple[str, ...]
    static: tuple[Skip, ...]
    unread: dict[str, str]
    digests: dict[str, str]
    unresolved: dict[str, str]
    bytecode: dict[str, str]
    python: str
    added: tuple[Skip, ...] = ()
    moved: dict[str, str] = {}


def sealed_files(tree: Tree, read: Callable[[str], bytes]) -> LazyFiles:
    """The regular files of a tree as bytes, read when asked for."""
    return LazyFiles({path: blob for path, blob in tree.files.items() if blob.mode in (0o100644, 0o100755)}, read)


def plan(patch: Patch, have: Have, max_days: int) -> Iterable[Stage | Note]:
    """The skips, then every leased test that base skips, forced to run on the candidate and on base."""
    record = have.get("patch")
    if not isinstance(record, PatchBody) or record.conflict or record.oracle or self_referential(record):
        return
    if "skips" not in have:
        yield skips_note(patch)
    if "src_score" not in patch.policy.required:
        # Nobody else asks for the two runs that this check reads.
        before = Job(label="", tree=base_tree(patch, patch.class_of), modules=patch.modules)
        yield suite_stage(patch, "base", [before], trust="base", reusable=True)
        after = Job(label="", tree=scored_tree(patch, patch.class_of), modules=patch.modules)
        yield suite_stage(patch, "run", [after], trust="candidate")
    skips, base = have.get("skips"), have.get("suite.base")
    if not isinstance(skips, SkipsBody) or not isinstance(base, SuiteBody):
        return
    ids = forced_ids(skips, base, patch.now, max_days)
    if ids:
        paths = {canonical.unescape(split_id(each)[0]) for each in ids}
        modules = tuple(path for path in patch.modules if path in paths)
        after = Job(label="", tree=scored_tree(patch, patch.class_of), modules=modules, ids=ids, strip=True)
        yield suite_stage(patch, "forced", [after], trust="candidate")
        before = Job(label="", tree=base_tree(patch, patch.class_of), modules=modules, ids=ids, strip=True)
        yield suite_stage(patch, "forcedbase", [before], trust="base", reusable=True)


def read(stage: Stage, outcome: Outcome) -> Note:
    """A forced run's report as a SuiteBody."""
    part = stage.name.removeprefix("suite.")
    return Note(kind="suite", part=part, body=parse_report(outcome), input_digest=stage.digest, outcome=outcome)


def ledger_of(skips: SkipsBody) -> Ledger:
    """The ledger that the record carries. Raises Malformed."""
    if skips.problem:
        raise Malformed(skips.problem)
    return parse(skips.ledger.encode("utf-8")) if skips.ledger else EMPTY


def book_of(skips: SkipsBody, now: int, max_days: int) -> Book:
    """The ledger against the sealed modules of the record. Raises Malformed."""
    return Book(ledger_of(skips), skips.modules, lambda stem: skips.digests.get(stem, ""), now, max_days)


def forced_ids(skips: SkipsBody, base: SuiteBody, now: int, max_days: int) -> tuple[str, ...]:
    """Node ids that base skips, or that carry a marker, and that a live lease names."""
    try:
        book = book_of(skips, now, max_days)
    except Malformed:
        return ()
    live = [row for row in book.ledger.leases if book.wrong(row, book.ledger.leases) is None]
    wanted = skipping(skips, base)
    return tuple(each for each in wanted if any(covers(book, row, each) for row in live))


def skipping(skips: SkipsBody, base: SuiteBody) -> list[str]:
    """Node ids that need a permission: skipped or expected to fail on base, or under a marker that nothing decides."""
    always = [
        skip for skip in skips.static if skip.marker and not skip.conditional and skip.scope in ("test", "class", "module")
    ]
    return [row.id for row in base.tests if row.outcome in SKIPPED or any(skip.speaks_of(stem_of(row.id)) for skip in always)]


def stem_of(nodeid: str) -> str:
    """A node id without its parameters."""
    return "::".join(filter(None, split_id(nodeid)))


def covers(book: Book, row: Row, nodeid: str) -> bool:
    """Whether a row speaks of a node id: the same test, and the same parameters where the row has any."""
    param = book.param(row)
    return book.stem(row) == stem_of(nodeid) and (not param or nodeid == stem_of(nodeid) + param)


def read_ledger(base: Tree, read: Callable[[str], bytes]) -> tuple[str, str]:
    """The text of base's ledger, or why it permits nothing; a missing one is empty."""
    path = LEDGER.encode()
    above = path.rpartition(b"/")[0]
    if above in base.files:
        return "", f"{canonical.escape(above)} is no folder"
    blob = base.files.get(path)
    if blob is None:
        return "", ""
    if blob.mode not in (0o100644, 0o100755):
        return "", f"is no regular file (mode {blob.mode:o})"
    data = read(blob.oid) if blob.data is None else blob.data
    try:
        parse(data)
    except Malformed as error:
        return "", error.what
    return data.decode("utf-8"), ""


def skips_note(patch: Patch) -> Note:
    """The record ``skips``. Total: what cannot be parsed is said in it."""
    roots = [root.encode("utf-8", "surrogateescape") for root in patch.policy.pythonpath]
    closures = Closures(sealed_files(patch.sealed, patch.read), roots)
    modules = tuple(canonical.escape(path) for path in patch.modules)
    text, problem = read_ledger(patch.base, patch.read)
    rows: list[Row] = []
    if not problem and text:
        ledger = parse(text.encode("utf-8"))
        rows = [*ledger.leases, *ledger.standing, *ledger.expected_red]
    book = Book(EMPTY, modules, lambda _: "", patch.now, 0)
    named = sorted({stem for row in rows for stem in (book.candidates(row) if row.qualname else [book.stem(row)]) if stem})
    hashed = {book.stem(row) for row in rows if getattr(row, "bytecode_hash", None)} - {""}
    static, unread = _scan(closures.raw, patch.modules, {split_id(stem)[0] for stem in named})
    digests, unresolved = _digests(closures, named)
    bytecode = {}
    for stem in sorted(hashed & digests.keys()):
        path, name = split_id(stem)
        try:
            bytecode[stem] = bytecode_hash(closures.raw.files[canonical.unescape(path)], canonical.unescape(path), name)
        except Unresolved as error:
            unresolved[stem] = error.line()
    added, moved = _added(patch, static, roots)
    body = SkipsBody(
        ledger=text,
        problem=problem,
        modules=modules,
        static=tuple(static),
        unread=unread,
        digests=digests,
        unresolved=unresolved,
        bytecode=bytecode,
        python=PYTHON,
        added=added,
        moved=moved,
    )
    entry = patch.base.files.get(LEDGER.encode())
    read_from = [patch.sealed.digest, patch.merged.digest if added else "", entry.oid if entry else "", text]
    return Note(kind="skips", part="", body=body, input_digest=canonical.digest_of(read_from))


def _scan(library: Library, modules: Iterable[bytes], named: set[str]) -> tuple[list[Skip], dict[str, str]]:
    found: list[Skip] = []
    unread: dict[str, str] = {}
    conftests = (path for path in library.files if path.rpartition(b"/")[2] == b"conftest.py")
    for path in sorted({*modules, *conftests}):
        if path not in library.files or not (_WORDS.search(library.files[path]) or canonical.escape(path) in named):
            continue
        try:
            found += scan(library, path)
        except (Unresolved, RecursionError) as error:
            unread[canonical.escape(path)] = error.line() if isinstance(error, Unresolved) else "is nested too deeply"
    return found, unread


def _digests(closures: Closures, stems: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    digests: dict[str, str] = {}
    unresolved: dict[str, str] = {}
    for stem in stems:
        path, name = split_id(stem)
        try:
            digests[stem] = closures.digest(canonical.unescape(path), name)
        except Unresolved as error:
            unresolved[stem] = error.line()
    return digests, unresolved


def _added(patch: Patch, static: list[Skip], roots: list[bytes]) -> tuple[tuple[Skip, ...], dict[str, str]]:
    """Skips that sealed files get from this patch, and the digests of the tests that they skip."""
    changed = {
        path: patch.merged.files[path]
        for path in sorted({change.path for change in patch.changes})
        if path.endswith(b".py") and path in patch.sealed.files and path in patch.merged.files
    }
    if not changed:
        return (), {}
    closures = Closures(sealed_files(patch.sealed.with_files(changed), patch.read), roots)
    before = {(skip.stem, skip.kind, skip.condition, skip.text) for skip in static}
    scanned, _ = _scan(closures.raw, changed, set())
    added = [
        skip
        for skip in scanned
        if canonical.unescape(skip.path) in changed
        and skip.scope != "param"
        and (skip.stem, skip.kind, skip.condition, skip.text) not in before
    ]
    if patch.policy.layout == "in-place":
        # A test that nobody sealed may skip as it likes: it scores for nothing.
        sealed = Closures(sealed_files(patch.sealed, patch.read), roots)
        known, _ = _digests(sealed, {skip.stem for skip in added})
        added = [skip for skip in added if skip.stem in known]
    return tuple(added), _digests(closures, sorted({skip.stem for skip in added if skip.scope == "test"}))[0]
