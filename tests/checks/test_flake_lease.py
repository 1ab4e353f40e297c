"""The page's decision table is the parameters: every row builds its ledger, its sealed files and its runs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

import pages
from probatum.checks import flake_lease as check
from probatum.core import canonical
from probatum.core.bytecode import PYTHON, bytecode_hash
from probatum.core.check import Change, Entry, Patch
from probatum.core.closure import Closures
from probatum.core.evidence import Subject
from probatum.core.lease_plan import SkipsBody, skips_note
from probatum.core.policy import STRICT, Policy
from probatum.core.records import ChangeRow, PatchBody, SuiteBody, TestRow
from probatum.core.stage import Blob, End, Outcome, Runtime, Stage, Tree
from probatum.core.verdict import Verdict, verdict_of

NOW = 1_700_000_000
DAY = 86_400
PATH = "tests/sealed/test_a.py"
ID = f"{PATH}::test_a"
SIGNATURE = "AssertionError: assert 1 == 2"
HEAD = "import sys\nimport pytest\n"
PLAIN = HEAD + "def test_a():\n    assert 1 == 2\n"
SKIP = PLAIN.replace("def ", "@pytest.mark.skip\ndef ")
XFAIL = PLAIN.replace("def ", "@pytest.mark.xfail\ndef ")
WINDOWS = PLAIN.replace("def ", "@pytest.mark.skipif(sys.platform == 'win32', reason='x')\ndef ")
INSIDE = PLAIN.replace("    assert", "    pytest.skip('x')\n    assert")
HIDDEN = PLAIN.replace("def ", "@globals()['pytest'].mark.skip\ndef ")
MODULE = HEAD + "pytest.importorskip('none')\ndef test_a():\n    assert 1 == 2\n"
TWO = SKIP + "@pytest.mark.skip\ndef test_b(): pass\n"
PARAMS = HEAD + "@pytest.mark.skip\n@pytest.mark.parametrize('x', [1, 2])\ndef test_a(x): assert x\n"


def digest(source: str, name: str = "test_a") -> str:
    return Closures({PATH.encode(): source.encode()}).digest(PATH.encode(), name)


def lease(source: str = SKIP, **changes: Any) -> dict[str, Any]:
    """A live lease for ``test_a``; ``...`` takes a field away."""
    row = {
        "qualname": "test_a.test_a",
        "source_digest": digest(source),
        "failure_signature": SIGNATURE,
        "expires_at": NOW + DAY,
        "owner": "me@example.com",
        "reason": "undecided",
    }
    return {key: value for key, value in {**row, **changes}.items() if value is not ...}


def standing(source: str = WINDOWS, **changes: Any) -> dict[str, Any]:
    row = lease(source, failure_signature=..., expires_at=..., condition="sys.platform=='win32'", review_at=NOW + DAY)
    return {**row, **changes}


def row(outcome: str = "passed", test: str = ID, **fields: Any) -> TestRow:
    phases = ("passed", outcome if outcome in ("failed", "skipped") else "passed", "passed")
    return TestRow(**{"id": test, "outcome": outcome, "phases": phases, **fields})


FAILS = row("failed", signature=SIGNATURE + " and more")
OTHERWISE = row("failed", signature="ZeroDivisionError: division by zero")
SKIPPED = row("skipped", reason="x")


def suite(*rows: TestRow, **fields: Any) -> SuiteBody:
    plain = SuiteBody(
        end=End("exited"),
        nonce_ok=True,
        junk="",
        finished=True,
        exitstatus=0,
        modules={PATH: ""},
        collected=tuple(each.id for each in rows),
        tests=rows,
        watch=(),
        python=f"{PYTHON}.4",
    )
    return msgspec.structs.replace(plain, **fields)


def tree(files: dict[str, str]) -> Tree:
    return Tree(
        {name.encode(): Blob(0o100644, data=text.encode() if isinstance(text, str) else text) for name, text in files.items()}
    )


def patch_of(base: Tree, merged: Tree | None = None, policy: Policy = STRICT) -> Patch:
    """A patch over trees that hold their own bytes."""
    sealed = Tree({path: blob for path, blob in base.files.items() if path.startswith(b"tests/sealed/")})
    merged = merged or base
    moved = sorted(path for path in base.files.keys() | merged.files.keys() if base.files.get(path) != merged.files.get(path))
    fields: dict[str, Any] = {
        "subject": Subject(base="b" * 40, head="a" * 40),
        "policy": policy,
        "changes": tuple(Change("M", None, Entry(0o100644, "1", path)) for path in moved),
        "classes": {},
        "class_of": lambda path: "product" if path.startswith(b"src/") else "oracle",
        "base": base,
        "merged": merged,
        "sealed": sealed,
        "modules": tuple(sorted(path for path in sealed.files if b"/test_" in path)),
        "read": lambda oid: b"",
        "environment": Runtime("environment", "e"),
        "probe": Tree({}),
        "generated": Tree({}),
        "seed": "s",
        "now": NOW,
    }
    return Patch(**{name: value for name, value in fields.items() if name in Patch.__struct_fields__})


def record(*classes: str) -> PatchBody:
    changes = tuple(ChangeRow(status="M", path=f"x/{kind}", class_=kind) for kind in classes or ("product",))  # type: ignore[arg-type]
    return PatchBody(layout="strict", conflict=(), changes=changes, links={}, collisions={}, oracle=(), edits=())


def world(
    source: str = SKIP,
    *rows: dict[str, Any],
    base: SuiteBody | None = None,
    run: SuiteBody | None = None,
    forced: SuiteBody | None = None,
    forcedbase: SuiteBody | None = None,
    ledger: str = "",
    sections: dict[str, Any] | None = None,
    classes: Iterable[str] = ("product",),
    head: str = "",
    files: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The records of one patch; the record ``skips`` is made by the code under test."""
    text = ledger or json.dumps({"leases": list(rows), **(sections or {})})
    before = tree({PATH: source, "ci/flake_leases.json": text, **(files or {})})
    after = tree({PATH: head or source, "ci/flake_leases.json": text, **(files or {})})
    skipped = suite(SKIPPED) if base is None else base
    have = {"patch": record(*classes), "skips": skips_note(patch_of(before, after)).body, "suite.base": skipped}
    have["suite.run"] = skipped if run is None else run
    for name, body in (("forced", forced), ("forcedbase", forcedbase)):
        if body is not None:
            have[f"suite.{name}"] = body
    return have


