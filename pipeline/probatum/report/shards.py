"""What people and CI systems see of shards: a line each while they run, one JUnit file for all, a matrix for runners."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TextIO
from xml.etree import ElementTree as Xml

from ..core.shards import Manifest, ShardPlan
from ..core.split import estimated
from ..core.verdict import Finding
from .terminal import plain

QUIET = 15.0
"""Seconds between two progress lines where there is no terminal."""
MATRICES = ("github", "gitlab", "buildkite")


class Lines:
    """Progress on stderr: on a terminal one line a shard that is drawn again, elsewhere a line where something changes.

    How far a running shard is comes from the clock and the recorded durations, and is marked ``~``: its report is read
    when it has ended, not before.
    """

    def __init__(self, plan: ShardPlan | None = None, err: TextIO | None = None) -> None:
        self.err = err or sys.stderr
        self.live = self.err.isatty()
        self.drawn = 0
        self.since: dict[int, float] = {}
        self.ended: dict[int, str] = {}
        self.spoken = time.monotonic()
        self.plan = plan
        self.order: dict[int, list[int]] = {}

    def note(self, text: str) -> None:
        """One line that is no result."""
        self._line(f"note: {text}")

    def started(self, index: int) -> None:
        """A shard was handed to the engine."""
        self.since[index] = time.monotonic()

    def finished(self, manifest: Manifest) -> None:
        """A shard has ended and its manifest is written."""
        took = manifest.wall_us / 1e6
        planned = len(self.plan.groups[manifest.index]) if self.plan else manifest.collected
        failed = f", {len(manifest.failures)} failed" if manifest.failures else ""
        again = f", attempt {manifest.attempts}" if manifest.attempts > 1 else ""
        self._end(manifest.index, f"{manifest.status}, {manifest.collected} of {planned} node ids{failed}{again}, {took:.1f} s")

    def lost(self, index: int, why: str) -> None:
        """A shard has no manifest."""
        self._end(index, f"no manifest: {why}")

    def tick(self) -> None:
        """Some time has passed."""
        now = time.monotonic()
        if self.live:
            self._draw()
        elif now - self.spoken >= QUIET:
            self.spoken = now
            for index in sorted(self.since):
                print(plain(self._running(index, now)), file=self.err, flush=True)

    def _end(self, index: int, text: str) -> None:
        self.since.pop(index, None)
        self.ended[index] = text
        self.spoken = time.monotonic()
        if self.live:
            self._draw()
        else:
            print(plain(f"shard {index}: {text}"), file=self.err, flush=True)

    def _running(self, index: int, now: float) -> str:
        ran = now - self.since[index]
        if self.plan is None:
            return f"shard {index}: {ran:.0f} s"
        group = self.plan.groups[index]
        if not self.plan.durations_us:
            return f"shard {index}: {len(group)} node ids, {ran:.0f} s, nothing is recorded yet"
        sums = self.order.get(index)
        if sums is None:
            sums, total = [], 0
            for weight in estimated(group, self.plan.durations_us):
                total += weight
                sums.append(total)
            self.order[index] = sums
        done = sum(1 for total in sums if total <= ran * 1e6)
        left = sums[-1] / 1e6 - ran
        eta = f"eta {left:.0f} s" if left > 0 else f"{-left:.0f} s longer than recorded"
        return f"shard {index}: ~{done} of {len(group)} node ids, {eta}"

    def _draw(self) -> None:
        now = time.monotonic()
        rows = {**{index: f"shard {index}: {text}" for index, text in self.ended.items()}}
        rows |= {index: self._running(index, now) for index in self.since}
        up = f"\x1b[{self.drawn}F" if self.drawn else ""
        self.err.write(up + "".join(f"\x1b[2K{plain(rows[index])[:160]}\n" for index in sorted(rows)))
        self.err.flush()
        self.drawn = len(rows)

    def _line(self, text: str) -> None:
        print(plain(text), file=self.err, flush=True)
        self.drawn = 0


def junit(plan: ShardPlan | None, manifests: Sequence[Manifest], findings: Iterable[Finding]) -> bytes:
    """One JUnit file for the whole run: a suite a shard, a case a node id, and a suite of the gate's own reasons."""
    root = Xml.Element("testsuites", name="shards")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for manifest in sorted(manifests, key=lambda manifest: manifest.index):
        failed = {failure.id: failure for failure in manifest.failures}
        cases = list(dict.fromkeys((*manifest.node_ids, *failed)))
        suite = _suite(root, f"shard-{manifest.index}", manifest.wall_us)
        counts = dict.fromkeys(totals, 0)
        for id_ in cases:
            case = _case(suite, id_, manifest.durations_us.get(id_, 0))
            counts["tests"] += 1
            if id_ in failed:
                kind = "failure" if failed[id_].outcome == "failed" else "error"
                counts[f"{kind}s"] += 1
                Xml.SubElement(case, kind, message=_xml(failed[id_].text), type=_xml(failed[id_].outcome))
            elif id_ in manifest.skipped:
                counts["skipped"] += 1
                Xml.SubElement(case, "skipped", message=_xml(manifest.skipped[id_]))
        _count(suite, counts, totals)
    reasons = list(findings)
    if reasons:
        suite = _suite(root, "shards-gate", 0)
        for number, finding in enumerate(reasons, 1):
            case = Xml.SubElement(suite, "testcase", classname="shards", name=_xml(f"{finding.id}.{number}"), time="0")
            Xml.SubElement(case, "failure", message=_xml(finding.reason), type=finding.id)
        _count(suite, {"tests": len(reasons), "failures": len(reasons), "errors": 0, "skipped": 0}, totals)
    for name, number in totals.items():
        root.set(name, str(number))
    if plan is not None:
        root.set("name", f"shards of {plan.commit[:12]}")
    return b"".join([*Xml.tostringlist(root, encoding="utf-8", xml_declaration=True), b"\n"])


