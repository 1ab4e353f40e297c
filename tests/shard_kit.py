"""Plans and manifests for tests, and the divergences that a gate over shards must refuse."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from probatum.core import canonical
from probatum.core.leases import Quarantined
from probatum.core.records import SuiteBody, TestRow
from probatum.core.shards import Asked, Manifest, ShardPlan, empty_manifest, make_plan, manifest_of
from probatum.core.stage import End, Facts, Outcome

NOW = 1_800_000_000
BASE, HEAD, TREE = "b" * 40, "a" * 40, "c" * 40


def suite(ids: tuple[str, ...], red: Mapping[str, str] = {}, **fields: Any) -> SuiteBody:
    """What a probe reports that collected and ran ``ids``; ``red`` gives the signatures of those that failed."""
    rows = tuple(
        TestRow(
            id=id_,
            outcome="failed" if id_ in red else "passed",
            phases=("passed", "failed" if id_ in red else "passed", "passed"),
            duration_us=len(id_),
            signature=red.get(id_, ""),
        )
        for id_ in ids
    )
    code = 1 if red else 0
    plain = SuiteBody(
        end=End("exited", code), nonce_ok=True, junk="", finished=True, exitstatus=code, modules={}, collected=ids, tests=rows,
        watch=(), python="3.12.1", pytest="8.3", wall_us=1000,
    )  # fmt: skip
    return msgspec.structs.replace(plain, **fields)


def node_ids(count: int) -> tuple[str, ...]:
    """So many ids, in three files."""
    return tuple(sorted(f"tests/test_{number % 3}.py::test_{number}" for number in range(count)))


def asked(shards: int = 3, **fields: Any) -> Asked:
    plain = Asked(
        suite="head", base=BASE, commit=HEAD, merged_tree=TREE, policy_digest="p", environment="e", shards=shards, run="r" * 32,
        tool="t",
    )  # fmt: skip
    return msgspec.structs.replace(plain, **fields)


def made(count: int = 12, shards: int = 3, rows: tuple[Quarantined, ...] = (), **fields: Any) -> ShardPlan:
    """A plan over ``count`` ids."""
    return make_plan(asked(shards, **fields), suite(node_ids(count)), Facts(name="x"), {}, rows)


def outcome(index: int) -> Outcome:
    return Outcome(
        end=End("exited"), nonce=f"{index:032x}", started=NOW * 1_000_000, finished=NOW * 1_000_000, facts=Facts(name="x")
    )


def manifest(plan: ShardPlan, index: int, attempts: int = 1, retried: tuple[str, ...] = (), **fields: Any) -> Manifest:
    """The manifest of a shard that went well."""
    if plan.groups[index]:
        found = manifest_of(
            plan, index, suite(plan.groups[index]), outcome(index), tool="t", now=NOW, attempts=attempts, retried=retried
        )
    else:
        found = empty_manifest(plan, index, nonce=f"{index:032x}", now_us=NOW * 1_000_000, tool="t", attempts=attempts)
    return msgspec.structs.replace(found, **fields)


def all_of(plan: ShardPlan) -> list[Manifest]:
    return [manifest(plan, index) for index in range(plan.shards)]


def row(id_: str, expires: int = NOW + 1000) -> Quarantined:
    return Quarantined(id=id_, first_seen=NOW - 1000, expires=expires, owner="a person", reason="it flakes")


def lay(folder: Path, plan: ShardPlan | None, manifests: list[Manifest]) -> None:
    """The files as they are downloaded; two manifests of one index lie in folders of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    if plan is not None:
        (folder / "plan.json").write_bytes(canonical.encode(plan))
    for number, found in enumerate(manifests):
        path = folder / f"shard-{found.index}.json"
        if path.exists():
            path = folder / f"again-{number}" / path.name
            path.parent.mkdir()
        path.write_bytes(canonical.encode(found))


Divergence = Callable[[Path, random.Random], str]
"""Bends the files of a good run in a folder; gives the finding that must be among the reasons."""


def _files(folder: Path) -> list[Path]:
    return sorted(folder.glob("shard-*.json"))


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def _nodes(path: Path, ids: list[str]) -> None:
    edit(path, node_ids=ids, collected=len(ids))


def lost(folder: Path, dice: random.Random) -> str:
    dice.choice(_files(folder)).unlink()
    return "missing"


