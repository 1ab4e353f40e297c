"""``probatum explain``: pages, sections and the policy's defaults, from the files that ship."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probatum import checks, cli
from probatum.cli import explain
from probatum.core.policy import STRICT
from probatum.errors import Exit, UsageError
from probatum.report import policy

PAGE = """# some_check

Rule.

## Decision table

| scenario | verdict | finding |
|---|---|---|
| a | BLOCK | gone |
| b | BLOCK | gone-too |
| c | BLOCK | long-gone |

## Findings

### gone

Text of gone.

### gone-too

Other text.

## Fields
"""


def test_a_section_is_the_heading_and_its_own_rows() -> None:
    text = explain.section_of("some_check", PAGE, "gone")
    assert text.startswith("# some_check/gone\n") and "Text of gone." in text
    assert "| a | BLOCK | gone |" in text
    assert "gone-too" not in text and "long-gone" not in text and "Other text" not in text and "Fields" not in text


@pytest.mark.parametrize("name", ["", "gon", "Findings", "gone.*", "scenario"])
def test_what_has_no_heading_has_no_section(name: str) -> None:
    assert explain.section_of("some_check", PAGE, name) == ""


@pytest.mark.parametrize("name", checks.names())
def test_each_check_has_a_page_that_is_printed_whole(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", name]) == 0
    assert capsys.readouterr().out == (explain.PAGES / f"{name}.md").read_text(encoding="utf-8")


def test_each_finding_is_explained_by_its_full_id_and_by_its_bare_name() -> None:
    found = [(name, id_) for name in checks.names() for id_ in explain.ids((explain.PAGES / f"{name}.md").read_text())]
    assert len(found) > 10
    for name, id_ in found:
        assert explain.text_of(f"{name}/{id_}").startswith(f"# {name}/{id_}\n")
        assert explain.text_of(f"{name}/{id_}") in explain.text_of(id_)


@pytest.mark.parametrize(
    ("what", "near"),
    [
        ("oracle_integrit", "oracle_integrity"),
        ("src_score/newly-redd", "src_score/newly-red"),
        ("oracle_integrity/newly-red", "src_score/newly-red"),
        ("../../errors", "policy"),
        ("", "policy"),
        ("/", "policy"),
    ],
)
def test_an_unknown_name_is_a_usage_error_with_the_nearest(what: str, near: str) -> None:
    with pytest.raises(UsageError) as caught:
        explain.text_of(what)
    assert caught.value.exit == Exit.USAGE and near in caught.value.remedy


def test_the_policy_that_is_printed_means_what_no_policy_means(capsys: pytest.CaptureFixture[str]) -> None:
    from probatum.host import drive

    assert cli.main(["explain", "policy"]) == 0
    loaded = drive.load(capsys.readouterr().out.encode())
    assert loaded.required == STRICT.required
    plain = {**policy.defaults(), "checks": {}}
    assert {**policy.msgspec.to_builtins(loaded), "checks": {}} == plain
    for name in loaded.required:
        assert (
            policy.msgspec.convert(loaded.checks[name], checks.load(name).Options, strict=False) == checks.load(name).Options()
        )


def test_every_key_of_the_policy_has_words() -> None:
    rows = policy.rows()
    assert [key for key, _, words in rows if not words] == []
    assert [key for key in policy.WORDS if key not in {row[0] for row in rows}] == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("strict", "strict"),
        ("in-place", "in-place"),
        ("", '""'),
        (".", '"."'),
        ("3.12", '"3.12"'),
        ("15m", "15m"),
        ("12", '"12"'),
        ("1e5", '"1e5"'),
        ("0x1f", '"0x1f"'),
        ("off", '"off"'),
        ("null", '"null"'),
        ("*.md", '"*.md"'),
        ('a"b\\', '"a\\"b\\\\"'),
        (None, "null"),
        (True, "true"),
        (0.25, "0.25"),
        (256, "256"),
        ([], "[]"),
        (("a", "b c"), '[a, "b c"]'),
        ({}, "{}"),
        ({"share": 0.25}, "{share: 0.25}"),
    ],
)
def test_a_value_is_written_as_yaml_that_reads_back(value: object, text: str) -> None:
    assert policy.flow(value) == text


def test_a_page_is_rendered_on_a_terminal_and_plain_elsewhere(tmp_path: Path) -> None:
    import pty
    import subprocess
    import sys

    pipeline = str(Path(cli.__file__).resolve().parents[2])
    plain = subprocess.run([sys.executable, pipeline, "explain", "oracle_integrity"], capture_output=True, text=True)
    assert plain.stdout.startswith("# oracle_integrity") and "\x1b" not in plain.stdout
    parent, child = pty.openpty()
    env = {"TERM": "xterm-256color", "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
    process = subprocess.Popen([sys.executable, pipeline, "explain", "oracle_integrity"], stdout=child, stdin=child, env=env)
    import os

    os.close(child)
    seen = b""
    try:
        while chunk := os.read(parent, 65536):
            seen += chunk
    except OSError:
        pass  # Linux says EIO when the last writer of a terminal is gone
    assert process.wait() == 0
    assert b"# oracle_integrity" not in seen and b"\x1b[" in seen and re.search(rb"oracle_integrity", seen)
