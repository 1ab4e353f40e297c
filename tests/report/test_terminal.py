"""The gate's voice: quiet in CI, one line a finding, worst first, and nothing a candidate wrote reaches the terminal raw."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import probatum
from probatum.core.records import Decision, Named
from probatum.core.verdict import Finding, Verdict
from probatum.report.terminal import SAME, Progress, lines, plain, spelt, summary

PIPELINE = str(Path(probatum.__file__).resolve().parents[1])


def finding(verdict: Verdict, id_: str = "a/b", subject: str = "", **more: str) -> Finding:
    return Finding(id=id_, verdict=verdict, subject=subject, reason=more.pop("reason", "why"), **more)


def decided(*named: tuple[str, Named], off: dict[str, str] | None = None) -> Decision:
    return Decision(
        decision="MERGE_BLOCKED", line="MERGE_BLOCKED: x", authority="advisory", base="1" * 40, head="2" * 40, merged_tree="",
        verdicts=dict(named), off=off or {}, attempt=1, nonce="", plan_digest="", policy_digest="", tool="",
    )  # fmt: skip


def quiet() -> tuple[Progress, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Progress(out, err, {"CI": "true"}), out, err


def test_without_a_terminal_stages_are_silent_unless_slow() -> None:
    progress, out, err = quiet()
    progress.stage_started("suite.run")
    progress.stage_finished("suite.run", "exit 0", 4.9)
    progress.stage_finished("suite.twins", "over wall", 5.0)
    progress.note("built-in policy")
    assert out.getvalue() == ""
    assert err.getvalue() == "stage suite.twins: over wall, 5.0 s\nnote: built-in policy\n"


def test_one_line_a_finding_worst_first_with_remedy_and_command() -> None:
    progress, out, _ = quiet()
    worst = finding(
        Verdict.BLOCK, "src_score/newly-red", "t.py::test_y", remedy="mend it", reproduce="probatum judge src_score"
    )
    progress.findings(
        decided(
            ("flake_lease", Named(Verdict.HOLD, (finding(Verdict.HOLD, "flake_lease/old", "u.py::test_z"),))),
            ("src_score", Named(Verdict.BLOCK, (finding(Verdict.PASS, "src_score/in-process"), worst))),
            off={"shards": "no split"},
        )
    )
    assert out.getvalue().splitlines()[:-1] == [
        "BLOCK src_score/newly-red t.py::test_y  why  -> mend it  $ probatum judge src_score",
        "HOLD flake_lease/old u.py::test_z  why",
        "PASS src_score/in-process  why",
        "",
        "flake_lease        HOLD   1 HOLD",
        "src_score          BLOCK  1 BLOCK, 1 remark",
        "shards             off    no split",
    ]
    assert out.getvalue().splitlines()[-1].startswith("advisory, base 111111111111, head 222222222222, 0 stages, ")


def test_a_flood_of_one_kind_is_cut_and_counted_and_other_kinds_stay() -> None:
    many = [finding(Verdict.BLOCK, "a/many", str(number)) for number in range(SAME + 7)]
    shown = [text for _, text, _ in lines([*many, finding(Verdict.BLOCK, "a/other")])]
    assert len(shown) == SAME + 2
    assert shown[SAME] == "a/many  and 7 more of this kind  -> see decision.json"
    assert shown[-1] == "a/other  why"


def test_a_command_is_given_once_in_a_row() -> None:
    same = [finding(Verdict.BLOCK, subject=str(number), reproduce="x") for number in range(3)]
    assert [command for _, _, command in lines(same)] == ["x", "", ""]


@pytest.mark.parametrize(
    "hostile", ["a\nMERGE_OK", "\x1b[2K\rMERGE_OK", "\u202egnp", "\ud800", "x ##[add-mask]y", "::stop-commands::a\n::x"]
)
def test_what_a_candidate_wrote_stays_on_its_line(hostile: str) -> None:
    progress, out, err = quiet()
    progress.findings(decided(("c", Named(Verdict.BLOCK, (finding(Verdict.BLOCK, subject=hostile, reason=hostile),)))))
    progress.note(hostile)
    progress.stage_finished(hostile, hostile, 9)
    said = (out.getvalue() + err.getvalue()).encode("utf-8", "backslashreplace").decode()
    assert all(char.isprintable() or char == "\n" for char in said)
    assert not any(line.startswith(("MERGE_OK", "::")) for line in said.splitlines()) and "##[" not in said
    assert len(out.getvalue().splitlines()) == 4


def test_plain_keeps_other_languages() -> None:
    assert plain("größe 大") == "größe 大"


def test_an_off_check_and_an_empty_one_have_rows() -> None:
    assert summary(decided(("a", Named(Verdict.PASS, ())), off={"b": "because"})) == [
        ("a", "PASS", ""),
        ("b", "off", "because"),
    ]


SCRIPT = """
import sys
from probatum.report.terminal import Progress
for stream in (sys.stdout, sys.stderr):
    stream.reconfigure(errors="backslashreplace")
with Progress() as progress:
    progress.stage_started("suite.run [bold]")
    print("rich" in sys.modules, file=sys.stderr)
    progress.note("gr\\xf6\\xdfe")
    progress.stage_finished("suite.run [bold]", "exit 0", 1)
print("last")
"""


FINDING = """
import sys
from probatum.core.verdict import Finding, Verdict
from probatum.report.terminal import _console, _print_finding, spelt
sys.stdout.reconfigure(errors="backslashreplace")
_print_finding(_console(sys.stdout), sys.stdout, "BLOCK", spelt(sys.stdout, "a/b " + "\\xf6 " * 30), "")
"""


def on_terminal(script: str = SCRIPT, **environ: str) -> bytes:
    parent, child = pty.openpty()
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": PIPELINE, "LANG": "C.UTF-8", "TERM": "xterm", **environ}
    process = subprocess.Popen([sys.executable, "-c", script], stdin=child, stdout=child, stderr=child, env=env)
    os.close(child)
    seen = b""
    try:
        while chunk := os.read(parent, 65536):
            seen += chunk
    except OSError:
        pass  # Linux says EIO when the last writer of a terminal is gone
    assert process.wait() == 0, seen
    return seen


def test_on_a_terminal_there_is_a_live_view_that_leaves_the_cursor_back() -> None:
    seen = on_terminal()
    assert b"True" in seen and b"suite.run [bold]" in seen and "größe".encode() in seen
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l") and seen.endswith(b"last\r\n")


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"CI": "true"}])
def test_rich_is_not_imported_where_the_view_cannot_be_live(environ: dict[str, str]) -> None:
    seen = on_terminal(**environ)
    assert b"False" in seen and b"\x1b" not in seen


def test_escapes_are_counted_before_a_line_is_wrapped() -> None:
    assert spelt(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), "gr\xf6\xdfe") == "gr\\xf6\\xdfe"
    assert spelt(io.TextIOWrapper(io.BytesIO(), encoding="utf-8"), "gr\xf6\xdfe") == "gr\xf6\xdfe"
    # A line as wide as the terminal once escaped: counted too narrow, it would spill and leave an empty line.
    seen = on_terminal(FINDING, LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0", COLUMNS="40")
    assert b"\\xf6" in seen and b"" not in [line.strip() for line in seen.split(b"\r\n")[:3]]


def test_no_color_is_honoured() -> None:
    seen = on_terminal(NO_COLOR="1")
    assert b"True" in seen and b"\x1b[36m" not in seen


def test_a_terminal_without_utf_8_gets_escapes() -> None:
    assert b"gr\\xf6\\xdfe" in on_terminal(LANG="C", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
