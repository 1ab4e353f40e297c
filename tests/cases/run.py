"""Judge the sample cases and print what is not as expected, by family.

    python tests/cases/run.py [--only TEXT] [--engine NAME] [--jobs N] [--sample DIR]

Exit 1 when a hostile patch merges or an honest one does not.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).resolve().parent
PIPELINE = HERE.parents[1] / "pipeline"
SAMPLE = HERE / "sample"
PROBATUM = (
    tuple(os.environ["PROBATUM_COMMAND"].split()) if "PROBATUM_COMMAND" in os.environ else (sys.executable, str(PIPELINE))
)
DIGEST = f"{shlex.join(PROBATUM)} lease digest --field source_digest {{nodeid}}"


def cases(sample: Path = SAMPLE) -> list[Path]:
    """The folders of the sample, by name."""
    return sorted(path.parent for path in (sample / "cases").glob("*/case.yaml"))


def judge(folder: Path, engine: str = "", extra: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Any], int, str]:
    """(case, decision, exit code, all output) of one case, gated in a repository of its own."""
    case = yaml.safe_load((folder / "case.yaml").read_text("utf-8"))
    with tempfile.TemporaryDirectory(prefix="case ") as work:  # a path with a space on purpose
        repo, out = Path(work) / "repo", Path(work) / "out"
        build = [sys.executable, str(folder.parents[1] / "build.py"), str(folder), str(repo), "--digest-cmd", DIGEST]
        made = subprocess.run(build, capture_output=True, text=True)
        if made.returncode:
            raise RuntimeError(f"{folder.name}: {made.stderr}")
        hashes = json.loads(made.stdout.splitlines()[-1])
        command = [*PROBATUM, "gate", "--repo", str(repo), "--base", hashes["base"], "--head", hashes["head"]]
        command += ["--out", str(out), *(["--engine", engine] if engine else []), *extra]
        done = subprocess.run(command, capture_output=True, text=True, cwd=work, stdin=subprocess.DEVNULL)
        file = out / "decision.json"
        decision = json.loads(file.read_text("utf-8")) if file.exists() else {}
        return case, decision, done.returncode, done.stdout + done.stderr


def wrong(case: dict[str, Any], decision: dict[str, Any], code: int) -> list[str]:
    """What differs from the case's expectations, [] when nothing does. FAIL and not-run stand for BLOCK or HOLD."""
    if not decision:
        return [f"no decision, exit {code}"]
    found = []
    expect = case["expect"]
    merged = decision["decision"] == "MERGE_OK"
    if expect["merge"] != "any" and expect["merge"] is not merged:
        found.append(f"merge is {merged}")
    for name in ("src_score", "oracle_integrity", "flake_lease"):
        verdict = decision["verdicts"].get(name, {}).get("verdict", "none")
        want = expect[name]
        if want not in ("any", "n/a") and (verdict == "PASS") != (want == "PASS"):
            found.append(f"{name} is {verdict}, expected {want}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose name contains TEXT")
    parser.add_argument("--engine", default="")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--sample", type=Path, default=SAMPLE)
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    chosen = [folder for folder in cases(args.sample) if args.only in folder.name]
    table: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    lines = []
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for case, decision, code, output in pool.map(lambda folder: judge(folder, args.engine), chosen):
            row = table[case["family"]]
            row["cases"] += 1
            differs = wrong(case, decision, code)
            merged = decision.get("decision") == "MERGE_OK"
            row["hostile merged"] += case["expect"]["merge"] is False and merged
            row["honest not merged"] += case["expect"]["merge"] is True and not merged
            row["not as expected"] += bool(differs)
            if differs or args.verbose:
                lines.append(f"{case['id']}: {'; '.join(differs) or 'as expected'}  [{decision.get('line', output[-300:])}]")
    columns = ("cases", "hostile merged", "honest not merged", "not as expected")
    print(f"{'family':<12}" + "".join(f"{column:>19}" for column in columns))
    total: collections.Counter[str] = collections.Counter()
    for family, row in sorted(table.items()):
        print(f"{family:<12}" + "".join(f"{row[column]:>19}" for column in columns))
        total.update(row)
    print(f"{'all':<12}" + "".join(f"{total[column]:>19}" for column in columns))
    print("\n".join(lines))
    return 1 if total["hostile merged"] or total["honest not merged"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
