"""Recorded durations are data that people review: written so that a diff shows only what really changed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from ..errors import UsageError, one_line
from .shards import Manifest, ShardPlan

MOST = 1 << 45
"""Microseconds of one test that are still believed: more than a year."""
SLACK_US = 5_000
SLACK_SHARE = 4
"""A figure is replaced when it is off by more than 5 ms and more than a quarter."""


def parse_durations(data: bytes, where: str) -> dict[str, int]:
    """Node id to microseconds. Reads ``{"schema": "durations/v1", "us": {id: int}}``, and what pytest-split writes

    (``{id: seconds}``). Raises UsageError for anything else, negative and infinite figures included.
    """
    try:
        plain = json.loads(data.decode("utf-8"))
        ours = isinstance(plain, dict) and plain.get("schema") == "durations/v1"
        rows: Any = plain.get("us") if ours else plain
        if not isinstance(rows, dict):
            raise ValueError("no table of node ids")
        return {id_: _figure(id_, value, 1 if ours else 1_000_000) for id_, value in rows.items()}
    except (ValueError, RecursionError) as error:
        raise UsageError(where, f"is no file of durations: {one_line(str(error))}", "delete it, or write it anew") from None


def dump_durations(durations: Mapping[str, int]) -> bytes:
    """One sorted line a node id."""
    rows = {"schema": "durations/v1", "us": dict(sorted(durations.items()))}
    return (json.dumps(rows, indent=0, ensure_ascii=False) + "\n").encode("utf-8")


def updated(old: Mapping[str, int], plan: ShardPlan, manifests: Iterable[Manifest]) -> dict[str, int]:
    """``old`` brought up to date by a whole, green run: new ids come in, ids that are gone go, small changes are left alone."""
    seen = {id_: us for manifest in manifests for id_, us in manifest.durations_us.items()}
    found = {}
    for id_ in plan.node_ids:
        was, now = old.get(id_), seen.get(id_)
        if was is None or (now is not None and abs(now - was) > max(SLACK_US, was // SLACK_SHARE)):
            was = now
        if was is not None:
            found[id_] = was
    return found


def _figure(id_: str, value: Any, factor: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value * factor <= MOST:
        raise ValueError(f"{id_}: {value!r} is no duration")
    if factor == 1 and not isinstance(value, int):
        raise ValueError(f"{id_}: {value!r} is no whole number of microseconds")
    return round(value * factor)
