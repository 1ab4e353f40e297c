"""What a person sees while the gate runs and when it has decided: one line a finding, worst first.

Progress goes to stderr, findings to stdout; the decision line after them is the caller's. Rich is imported only where
stderr is a terminal; in CI the stages are quiet unless one is slow.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, TextIO

from ..errors import one_line

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from ..core.records import Decision
    from ..core.verdict import Finding

SLOW = 5.0
"""Seconds after which a finished stage gets a line where there is no terminal."""
SAME = 20
"""Findings of one id that are shown; decision.json has them all."""
ROWS = 10
"""Stages that the live view shows at once."""

STYLE = {"PASS": "green", "HOLD": "yellow", "BLOCK": "bold red"}
ORDER = ("BLOCK", "HOLD", "PASS")


class Progress:
    """The gate's voice. Every method is cheap, and none fails because of what a candidate put into a name or a reason."""

    def __init__(self, out: TextIO | None = None, err: TextIO | None = None, environ: Mapping[str, str] | None = None) -> None:
        self.out = out or sys.stdout
        self.err = err or sys.stderr
        self.environ = os.environ if environ is None else environ
        self.began = time.monotonic()
        self.running: dict[str, float] = {}
        self.done: list[tuple[str, str, float]] = []
        self.console: Console | None = None
        self._live: Live | None = None
        if self._terminal(self.err) and not self.environ.get("CI"):
            self.console = _console(self.err)

    def stage_started(self, name: str) -> None:
        """A stage has been handed to the engine."""
        self.running[name] = time.monotonic()
        if self.console is not None and self._live is None:
            self._live = _live(self)
            self._live.start()
            atexit.register(self.close)

    def stage_finished(self, name: str, end_text: str, seconds: float) -> None:
        """A stage has ended; ``end_text`` is how, in words (``exited 0``, ``over wall``)."""
        self.running.pop(name, None)
        self.done.append((name, end_text, seconds))
        if self.console is None and seconds >= SLOW:
            self._line(f"stage {name}: {end_text}, {seconds:.1f} s")

    def note(self, text: str) -> None:
        """One line that is no finding: the policy that applies, what is being built, why it is advisory."""
        self._line(f"note: {text}")

    def findings(self, decision: Decision) -> None:
        """One line a finding, then a row a check. The live view ends here."""
        self.close()
        console = _console(self.out) if self._terminal(self.out) else None
        shown = [finding for named in decision.verdicts.values() for finding in named.findings]
        for label, text, reproduce in lines(shown):
            _print_finding(console, self.out, label, spelt(self.out, text), spelt(self.out, reproduce))
        if shown:
            print(file=self.out)
        for name, verdict, rest in summary(decision):
            _print_row(console, self.out, name, verdict, rest)
        wall = time.monotonic() - self.began
        line = f"{decision.authority}, base {decision.base[:12]}, head {decision.head[:12]}"
        print(plain(f"{line}, {len(self.done)} stages, {wall:.1f} s"), file=self.out, flush=True)

    def close(self) -> None:
        """The live view is gone and the cursor is back. Safe to call twice."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()
            atexit.unregister(self.close)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _terminal(self, stream: TextIO) -> bool:
        return stream.isatty() and self.environ.get("TERM", "dumb") != "dumb"

    def _line(self, text: str) -> None:
        if self.console is not None:
            self.console.print(plain(text), style="dim", markup=False, highlight=False, emoji=False)
        else:
            print(plain(text), file=self.err, flush=True)

    def view(self) -> Table:
        """The live picture: a head line, what runs now, and the stages that ended last."""
        from rich.table import Table
        from rich.text import Text

        now = time.monotonic()
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, overflow="crop")
        table.add_column(no_wrap=True, justify="right")
        table.add_column(no_wrap=True, overflow="crop")
        table.add_row(
            Text("probatum", "bold"), f"{now - self.began:.1f} s", Text(f"{len(self.done)} done, {len(self.running)} running")
        )
        running = sorted(self.running.copy().items(), key=lambda item: item[1])[:ROWS]
        for name, end, seconds in self.done[max(0, len(self.done) - (ROWS - len(running))) :]:
            table.add_row(Text(f"  {plain(name)}", "dim"), Text(f"{seconds:.1f} s", "dim"), Text(plain(end), "dim"))
        for name, since in running:
            table.add_row(Text(f"  {plain(name)}"), f"{now - since:.1f} s", Text("running", "cyan"))
        return table


def plain(text: str) -> str:
    """``text`` on one line, safe in a CI log: ``##[`` in the middle of a line would be a command to GitHub's runner."""
    return one_line(text).replace("##[", "#\\x23[")