def duplicated(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    (folder / "copy").mkdir()
    (folder / "copy" / path.name).write_bytes(path.read_bytes())
    return "duplicate"


def stale_commit(folder: Path, dice: random.Random) -> str:
    edit(dice.choice(_files(folder)), commit=f"{dice.getrandbits(160):040x}")
    return "stale-commit"


def wrong_plan(folder: Path, dice: random.Random) -> str:
    edit(dice.choice(_files(folder)), plan_digest=f"sha256:{dice.getrandbits(256):064x}")
    return "wrong-plan"


def node_dropped(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    ids = json.loads(path.read_text())["node_ids"]
    ids.remove(dice.choice(ids))
    _nodes(path, ids)
    return "node-dropped" if ids else "empty"


def node_twice(folder: Path, dice: random.Random) -> str:
    one, two = dice.sample(_files(folder), 2) if dice.random() < 0.7 else [dice.choice(_files(folder))] * 2
    ids = json.loads(two.read_text())["node_ids"]
    _nodes(two, [*ids, dice.choice(json.loads(one.read_text())["node_ids"])])
    return "node-twice"


def empty_shard(folder: Path, dice: random.Random) -> str:
    _nodes(dice.choice(_files(folder)), [])
    return "empty"


def attempts(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    ids = json.loads(path.read_text())["node_ids"]
    edit(path, attempts=dice.randint(2, 9), **({"quarantined": ids[:1]} if dice.random() < 0.5 else {}))
    return "retried"


def cancelled(folder: Path, dice: random.Random) -> str:
    edit(dice.choice(_files(folder)), status=dice.choice(["cancelled", "skipped", "failed", "", "PASSED", "passed "]))
    return "failed"


def missing_field(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    plain = json.loads(path.read_text())
    del plain[dice.choice(sorted(plain))]
    path.write_text(json.dumps(plain))
    return "missing-field"


def truncated(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    data = path.read_bytes()
    path.write_bytes(data[: dice.randrange(len(data) - 1)])
    return "corrupt"


def out_of_range(folder: Path, dice: random.Random) -> str:
    edit(dice.choice(_files(folder)), index=dice.choice([-1, 99, len(_files(folder))]))
    return "out-of-range"


def other_run(folder: Path, dice: random.Random) -> str:
    edit(dice.choice(_files(folder)), run=f"{dice.getrandbits(128):032x}", plan_digest=f"sha256:{dice.getrandbits(256):064x}")
    return "other-run"


def extra_shard(folder: Path, dice: random.Random) -> str:
    paths = _files(folder)
    extra = folder / f"shard-{len(paths)}.json"
    extra.write_bytes(dice.choice(paths).read_bytes())
    edit(extra, index=len(paths))
    return "out-of-range"


def unknown_node(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    _nodes(path, [*json.loads(path.read_text())["node_ids"], f"tests/test_9.py::test_{dice.random()}"])
    return "node-extra"


def swapped(folder: Path, dice: random.Random) -> str:
    one, two = dice.sample(_files(folder), 2)
    first, second = (json.loads(path.read_text())["node_ids"] for path in (one, two))
    first[0], second[0] = second[0], first[0]
    _nodes(one, first)
    _nodes(two, second)
    return "misplaced"


def miscounted(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    edit(path, collected=json.loads(path.read_text())["collected"] + dice.choice([-1, 1, 1000]))
    return "count"


def claimed(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    edit(path, quarantined=json.loads(path.read_text())["node_ids"][:1])
    return "quarantine"


def wrong_kind(folder: Path, dice: random.Random) -> str:
    fields = ["quarantined", "attempts", "collected", "index", "node_ids", "failures"]
    edit(dice.choice(_files(folder)), **{dice.choice(fields): dice.choice([True, None, "1", 1.5])})
    return "corrupt"


def twice_a_key(folder: Path, dice: random.Random) -> str:
    path = dice.choice(_files(folder))
    text = path.read_text()
    path.write_text(text[:-2] + ',"status":"passed"}' if dice.random() < 0.5 else '{"status":"failed",' + text[1:])
    return "corrupt"


def edited_plan(folder: Path, dice: random.Random) -> str:
    plain = json.loads((folder / "plan.json").read_text())
    gone = dice.choice(plain["node_ids"])
    plain["node_ids"].remove(gone)
    plain["groups"] = [[id_ for id_ in group if id_ != gone] for group in plain["groups"]]
    (folder / "plan.json").write_text(json.dumps(plain))
    return "plan"


def no_plan(folder: Path, dice: random.Random) -> str:
    (folder / "plan.json").unlink()
    return "no-plan"


DIVERGENCES: tuple[Divergence, ...] = (
    *(lost, duplicated, stale_commit, wrong_plan, node_dropped, node_twice, empty_shard, attempts, cancelled, missing_field),
    *(truncated, out_of_range, other_run, extra_shard, unknown_node, swapped, miscounted, claimed, wrong_kind, twice_a_key),
    *(edited_plan, no_plan),
)
