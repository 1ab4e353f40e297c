"""A check's page as test parameters: its decision table, its findings."""

from __future__ import annotations

import re
from pathlib import Path

CHECKS = Path(__file__).resolve().parents[1] / "pipeline/probatum/checks"


def rows(check: str) -> list[tuple[str, str, str]]:
    """(scenario, verdict, finding) of every row of the page's decision table."""
    text = (CHECKS / f"{check}.md").read_text("utf-8")
    section = text.partition("## Decision table")[2].partition("\n## ")[0]
    found = []
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if line.startswith("|") and cells[0] not in ("scenario", "---") and not set(cells[0]) <= {"-"}:
            found.append((cells[0], cells[1], cells[2]))
    return found


def findings(check: str) -> list[str]:
    """The kebab names that have a heading of their own under ``## Findings``."""
    text = (CHECKS / f"{check}.md").read_text("utf-8")
    return re.findall(r"^### ([a-z0-9-]+)$", text, re.MULTILINE)
