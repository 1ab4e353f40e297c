"""``probatum explain``: the page of a check, the part of it that speaks of one finding, or the policy's keys and defaults."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

PAGES = Path(__file__).resolve().parent.parent / "checks"


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("explain", help="print the page of a check or finding, or the policy's keys and defaults")
    parser.add_argument("what", metavar="ID|CHECK|policy", help="src_score/newly-red, src_score, or policy")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit 0, or 2 with the nearest names where there is nothing of that name."""
    if args.what == "policy":
        from ..report.policy import as_yaml

        print(as_yaml(), end="")
        return 0
    show(text_of(args.what))
    return 0


def text_of(what: str) -> str:
    """The Markdown that explains a check, a finding id (``check/name``) or a bare finding name. Raises UsageError."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(PAGES.glob("*.md"))}
    if what in pages:
        return pages[what]
    check, _, name = what.rpartition("/")
    found = [section for stem in pages if check in ("", stem) and (section := section_of(stem, pages[stem], name))]
    if found:
        return "\n".join(found)
    import difflib

    from ..errors import UsageError

    known = [*pages, "policy", *(f"{stem}/{id_}" for stem in pages for id_ in ids(pages[stem]))]
    same = [each for each in known if each.endswith(f"/{name}")]
    near = same or difflib.get_close_matches(what, known, 3, 0.5) or [*pages, "policy"]
    raise UsageError(f"explain {what}", "no check, finding or topic has that name", f"perhaps: {', '.join(near)}")


def ids(page: str) -> list[str]:
    """The finding names that have a heading in a check's page."""
    return re.findall(r"^### `?([a-z0-9]+(?:-[a-z0-9]+)*)`?\s*$", page, re.M)


def section_of(check: str, page: str, name: str) -> str:
    """The finding's heading and text, and the rows of the decision table that end in it; "" where the page has none."""
    match = re.search(rf"^### `?{re.escape(name)}`?\s*\n(.*?)(?=^##|\Z)", page, re.M | re.S) if name else None
    if match is None:
        return ""
    text = f"# {check}/{name}\n\n{match[1].strip()}\n"
    table: list[str] = []
    for block in re.findall(r"(?:^\|.*\n)+", page, re.M):
        lines = block.splitlines()
        mine = [line for line in lines[2:] if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", line)]
        table += [*lines[:2], *mine, ""] if mine else []
    if table:
        text += "\nDecided so:\n\n" + "\n".join(table)
    return text + f"\nThe whole page: probatum explain {check}\n"


def show(text: str) -> None:
    """Rendered where stdout is a terminal, the plain Markdown elsewhere."""
    if not sys.stdout.isatty():
        print(text, end="" if text.endswith("\n") else "\n")
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console().print(Markdown(text))