def without(have: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in have.items() if key != name}


XFAILED = suite(row("xfailed", signature=SIGNATURE))
HASH = bytecode_hash(SKIP.encode(), PATH.encode(), "test_a")
RED = {"nodeid": ID, "owner": "me", "reason": "to come", "expires_at": NOW}
DEAD = {"id": ID, "first_seen": 1, "expires": NOW, "owner": "me", "reason": "slow"}
BOTH = suite(row("skipped", f"{ID}[1]"), row("skipped", f"{ID}[2]"))
SKIPPING = {PATH: "Skipped: could not import 'none'"}
OK = {"forced": suite(FAILS), "forcedbase": suite(FAILS)}
LEASED: dict[str, Any] = world(SKIP, lease(), **OK)

SCENARIOS: dict[str, dict[str, Any]] = {
    "product only, no skips": world(PLAIN, base=suite(row())),
    "skip, no lease": world(),
    "xfail, no lease": world(XFAIL, base=XFAILED),
    "skip at run time only, no lease": world(HIDDEN),
    "unexpected pass of an xfail, no lease": world(XFAIL, base=suite(row("xpassed"))),
    "module skips on base, no lease": world(MODULE, base=suite(modules=SKIPPING)),
    "module skips on base, leased by its path": world(
        MODULE, lease(qualname=..., nodeid=PATH, source_digest=digest(MODULE, "")), base=suite(modules=SKIPPING)
    ),
    "marker in a module that base cannot collect, no lease": world(base=suite(modules={PATH: "ImportError: x"})),
    "leased, hash matches, not expired": LEASED,
    "leased by node id": world(SKIP, lease(qualname=..., nodeid=ID), **OK),
    "leased for one parameter, skipped for two": world(
        PARAMS,
        lease(PARAMS, qualname=..., nodeid=f"{ID}[1]"),
        base=BOTH,
        forced=suite(row("failed", f"{ID}[1]", signature=SIGNATURE)),
    ),
    "leased, passes when forced": world(SKIP, lease(), forced=suite(row())),
    "leased, expired": world(SKIP, lease(expires_at=NOW - DAY), **OK),
    "leased, expires this second": world(SKIP, lease(expires_at=NOW), **OK),
    "leased, hash drifted": world(SKIP, lease(SKIP.replace("== 2", "== 3")), **OK),
    "leased for longer than the policy allows": world(SKIP, lease(expires_at=NOW + 91 * DAY), **OK),
    "leased, fails otherwise when forced": world(SKIP, lease(), forced=suite(OTHERWISE)),
    "leased xfail, fails otherwise in the run": world(
        XFAIL, lease(XFAIL), base=XFAILED, run=suite(row("xfailed", signature=OTHERWISE.signature)), **OK
    ),
    "leased xfail, the candidate calls xfail() itself": world(
        XFAIL, lease(XFAIL), base=XFAILED, run=suite(row("xfailed", signature="XFailed: x")), **OK
    ),
    "leased xfail, skips with this patch": world(XFAIL, lease(XFAIL), base=XFAILED, run=suite(SKIPPED), **OK),
    "leased, forced run silent": world(SKIP, lease(), forced=suite()),
    "leased, no forced run": world(SKIP, lease()),
    "leased, skips from inside as on base": world(INSIDE, lease(INSIDE), forced=suite(SKIPPED), forcedbase=suite(SKIPPED)),
    "leased, skips from inside on the candidate only": world(SKIP, lease(), forced=suite(SKIPPED), forcedbase=suite(FAILS)),
    "leased, only a bytecode_hash": world(SKIP, lease(source_digest=..., bytecode_hash="9c1e0a77ab12f0d1"), **OK),
    "leased, bytecode differs on its python": world(SKIP, lease(bytecode_hash="0" * 64, python=PYTHON), **OK),
    "leased, bytecode of another python": world(SKIP, lease(bytecode_hash="0" * 64, python="3.1"), **OK),
    "leased for another marker": world(SKIP, lease(marker="xfail"), **OK),
    "two leases, the expired one last": world(SKIP, lease(), lease(expires_at=NOW - 1), **OK),
    "two leases, the expired one first": world(SKIP, lease(expires_at=NOW - 1), lease(), **OK),
    "qualname of two modules": world(SKIP, lease(), files={"tests/sealed/deep/test_a.py": PLAIN}, **OK),
    "lease that nothing needs": world(PLAIN, lease(), base=suite(row())),
    "expired lease that nothing needs": world(PLAIN, lease(expires_at=NOW - 1), base=suite(row())),
    "malformed ledger": world(PLAIN, base=suite(row()), ledger='{"leases": [],}'),
    "condition false on base": world(WINDOWS, base=suite(row())),
    "condition true on base, no row": world(WINDOWS),
    "condition true on base, standing row": world(WINDOWS, sections={"standing": [standing()]}),
    "standing row, review overdue": world(WINDOWS, sections={"standing": [standing(review_at=NOW)]}),
    "standing row, another condition": world(WINDOWS, sections={"standing": [standing(condition="sys.platform != 'win32'")]}),
    "standing row for a skip without condition": world(SKIP, sections={"standing": [standing(SKIP)]}),
    "quarantine row expired": world(PLAIN, base=suite(row()), sections={"quarantine": [DEAD]}),
    "expected_red row expired": world(PLAIN, base=suite(row()), sections={"expected_red": [RED]}),
    "skip with this patch only, leased": world(PLAIN, lease(PLAIN), base=suite(row()), run=suite(SKIPPED)),
    "module skips with this patch only": world(PLAIN, base=suite(row()), run=suite(modules=SKIPPING)),
    "skip added to a sealed test, no lease": world(PLAIN, base=suite(row()), head=SKIP, classes=("oracle",)),
    "skip added to a sealed test, lease on base": world(PLAIN, lease(), base=suite(row()), head=SKIP, classes=("oracle",)),
    "dead lease, ledger alone changes": world(SKIP, lease(expires_at=NOW - 1), classes=("oracle",)),
    "oracle and product together": world(PLAIN, base=suite(row()), classes=("oracle", "product")),
    "no record of the run": without(LEASED, "suite.run"),
    "run did not finish": world(PLAIN, base=suite(row()), run=suite(row(), finished=False)),
}
ROWS = pages.rows("flake_lease")


