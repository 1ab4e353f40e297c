"""JSON Schemas are generated from the record types and never written by hand.

``python -m probatum.report.schemas`` writes them into a checkout, ``--check`` says whether they are current (exit 1 if not):
``checks/NAME.schema.json`` beside each check (its policy options and the bodies of its records), and in ``docs/schemas/``
the policy file, decision.json and the records that several checks read.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from .. import checks
from ..core import policy, records, shards

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SHARED: dict[str, tuple[str, type]] = {
    "gate.schema.json": ("The policy file ci/gate.yaml, after YAML", policy.Policy),
    "decision.schema.json": ("decision.json, the answer that other tools read", records.Decision),
    "plan.schema.json": ("Body of plan.json", records.PlanBody),
    "patch.schema.json": ("Body of patch.json", records.PatchBody),
    "suite.schema.json": ("Body of suite.PART.json", records.SuiteBody),
    "shard-plan.schema.json": ("plan.json of probatum shards", shards.ShardPlan),
    "shard.schema.json": ("shard-I.json, the manifest of one shard", shards.Manifest),
    "verdict.schema.json": ("Body of verdict.NAME.json", records.VerdictBody),
}


def schema(title: str, types: Mapping[str, type]) -> bytes:
    """One type is the schema itself; several stand under ``$defs`` with a ``properties`` entry for each name."""
    refs, definitions = msgspec.json.schema_components(
        list(types.values()), schema_hook=_anything, ref_template="#/$defs/{name}"
    )
    whole: dict[str, Any] = {"$schema": DIALECT, "title": title}
    if len(types) == 1:
        whole |= refs[0]
    else:
        whole |= {"type": "object", "additionalProperties": False, "properties": dict(zip(types, refs, strict=True))}
    whole["$defs"] = definitions
    return (json.dumps(whole, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def generated(root: Path) -> dict[Path, bytes]:
    """File to content of every schema, below the checkout ``root``."""
    found = {root / "docs" / "schemas" / name: schema(title, {name: type_}) for name, (title, type_) in SHARED.items()}
    for name in checks.names():
        check = checks.load(name)
        title = f"{name}: its options in ci/gate.yaml and the bodies of its own records"
        path = root / "pipeline" / "probatum" / "checks" / f"{name}.schema.json"
        found[path] = schema(title, {"options": check.Options, **check.BODIES})
    return found


def _anything(type_: type) -> dict[str, Any]:
    if type_ is object:
        return {"description": "any JSON value"}
    raise NotImplementedError(type_)


def main(arguments: list[str]) -> int:
    """Write, or with ``--check`` compare."""
    root = Path.cwd()
    if not (root / "pipeline" / "probatum").is_dir():
        print("schemas: not the top of a probatum checkout; run it there", file=sys.stderr)
        return 2
    stale = [path for path, data in generated(root).items() if not path.is_file() or path.read_bytes() != data]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.relative_to(root)}: not current; run python3 noxfile.py -s schemas", file=sys.stderr)
        return 1 if stale else 0
    for path, data in generated(root).items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    print(f"{len(stale)} schemas written")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