def matrix(kind: str, shards: int) -> str:
    """What fans ``shards`` out over a CI system's own runners; each job finds its index in TEST_SHARD_INDEX."""
    indexes = [str(index) for index in range(shards)]
    if kind == "github":
        rows: Mapping[str, object] = {"include": [{"index": index, "total": shards} for index in range(shards)]}
        return json.dumps(rows, separators=(",", ":"))
    if kind == "gitlab":
        values = ", ".join(f'"{index}"' for index in indexes)
        return "\n".join(
            [
                "parallel:",
                "  matrix:",
                f"    - TEST_SHARD_INDEX: [{values}]",
                f'      TEST_TOTAL_SHARDS: "{shards}"',
            ]
        )
    steps = [
        {
            "label": f"shard {index}",
            "key": f"shard-{index}",
            "command": f"probatum shards run --plan shards/plan.json --index {index} --out shards",
            "env": {"TEST_SHARD_INDEX": index, "TEST_TOTAL_SHARDS": str(shards)},
            "artifact_paths": ["shards/shard-*.json"],
        }
        for index in indexes
    ]
    return json.dumps({"steps": steps}, indent=2)


def _suite(root: Xml.Element, name: str, wall_us: int) -> Xml.Element:
    return Xml.SubElement(root, "testsuite", name=name, time=f"{wall_us / 1e6:.6f}")


def _case(suite: Xml.Element, id_: str, us: int) -> Xml.Element:
    path, _, name = id_.partition("::")
    stem, _, parameters = name.partition("[")
    *classes, last = stem.split("::")
    classname = ".".join([path.removesuffix(".py").replace("/", "."), *classes])
    shown = last + ("[" + parameters if parameters else "") or path
    return Xml.SubElement(suite, "testcase", classname=_xml(classname), name=_xml(shown), time=f"{us / 1e6:.6f}")


def _count(suite: Xml.Element, counts: Mapping[str, int], totals: dict[str, int]) -> None:
    for name, number in counts.items():
        suite.set(name, str(number))
        totals[name] += number


def _xml(text: str) -> str:
    """``text`` without what XML 1.0 cannot hold."""
    safe = plain(text)
    return "".join(c if c in "\t" or " " <= c <= "\ud7ff" or "\ue000" <= c <= "\ufffd" or c > "\uffff" else "?" for c in safe)