def judge(have: dict[str, Any], **options: Any) -> list[Any]:
    return check.judge(have, check.Options(**options), NOW)


def names(have: dict[str, Any], **options: Any) -> set[str]:
    return {finding.id.removeprefix("flake_lease/") for finding in judge(have, **options)}


@pytest.mark.parametrize(("scenario", "verdict", "finding"), ROWS, ids=[scenario for scenario, _, _ in ROWS])
def test_row(scenario: str, verdict: str, finding: str) -> None:
    have = SCENARIOS[scenario]
    assert verdict_of(judge(have)) is Verdict[verdict], judge(have)
    assert names(have) == ({finding} if finding else set()), judge(have)


def test_every_scenario_is_a_row_and_every_finding_has_its_heading() -> None:
    assert set(SCENARIOS) == {scenario for scenario, _, _ in ROWS}
    seen = set().union(*(names(have) for have in SCENARIOS.values()))
    assert seen <= set(pages.findings("flake_lease"))
    assert set(pages.findings("flake_lease")) - seen == {"unread"}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_less_evidence_never_means_more_merge(scenario: str) -> None:
    have = SCENARIOS[scenario]
    for name in have:
        assert verdict_of(judge(have)) <= verdict_of(judge(without(have, name))), name


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_findings_are_one_line_and_stay_what_they_are_in_a_record(scenario: str) -> None:
    for finding in judge(SCENARIOS[scenario]):
        assert "\n" not in finding.reason and finding.reproduce
        assert finding.verdict is Verdict.PASS or finding.remedy
        assert canonical.decode(canonical.encode(finding), type(finding), "") == finding
    body = SCENARIOS[scenario]["skips"]
    assert canonical.decode(canonical.encode(body), SkipsBody, "skips") == body


