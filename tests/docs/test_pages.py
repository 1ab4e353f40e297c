"""Pages say what the code says: links, commands, flags, keys, words and finding ids are compared with their source."""

from __future__ import annotations

import argparse
import ast
import importlib
import re
from pathlib import Path

import pytest

from probatum import checks, cli
from probatum.cli.explain import ids
from probatum.core import lanes, records
from probatum.errors import Exit
from probatum.report import policy

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ROOT / "pipeline" / "probatum" / "checks"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *CHECKS.glob("*.md")])
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
WORDS = """
    subject predicate evidence attestation stage lane policy rule finding verdict decision deciding advisory seal approval
    digest shard lease quarantine manifest receipt admission slot cassette plan twin watch probe launcher engine oracle
    join patch base head
"""
BLOCK = re.compile(r"^```.*?^```", re.M | re.S)


def text(path: Path | str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def prose(page: str) -> str:
    return BLOCK.sub("", page)


def anchors(page: str) -> set[str]:
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in re.findall(r"^#+ (.+)$", page, re.M)}


def parser(name: str) -> argparse.ArgumentParser:
    commands = cli.Parser(prog="probatum").add_subparsers()
    importlib.import_module(f"probatum.cli.{cli.COMMANDS[name].module}").add_parser(commands)
    found: argparse.ArgumentParser = commands.choices[name]
    return found


def flags(found: argparse.ArgumentParser) -> set[str]:
    """Every long flag of a parser and of the parsers below it."""
    seen: set[str] = set()
    for action in found._actions:
        seen |= {flag for flag in action.option_strings if flag.startswith("--")}
        if isinstance(action.choices, dict):
            for inner in action.choices.values():
                seen |= flags(inner)
    return seen - {"--help"}


@pytest.mark.parametrize("name", NAMES)
def test_links_resolve(name: str) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(text(name))):
        assert not target.startswith("http"), f"{name}: {target}: pages link to this repository only"
        path, _, anchor = target.partition("#")
        there = ((ROOT / name).parent / path).resolve() if path else ROOT / name
        assert there.is_relative_to(ROOT) and there.exists(), f"{name}: {target}"
        assert not anchor or anchor in anchors(there.read_text(encoding="utf-8")), f"{name}: {target}"


@pytest.mark.parametrize("name", NAMES)
def test_no_page_speaks_of_a_machine(name: str) -> None:
    found = re.findall(r"(?<![\w.])/(?:work|opt|root|home)/\S*|\w+\.(?:internal|local)\b|localhost:\d+", text(name))
    assert found == []


@pytest.mark.parametrize("name", NAMES)
def test_every_command_in_a_page_is_real(name: str) -> None:
    tree = ast.parse(text("noxfile.py"))
    sessions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.decorator_list}
    page = text(name)
    for session in re.findall(r"(?:noxfile\.py|\bnox) -s ([a-z_]+)", page):
        assert session in sessions, f"{name}: nox -s {session}"
    for command, rest in re.findall(r"(?:^ {4}|`)(?:python3? )?(?:probatum|pipeline) ([a-z]+)\b([^`\n#]*)", page, re.M):
        assert command in cli.COMMANDS, f"{name}: probatum {command}"
        for flag in re.findall(r"(?<!\S)--[a-z-]+", rest):
            assert flag in flags(parser(command)) | {"--help"}, f"{name}: probatum {command} {flag}"
    for script in re.findall(r"(?:^ {4}|`)(\.ci/\w+)", page, re.M):
        assert (ROOT / script).stat().st_mode & 0o111, script


def test_the_readme_lists_every_check_and_says_which_are_there() -> None:
    rows = dict(
        re.findall(r"^\| \[?(\w+)(?:\]\([^)]*\))? \|[^|]*\| ([^|]*) \|$", text("README.md").split("## Checks")[1], re.M)
    )
    there = {name for name, state in rows.items() if state.startswith("works")}
    assert there == set(checks.names())
    assert all(state.startswith("not there yet") for name, state in rows.items() if name not in there | {"check"})
    assert len(rows) - ("check" in rows) == 12


def test_the_readme_lists_the_exit_codes() -> None:
    rows = re.findall(r"^\| (\d+) \| ", text("README.md"), re.M)
    assert [int(code) for code in rows] == sorted(Exit)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_page_of_commands_has_each_flag_and_no_other(name: str) -> None:
    section = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", text("docs/commands.md"), re.M | re.S)
    assert section is not None
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", section[1])) == flags(parser(name))


def test_the_page_of_commands_has_no_other_command() -> None:
    assert re.findall(r"^## (\w+)", text("docs/commands.md"), re.M) == list(cli.COMMANDS)


def test_the_table_of_keys_is_current() -> None:
    found = re.search(r"<!-- keys:[^>]*-->\n(.*?)<!-- /keys -->", text("docs/policy.md"), re.S)
    assert found is not None and found[1] == policy.table(), "paste what python -m probatum.report.policy prints"


