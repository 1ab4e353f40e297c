"""Where head could answer for the gate: what the workflow files of a checkout leave open. Nothing is executed or fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX = 256 << 10
"""Bytes of a workflow file that are read; a larger one is reported unread."""

GATE = re.compile(
    r"probatum(\.cli)?\s+gate|python\S*\s+(-\S+\s+)*pipeline\b|(nox|noxfile\.py)\s[^\n]*(-s|--session[s]?|-e)[\s=]+[^\n]*\bgate\b"
)
BIND = "bind the required check to a ruleset's required workflow or to an app, not to a name"


def open_doors(repo: Path) -> list[tuple[str, str, str]]:
    """(where, what is open, remedy) of each way to imitate the required check that the workflow files show."""
    found: list[tuple[str, str, str]] = []
    for path in workflow_files(repo):
        where = f"{path.parent.parent.name}/{path.parent.name}/{path.name}"
        text = _text(path)
        workflow = _parsed(text) if text is not None else None
        if not isinstance(workflow, dict):
            found.append((where, "cannot be read as a workflow, so what it may do is unknown", "mend or remove it"))
            continue
        found += [(where, what, remedy) for what, remedy in _of(workflow)]
    return found


def workflow_files(repo: Path) -> list[Path]:
    """The workflow files of a checkout, sorted; links are left out, since GitHub does not follow them."""
    folder = repo / ".github" / "workflows"
    if not folder.is_dir() or folder.is_symlink():
        return []
    return sorted(
        path for path in folder.iterdir() if path.suffix in (".yml", ".yaml") and path.is_file() and not path.is_symlink()
    )


def _of(workflow: dict[str, Any]) -> Iterator[tuple[str, str]]:
    events = _events(workflow.get("on"))
    steps = list(_steps(workflow))
    runs_gate = any(GATE.search(str(step.get("run", ""))) for step in steps)
    from_head = sorted(events & {"pull_request", "push"})
    if runs_gate and from_head:
        yield (
            f"starts the gate on {' and '.join(from_head)}, from head's copy of this file: a patch can change what it runs",
            f"take its answer as advisory; {BIND}",
        )
    privileged = sorted(events & {"pull_request_target", "workflow_run"})
    for step in steps:
        ref = _word(_table(step.get("with")).get("ref"))
        if privileged and "checkout" in _word(step.get("uses")) and re.search(r"head|pull_request|refs/pull", ref):
            yield (
                f"checks head out on {privileged[0]}, where secrets and a writing token are at hand",
                "give the gate the two hashes; it fetches head itself and runs it in a sandbox only",
            )
    if from_head and any(_writes(_table(job).get("permissions", workflow.get("permissions"))) for job in _jobs(workflow)):
        yield "asks for a token that may write checks or statuses, under any name", f"permissions: contents: read; {BIND}"


def _events(value: Any) -> set[str]:
    return {value} if isinstance(value, str) else {key for key in value or () if isinstance(key, str)}


def _jobs(workflow: dict[str, Any]) -> list[Any]:
    return list(_table(workflow.get("jobs")).values())


def _steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in _jobs(workflow):
        steps = _table(job).get("steps")
        yield from (step for step in (steps if isinstance(steps, list) else ()) if isinstance(step, dict))


def _writes(permissions: Any) -> bool:
    return permissions == "write-all" or any(_table(permissions).get(scope) == "write" for scope in ("checks", "statuses"))


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _text(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX + 1)
        return data.decode("utf-8") if len(data) <= MAX else None
    except (OSError, UnicodeDecodeError):
        return None


def _parsed(text: str) -> Any:
    import yaml

    try:
        # BaseLoader makes text of every scalar: `on` stays a word, as YAML 1.2 has it, and nothing is constructed.
        return yaml.load(text, Loader=yaml.BaseLoader)
    except (yaml.YAMLError, RecursionError, ValueError, TypeError):
        return None