@pytest.mark.parametrize(
    ("source", "rows"),
    [
        (SKIP.replace("@pytest.mark.skip", "@pytest.mark.skipif(True, reason='x')"), [SKIPPED]),
        (PLAIN.replace(HEAD, HEAD + "pytestmark = pytest.mark.skip\n"), [SKIPPED]),
        (PLAIN.replace(HEAD, HEAD + "pytestmark = [pytest.mark.xfail]\n"), [row("xfailed", signature=SIGNATURE)]),
        (PLAIN + "@pytest.fixture(autouse=True)\ndef f(): pytest.xfail('x')\n", [row("xfailed", signature="XFailed: x")]),
        (INSIDE, [SKIPPED]),
        (PLAIN, [SKIPPED]),
        (PLAIN, [row("xpassed")]),
        (SKIP, [row()]),
        (SKIP, [row("failed", signature="Failed: Unexpected success")]),
    ],
)
def test_no_lease_no_skip(source: str, rows: list[TestRow]) -> None:
    assert names(world(source, base=suite(*rows))) == {"no-lease"}
    assert names(world(source, lease(source), base=suite(*rows), **OK)) == set()


def test_ids_of_one_test_are_one_finding() -> None:
    found = judge(world(PARAMS, base=BOTH))
    assert [(finding.subject, "2 ids" in finding.reason) for finding in found] == [(ID, True)]


def test_the_remedy_is_a_command_for_a_shell() -> None:
    name = f"{ID}[a b'; rm -rf x]"
    (finding,) = judge(world(PARAMS, base=suite(row("xfailed", name, signature=SIGNATURE))))
    assert f"--signature '{SIGNATURE}'" in finding.remedy
    import shlex

    assert name in shlex.split(finding.remedy.removeprefix("mend it, or: "))


@pytest.mark.parametrize("drift", ["helper", "constant", "fixture", "parameter"])
def test_a_lease_ends_with_what_its_test_uses(drift: str) -> None:
    source = HEAD + "K = 1\ndef helper(): return 2\n@pytest.fixture\ndef fix(): return 3\n"
    source += "@pytest.mark.skip\n@pytest.mark.parametrize('x', [4])\ndef test_a(x, fix): assert helper() == K\n"
    old, new = {"helper": ("return 2", "return 5"), "constant": ("K = 1", "K = 5"), "fixture": ("return 3", "return 5")}.get(
        drift, ("[4]", "[5]")
    )
    ids = suite(row("skipped", f"{ID}[4]"))
    forced = suite(row("failed", f"{ID}[4]", signature=SIGNATURE))
    assert names(world(source, lease(source), base=ids, forced=forced)) == set()
    assert names(world(source.replace(old, new), lease(source), base=ids, forced=forced)) == {"drifted"}


