"""A probe's report becomes a SuiteBody, whatever its bytes are: junk becomes a body that says junk."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec

from ..errors import one_line
from .records import Outcome as Word
from .records import SuiteBody, TestRow
from .stage import End, Outcome, Stage

MOST = 500_000
"""Lines of one job that are still read."""
LONG = 2_000

Text = Annotated[str, msgspec.Meta(max_length=20_000)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]


class _Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="r", kw_only=True):
    n: Count
    job: Text


class _Start(_Line, frozen=True, tag="start", kw_only=True):
    python: Text
    pytest: Text


class _Module(_Line, frozen=True, tag="module", kw_only=True):
    path: Text
    error: Text


class _Ids(_Line, frozen=True, tag="ids", kw_only=True):
    ids: list[Text]


class _Phase(_Line, frozen=True, tag="phase", kw_only=True):
    id: Text
    when: Literal["setup", "call", "teardown"]
    outcome: Literal["passed", "failed", "skipped"]
    us: Count
    xfail: Text | None = None
    reason: Text = ""
    sig: Text = ""


class _Subtest(_Phase, frozen=True, tag="subtest", kw_only=True):
    pass


class _Watch(_Line, frozen=True, tag="watch", kw_only=True):
    found: list[Text]


class _Finish(_Line, frozen=True, tag="finish", kw_only=True):
    nonce: Text
    exit: Annotated[int, msgspec.Meta(ge=-255, le=255)]


class _End(_Line, frozen=True, tag="end", kw_only=True):
    """The probe's parent process says how a job's child ended."""

    how: Literal["exited", "signalled", "over"]
    code: Annotated[int, msgspec.Meta(ge=0, le=255)]


Line = _Start | _Module | _Ids | _Phase | _Subtest | _Watch | _Finish | _End
_decode = msgspec.json.Decoder(Line).decode


def parse(outcome: Outcome, nonce: str | None = None) -> SuiteBody:
    """The body of a stage with one job. Total; ``nonce`` is what the stage was given (default: what came with the outcome)."""
    lines, junk = _lines(outcome.report)
    if len({line.job for line in lines}) > 1:
        junk = junk or "the report speaks of several jobs"
    return _body(lines, junk, outcome, outcome.end, outcome.nonce if nonce is None else nonce)


def parse_jobs(stage: Stage, outcome: Outcome, nonce: str | None = None) -> dict[str, SuiteBody]:
    """Label to body for every job that ``stage`` planned, silent ones included. Total."""
    lines, junk = _lines(outcome.report)
    expected = outcome.nonce if nonce is None else nonce
    labels = [job["label"] for job in json.loads(stage.stdin)["jobs"]]
    if any(line.job not in labels for line in lines):
        junk = junk or "the report speaks of a job that nobody planned"
    bodies = {}
    for label in labels:
        mine = [line for line in lines if line.job == label]
        ends = [line for line in mine if isinstance(line, _End)]
        end = outcome.end
        if len(labels) > 1:
            wrong = "" if len(ends) == 1 and mine[-1] is ends[0] else "how the job ended is not told once and last"
            end = _end(ends[0]) if ends else outcome.end
            bodies[label] = _body([line for line in mine if line not in ends], junk or wrong, outcome, end, expected)
        else:
            bodies[label] = _body(mine, junk, outcome, end, expected)
    return bodies


def folded(stage: Stage, bodies: dict[str, SuiteBody]) -> SuiteBody:
    """Several jobs as one body: every id is ``LABEL ID``; ``collected`` is what the *stage* planned, not what was reported.

    So a planned id that has no row never ran, and one that has a row ``passed`` passed. A test planned without its
    parameters (base could not collect its module) stands for the rows that came.
    """
    planned: list[str] = []
    for job in json.loads(stage.stdin)["jobs"]:
        body = bodies[job["label"]]
        rows = {row.id for row in body.tests}
        for each in job["ids"] or body.collected:
            several = [] if each in rows or "[" in each else [row.id for row in body.tests if row.id.startswith(each + "[")]
            planned += [f"{job['label']} {one}" for one in several or [each]]
    some = list(bodies.items())
    return SuiteBody(
        end=next((body.end for _, body in some if body.end.how != "exited"), some[0][1].end if some else End("exited")),
        nonce_ok=all(body.nonce_ok for _, body in some),
        junk="; ".join(f"{label}: {body.junk}" for label, body in some if body.junk),
        finished=all(body.finished for _, body in some),
        exitstatus=max((body.exitstatus for _, body in some), default=0),
        modules={f"{label} {path}": error for label, body in some for path, error in body.modules.items()},
        collected=tuple(planned),
        tests=tuple(msgspec.structs.replace(row, id=f"{label} {row.id}") for label, body in some for row in body.tests),
        watch=tuple(sorted({change for _, body in some for change in body.watch})),
        python=some[0][1].python if some else "",
        pytest=some[0][1].pytest if some else "",
        wall_us=max((body.wall_us for _, body in some), default=0),
        tail=some[0][1].tail if some else "",
    )


def _end(line: _End) -> End:
    return End("over", limit="wall") if line.how == "over" else End(line.how, line.code)


def _lines(report: bytes) -> tuple[list[Line], str]:
    """The lines up to the first that is none, and why reading stopped there."""
    found: list[Line] = []
    if not report:
        return found, ""
    rows = report.split(b"\n", MOST + 1)
    for number, row in enumerate(rows[:-1], 1):
        if number > MOST:
            return found, f"more than {MOST} lines"
        try:
            found.append(_decode(row))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            return found, f"line {number}: {_clean(str(error), 200)}"
    return found, f"line {len(rows)} has no end" if rows[-1] else ""


def _body(lines: Sequence[Line], junk: str, outcome: Outcome, end: End, nonce: str) -> SuiteBody:
    lines = [line for line in lines if not isinstance(line, _End)]
    junk = junk or _order(lines)
    start = next((line for line in lines if isinstance(line, _Start)), None)
    finish = next((line for line in lines if isinstance(line, _Finish)), None)
    modules: dict[str, str] = {}
    for line in lines:
        if isinstance(line, _Module):
            path = _clean(line.path, 4 * LONG)
            modules[path] = modules.get(path, "") or _clean(line.error, LONG)
    watch = {_clean(text, 300) for line in lines if isinstance(line, _Watch) for text in line.found[:1000]}
    return SuiteBody(
        end=end,
        nonce_ok=outcome.nonce == nonce,
        junk=junk,
        finished=not junk and finish is not None and finish.nonce == nonce,
        exitstatus=finish.exit if finish else -1,
        modules=modules,
        collected=tuple(_clean(each, 20_000) for line in lines if isinstance(line, _Ids) for each in line.ids),
        tests=_rows([line for line in lines if isinstance(line, _Phase)]),
        watch=tuple(sorted(watch)),
        python=_clean(start.python, 40) if start else "",
        pytest=_clean(start.pytest, 40) if start else "",
        wall_us=max(0, outcome.finished - outcome.started),
        tail=_tail(outcome),
    )


def _order(lines: Sequence[Line]) -> str:
    """A report is whole when every line is there, in the order written, with one beginning and nothing after the finish."""
    if [line.n for line in lines] != list(range(1, len(lines) + 1)):
        return "lines are missing, repeated or out of order"
    kinds = Counter(type(line) for line in lines)
    for kind in (_Start, _Ids, _Watch, _Finish):
        if kinds[kind] > 1:
            return f"{kinds[kind]} lines of the kind {kind.__struct_config__.tag}"
    if lines and not isinstance(lines[0], _Start):
        return "the first line is no start"
    if kinds[_Finish]:
        if not isinstance(lines[-1], _Finish):
            return "lines after the finish"
        if lines[-1].exit in (0, 1, 2) and not (kinds[_Ids] and kinds[_Watch]) and lines[-1].exit != 2:
            return "finished without a collection or a watch"
    return ""


def _rows(phases: Sequence[_Phase]) -> tuple[TestRow, ...]:
    """One row an id, in the order of first mention. A run of an id begins with its setup and ends with its teardown."""
    runs: dict[str, list[list[_Phase]]] = {}
    for line in phases:
        mine = runs.setdefault(line.id, [])
        if not mine or (line.when == "setup" and not isinstance(line, _Subtest)):
            mine.append([])
        mine[-1].append(line)
    return tuple(_row(id_, mine) for id_, mine in runs.items())


_WORST: tuple[Word, ...] = ("error", "failed", "skipped", "xfailed", "xpassed", "passed")


def _row(id_: str, runs: Sequence[Sequence[_Phase]]) -> TestRow:
    words = [_word(run) for run in runs]
    word = min(words, key=_WORST.index)
    shown = runs[words.index(word)]
    whole = {line.when: line.outcome for line in shown if not isinstance(line, _Subtest)}
    bad = [line for line in shown if line.sig]
    said = [line.reason or line.xfail or "" for line in shown if line.reason or line.xfail]
    return TestRow(
        id=_clean(id_, 20_000),
        outcome=word,
        phases=tuple(whole.get(when, "") for when in ("setup", "call", "teardown")),
        duration_us=sum(line.us for run in runs for line in run if not isinstance(line, _Subtest)),
        signature=_clean(bad[0].sig, LONG) if bad else "",
        reason=_clean(said[0], LONG) if said else "",
        times=sum(_complete(run) for run in runs),
    )


def _complete(run: Sequence[_Phase]) -> bool:
    """setup, call where setup passed, teardown: each once and in this order."""
    order = [line.when for line in run if not isinstance(line, _Subtest)]
    passed = bool(run) and run[0].when == "setup" and run[0].outcome == "passed"
    return order == (["setup", "call", "teardown"] if passed else ["setup", "teardown"])


def _word(run: Sequence[_Phase]) -> Word:
    """Passed only when all three phases passed and no subtest did otherwise."""
    found: set[Word] = set() if _complete(run) else {"error"}
    for line in run:
        if line.outcome == "failed":
            found.add("failed" if line.when == "call" else "error")
        elif line.outcome == "skipped":
            found.add("skipped" if line.xfail is None else "xfailed")
        elif line.xfail is not None and line.when == "call":
            found.add("xpassed")
        elif line.when == "call" and not isinstance(line, _Subtest):
            found.add("passed")
    return min(found, key=_WORST.index, default="error")


def _tail(outcome: Outcome) -> str:
    text = (outcome.stdout + outcome.stderr)[-LONG:].decode("utf-8", "replace")
    return "\n".join(one_line(line) for line in text.splitlines()[-12:])


def _clean(text: str, most: int) -> str:
    return text[:most].encode("utf-8", "backslashreplace").decode("utf-8")
