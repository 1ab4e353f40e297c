"""``probatum demo``: in a toy repository an honest patch merges and two hostile ones are blocked, by the real gate."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ..core.records import Decision

BASE = {
    "README.md": "# postage\n\nWhat a parcel costs to send, in cents.\n",
    "src/__init__.py": "",
    "src/postage.py": '''\
"""Postage in cents for a weight in grams."""

STEPS = [(100, 180), (500, 320), (1000, 490)]


def postage(grams):
    for limit, cents in STEPS:
        if grams < limit:
            return cents
    raise ValueError("too heavy")
''',
    "tests/sealed/MANIFEST.txt": "tests/sealed/test_postage.py\n",
    "tests/sealed/test_postage.py": """\
import pytest

from src.postage import postage


@pytest.mark.parametrize("grams, cents", [(20, 180), (100, 180), (101, 320), (500, 320), (1000, 490)])
def test_a_step_holds_up_to_its_limit(grams, cents):
    assert postage(grams) == cents


def test_too_heavy_is_refused():
    with pytest.raises(ValueError):
        postage(1001)
""",
}
"""Three of the six sealed tests are red: a parcel of exactly 100 g pays for the next step."""

FIXED = BASE["src/postage.py"].replace("grams < limit", "grams <= limit")
SOFTER = BASE["tests/sealed/test_postage.py"].replace(
    "[(20, 180), (100, 180), (101, 320), (500, 320), (1000, 490)]", "[(20, 180)]"
)
FORGED = '''\
"""Postage in cents for a weight in grams."""


class Cents(int):
    def __eq__(self, other):
        return True

    __hash__ = int.__hash__


def postage(grams):
    if grams > 1000:
        raise ValueError("too heavy")
    return Cents(180)
'''


class Promise(NamedTuple):
    """A patch, what it tries, and what the gate must say: the decision, and the checks that must not pass."""

    name: str
    tries: str
    files: Mapping[str, str]
    decision: str
    stopped_by: tuple[str, ...] = ()


PROMISES = (
    Promise("honest", "mends the comparison", {"src/postage.py": FIXED}, "MERGE_OK"),
    Promise(
        "hostile-tests",
        "drops the red cases from the sealed test, beside a change of the product",
        {"src/postage.py": BASE["src/postage.py"].replace("too heavy", "heavy"), "tests/sealed/test_postage.py": SOFTER},
        "MERGE_BLOCKED",
        ("oracle_integrity",),
    ),
    Promise(
        "hostile-equal",
        "leaves the tests alone and returns a number that equals everything",
        {"src/postage.py": FORGED},
        "MERGE_BLOCKED",
        ("src_score",),
    ),
)


def add_parser(commands: Any) -> None:
    """The command's arguments."""
    parser = commands.add_parser("demo", help="gate an honest patch and two hostile ones in a toy repository")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave repository and evidence in DIR (new or empty)")
    parser.add_argument("--engine", default="", metavar="NAME", help="bubblewrap, or what policy says")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Exit 0 only if all three decisions are as promised, each for the promised reason; else 1."""
    with place_for(args.keep) as place:
        repo = place / "repo"
        base = commit(repo, BASE, "Postage by steps", "main")
        kept = [judged(place, repo, base, promise, args.engine) for promise in PROMISES]
        if args.keep:
            print(f"kept in {args.keep}; try: probatum verify --evidence {place / 'evidence' / 'honest'}")
    good = sum(kept)
    print(f"demo: {good} of {len(kept)} decisions as promised")
    return 0 if good == len(kept) else 1


def judged(place: Path, repo: Path, base: str, promise: Promise, engine: str) -> bool:
    """Gate one patch, show what came of it, and whether that is what was promised."""
    from ..gate import Request
    from ..host.drive import gate
    from ..report.terminal import Progress

    head = commit(repo, promise.files, f"{promise.name}: {promise.tries}", promise.name, start=base)
    print(f"\n=== {promise.name}: {promise.tries}")
    print(git(repo, "diff", "--stat=72", "-U0", "--patch", base, head).split("\n\n", 1)[-1].rstrip()[:2000], flush=True)
    out = place / "evidence" / promise.name
    out.parent.mkdir(exist_ok=True)
    request = Request(repo=repo, base=base, head=head, out=out, engine=engine, why_advisory="this is a demonstration")
    with Progress() as progress:
        print()
        decision = gate(request, progress)
        progress.findings(decision)
    print("evidence, with the first digits of each record's sha256:")
    for path in sorted(out.glob("*.json")):
        print(f"  {path.name:<30} {digest(path)}  {gist(json.loads(path.read_bytes()))}".rstrip())
    print(decision.line)
    told = as_promised(promise, decision)
    if told:
        print(f"NOT AS PROMISED: {told}", file=sys.stderr, flush=True)
    return not told


def as_promised(promise: Promise, decision: Decision) -> str:
    """What differs from the promise, "" where nothing does. A block by the wrong check is no success."""
    if decision.decision != promise.decision:
        return f"wanted {promise.decision}, got {decision.line}"
    passing = [name for name in promise.stopped_by if decision.verdicts[name].verdict.value == "PASS"]
    if passing:
        return f"blocked, but {', '.join(passing)} passed"
    return ""


def gist(record: Any) -> str:
    """What a record says, in a few words."""
    if "decision" in record:
        return str(record["decision"])
    kind, body = record["predicate"]["kind"], record["predicate"]["body"]
    if kind == "plan":
        return "required: " + ", ".join(body["required"])
    if kind == "patch":
        classes = [row["class"] for row in body["changes"]]
        return "changes: " + ", ".join(f"{classes.count(name)} {name}" for name in sorted(set(classes)))
    if kind == "verdict":
        return str(body["verdict"])
    if kind != "suite":
        return ""
    outcomes = [row["outcome"] for row in body["tests"]]
    counts = ", ".join(f"{outcomes.count(name)} {name}" for name in sorted(set(outcomes)))
    return f"{counts or 'no tests'}; {body['end']['how']} {body['end']['code']}"


def digest(path: Path) -> str:
    """The first digits of a file's sha256, for a person to compare."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12]