def test_max_days_is_the_policy_s() -> None:
    assert names(LEASED, max_days=1) == set()
    assert names(world(SKIP, lease(expires_at=NOW + 2 * DAY), **OK), max_days=1) == {"too-long"}


@pytest.mark.parametrize(
    ("mode", "path", "problem"),
    [(0o120000, "ci/flake_leases.json", "120000"), (0o160000, "ci/flake_leases.json", "160000"), (0o120000, "ci", "no folder")],
)
def test_a_ledger_that_is_no_file_permits_nothing(mode: int, path: str, problem: str) -> None:
    base = Tree({PATH.encode(): Blob(0o100644, data=SKIP.encode()), path.encode(): Blob(mode, data=b"x")})
    body: SkipsBody = skips_note(patch_of(base)).body
    assert problem in body.problem and body.ledger == ""
    have = {**LEASED, "skips": body}
    assert names(have) == {"malformed"}


def test_a_missing_ledger_is_empty() -> None:
    body: SkipsBody = skips_note(patch_of(tree({PATH: PLAIN}))).body
    assert (body.ledger, body.problem) == ("", "")


def test_a_file_that_does_not_parse_is_said() -> None:
    body: SkipsBody = skips_note(patch_of(tree({PATH: "def skip(:"}))).body
    assert list(body.unread) == [PATH]
    assert names({**world(PLAIN, base=suite(row())), "skips": body}) == {"unread"}


def stages(source: str, *rows: dict[str, Any], have: dict[str, Any] | None = None, policy: Policy = STRICT) -> dict[str, Any]:
    base = tree({PATH: source, "src/a.py": "", "ci/flake_leases.json": json.dumps({"leases": list(rows)})})
    patch = patch_of(base, base.with_files({b"src/a.py": Blob(0o100644, data=b"x = 1\n")}), policy)
    steps = list(check.plan(patch, {"patch": record(), **(have or {})}))
    return {step.name if isinstance(step, Stage) else step.kind: step for step in steps}


def test_the_plan_forces_what_a_live_lease_names_and_nothing_else() -> None:
    first = stages(SKIP, lease())
    assert list(first) == ["skips"]
    have = {"skips": first["skips"].body, "suite.base": suite(SKIPPED)}
    second = stages(SKIP, lease(), have=have)
    assert list(second) == ["suite.forced", "suite.forcedbase"]
    (job,) = json.loads(second["suite.forced"].stdin)["jobs"]
    assert job["ids"] == [ID] and job["strip"] is True
    assert second["suite.forced"].trust == "candidate" and second["suite.forcedbase"].reusable
    assert stages(SKIP, have={"skips": stages(SKIP)["skips"].body, "suite.base": suite(SKIPPED)}) == {}
    dead = {"skips": stages(SKIP, lease(expires_at=NOW))["skips"].body, "suite.base": suite(SKIPPED)}
    assert stages(SKIP, lease(expires_at=NOW), have=dead) == {}


def test_the_plan_asks_for_the_runs_that_src_score_would_have_asked_for() -> None:
    policy = Policy(version=1, checks={"flake_lease": {}})
    assert {"skips", "suite.base", "suite.run"} == set(stages(PLAIN, policy=policy))


def test_nothing_is_planned_for_a_patch_that_moves_the_oracle_too() -> None:
    assert stages(SKIP, lease(), have={"patch": record("oracle", "product")}) == {}


def test_junk_from_a_forced_run_is_no_cover() -> None:
    step = stages(SKIP, lease(), have={"skips": LEASED["skips"], "suite.base": suite(SKIPPED)})["suite.forced"]
    note = check.read(step, Outcome(end=End("exited"), nonce="n", report=b"\xff junk\n"))
    assert (note.kind, note.part) == ("suite", "forced")
    assert names({**LEASED, "suite.forced": note.body}) == {"forced-missing"}