def spelt(stream: TextIO, text: str) -> str:
    """``text`` as ``stream`` can show it, so that wrapping counts the columns that will be there."""
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def lines(findings: Iterable[Finding]) -> list[tuple[str, str, str]]:
    """(verdict, text, command that reproduces it) of each finding, worst first; a command is given once in a row."""
    ordered = sorted(findings, key=lambda finding: ORDER.index(finding.verdict.value))
    count: dict[str, int] = {}
    for finding in ordered:
        count[finding.id] = count.get(finding.id, 0) + 1
    found: list[tuple[str, str, str]] = []
    seen: dict[str, int] = {}
    last = ""
    for finding in ordered:
        seen[finding.id] = seen.get(finding.id, 0) + 1
        if seen[finding.id] == SAME + 1:
            more = count[finding.id] - SAME
            found.append((finding.verdict.value, f"{finding.id}  and {more} more of this kind  -> see decision.json", ""))
        if seen[finding.id] > SAME:
            continue
        text = f"{finding.id} {finding.subject}".rstrip() + f"  {finding.reason}"
        if finding.remedy:
            text += f"  -> {finding.remedy}"
        found.append((finding.verdict.value, plain(text), plain(finding.reproduce) if finding.reproduce != last else ""))
        last = finding.reproduce
    return found


def summary(decision: Decision) -> list[tuple[str, str, str]]:
    """(check, verdict or ``off``, what was found) of each check, by name."""
    rows = []
    for name, named in sorted(decision.verdicts.items()):
        counts = {value: sum(finding.verdict.value == value for finding in named.findings) for value in ORDER}
        words = [f"{number} {value}" for value, number in counts.items() if number and value != "PASS"]
        if counts["PASS"]:
            words.append(f"{counts['PASS']} remark" + ("s" if counts["PASS"] > 1 else ""))
        rows.append((name, named.verdict.value, ", ".join(words)))
    rows += [(name, "off", because) for name, because in sorted(decision.off.items())]
    return rows


def _print_finding(console: Console | None, out: TextIO, label: str, text: str, reproduce: str) -> None:
    if console is None:
        print(f"{label} {text}" + (f"  $ {reproduce}" if reproduce else ""), file=out)
        return
    from rich.table import Table
    from rich.text import Text

    row = Table.grid(padding=(0, 1))
    row.add_column(no_wrap=True, width=5)
    row.add_column(overflow="fold")
    told = Text(text)
    arrow = text.rfind("  -> ")
    if arrow >= 0:
        told.stylize("cyan", arrow + 2)
    told.stylize("bold", 0, text.find(" ") if " " in text else len(text))
    if reproduce:
        told.append(f"  $ {reproduce}", "dim")
    row.add_row(Text(label, STYLE[label]), told)
    console.print(row)


def _print_row(console: Console | None, out: TextIO, name: str, verdict: str, rest: str) -> None:
    line = plain(f"{name:<18} {verdict:<6} {rest}").rstrip()
    if console is None:
        print(line, file=out)
        return
    from rich.text import Text

    text = Text(line)
    text.stylize(STYLE.get(verdict, "dim"), 19, 19 + len(verdict))
    console.print(text, soft_wrap=True)


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    return Console(file=stream, highlight=False, emoji=False, markup=False)


def _live(progress: Progress) -> Live:
    from rich.live import Live

    assert progress.console is not None
    return Live(
        console=progress.console,
        get_renderable=progress.view,
        refresh_per_second=8,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