@contextlib.contextmanager
def place_for(keep: Path | None) -> Iterator[Path]:
    """A folder that vanishes afterwards, or ``keep``, which must be new or empty."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="probatum-demo-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return
    from ..errors import UsageError

    if keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise UsageError(f"--keep {keep}", "is not an empty folder", "name a new one")
    keep.mkdir(parents=True, exist_ok=True)
    yield keep.resolve()


def commit(repo: Path, files: Mapping[str, str], message: str, branch: str, start: str = "") -> str:
    """A commit with ``files`` written over ``start``, on a new branch; its hash."""
    if not start:
        repo.mkdir()
        git(repo, "init", "-q", "-b", branch)
    else:
        git(repo, "checkout", "-q", "-b", branch, start)
    for name, text in files.items():
        path = repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", message)
    return git(repo, "rev-parse", "HEAD").strip()


def git(repo: Path, *arguments: str) -> str:
    """What git prints; the person's own configuration and hooks stay out of the toy."""
    from ..errors import UsageError

    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_TERMINAL_PROMPT": "0"}
    for role in ("AUTHOR", "COMMITTER"):
        env |= {f"GIT_{role}_NAME": "demo", f"GIT_{role}_EMAIL": "demo@example.invalid"}
    try:
        done = subprocess.run(["git", *arguments], cwd=repo, env=env, capture_output=True, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        raise UsageError("git", "is not on PATH", "install git 2.39.4 or newer") from None
    if done.returncode:
        raise UsageError(f"git {arguments[0]}", done.stderr.decode("utf-8", "replace").strip() or f"exit {done.returncode}")
    return done.stdout.decode("utf-8", "replace")