def test_the_short_policy_of_the_page_is_a_policy() -> None:
    from probatum.host import drive

    example = re.search(r"```yaml\n(.*?)```", text("docs/policy.md"), re.S)
    assert example is not None
    assert drive.load(example[1].encode()).layout == "in-place"


def test_decision_json_in_the_page_has_the_real_keys() -> None:
    import json

    block = text("docs/commands.md").split("### decision.json")[1].split("`decision` is")[0]
    shown = json.loads(block)
    assert list(shown) == list(records.Decision.__struct_fields__)
    finding = shown["verdicts"]["src_score"]["findings"][0]
    assert set(finding) == {"id", "verdict", "reason", "subject", "remedy", "reproduce"}


def test_lanes_and_classes_are_the_code_s() -> None:
    table = text("docs/architecture.md").split("| lane |")[1]
    assert re.findall(r"^\| (\w+) \|", table.split("\n\n")[0], re.M) == list(lanes.LANES)
    classes = ", ".join(records.Class.__args__)
    for page in ("docs/glossary.md", "docs/policy.md", "docs/adr/0004-one-change-class-a-patch.md"):
        assert classes in re.sub(r"\s+", " ", text(page)), page


def test_the_glossary_has_the_words_of_the_code() -> None:
    words = {
        word.strip() for row in re.findall(r"^\| ([a-z, ]+) \|", text("docs/glossary.md"), re.M) for word in row.split(",")
    }
    assert set(re.findall(r"\w+", WORDS)) <= words


def source(name: str) -> ast.Module:
    """A check's module and the modules of core that make findings for it."""
    whole = ast.parse((CHECKS / f"{name}.py").read_text(encoding="utf-8"))
    for node in list(whole.body):
        if isinstance(node, ast.ImportFrom) and node.level == 2 and (node.module or "").startswith("core."):
            path = (CHECKS.parent / (node.module or "").replace(".", "/")).with_suffix(".py")
            part = ast.parse(path.read_text(encoding="utf-8"))
            if any(isinstance(call, ast.Call) and _called(call) in ("Finding", "finding") for call in ast.walk(part)):
                whole.body += part.body
    return whole


def made(name: str) -> set[str]:
    """Finding names that a check's code makes; an f-string is a pattern with ``*``."""
    tree = source(name)
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    makers: dict[str, int] = {}
    while True:
        more = {
            function: [a.arg for a in node.args.args if a.arg != "self"].index(
                next(a.arg for a in node.args.args if a.arg in ("name", "id_"))
            )
            for function, node in functions.items()
            if function not in makers
            and any(a.arg in ("name", "id_") for a in node.args.args)
            and any(isinstance(call, ast.Call) and _called(call) in {"Finding", *makers} for call in ast.walk(node))
        }
        if not more:
            break
        makers |= more
    found: set[str] = set()
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and _called(call) in makers and len(call.args) > makers[_called(call)]:
            found |= set(_texts(call.args[makers[_called(call)]]))
        if isinstance(call, ast.Call) and _called(call) == "Finding":
            for keyword in call.keywords:
                if keyword.arg == "id":
                    found |= {value.removeprefix(f"{name}/") for value in _texts(keyword.value)} - {"*", f"{name}/*"}
    return found


def _called(call: ast.Call) -> str:
    return call.func.id if isinstance(call.func, ast.Name) else call.func.attr if isinstance(call.func, ast.Attribute) else ""


def _texts(node: ast.expr) -> list[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return ["".join(str(part.value) if isinstance(part, ast.Constant) else "*" for part in node.values)]
    if isinstance(node, ast.IfExp):
        return [*_texts(node.body), *_texts(node.orelse)]
    return []


@pytest.mark.parametrize("name", checks.names())
def test_every_finding_has_a_heading_and_every_heading_a_finding(name: str) -> None:
    headings, code = ids((CHECKS / f"{name}.md").read_text(encoding="utf-8")), made(name)
    assert len(headings) == len(set(headings)) > 0
    fits = {pattern: re.compile(re.escape(pattern).replace(r"\*", "[a-z-]+")) for pattern in code}
    assert [pattern for pattern, form in fits.items() if not any(form.fullmatch(head) for head in headings)] == []
    # A name may also travel in a tuple before it becomes a finding, so that every text of the module counts here.
    tree = source(name)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    assert [head for head in headings if head not in texts and not any(form.fullmatch(head) for form in fits.values())] == []


@pytest.mark.parametrize("name", checks.names())
def test_a_page_has_its_parts(name: str) -> None:
    page = (CHECKS / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {name}\n")
    wanted = ["Why", "Decision table", "Findings", "Fields", "What it cannot see"]
    assert [head for head in re.findall(r"^## (.+)$", page, re.M) if head in wanted] == wanted


def test_workflow_actions_are_pinned_and_read_only() -> None:
    for path in (ROOT / ".github" / "workflows").glob("*.yml"):
        page = path.read_text(encoding="utf-8")
        assert all(re.fullmatch(r"\S+@[0-9a-f]{40}", use) for use in re.findall(r"uses: (\S+)", page))
        assert re.search(r"^permissions:\n  contents: read$", page, re.M) and "write" not in page
