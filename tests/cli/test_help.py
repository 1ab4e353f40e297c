"""The front door: the table of commands, one-line errors, and exit codes that mean one thing each."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from probatum import cli
from probatum.errors import EngineUnavailable, EvidenceCorrupt, Exit, PolicyError, UsageError

PIPELINE = Path(cli.__file__).resolve().parents[2]


def start(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PIPELINE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]


def command(monkeypatch: pytest.MonkeyPatch, run: object, name: str = "verify") -> None:
    """A command whose body is ``run``."""
    module = SimpleNamespace(add_parser=lambda commands: commands.add_parser(name).set_defaults(run=run))
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: module)


def raising(error: BaseException) -> object:
    def run(arguments: object) -> int:
        raise error

    return run


def test_help_names_every_command_and_imports_none() -> None:
    done = start("--help")
    assert done.returncode == 0
    assert all(f"    {name} " in done.stdout and row.help.split()[0] in done.stdout for name, row in cli.COMMANDS.items())
    code = (
        "import sys; from probatum.cli import main; main(['--help']);"
        "print([m for m in sys.modules if m.split('.')[0] in ('msgspec', 'anyio', 'rich', 'yaml', 'asyncio')"
        " or m.startswith(('probatum.cli.', 'probatum.core', 'probatum.host'))])"
    )
    env = {**os.environ, "PYTHONPATH": str(PIPELINE)}
    alone = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert alone.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_a_module_with_help_of_its_own(name: str) -> None:
    done = start(name, "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: probatum {name}")


@pytest.mark.parametrize("arguments", [(), ("gat",), ("explain",), ("explain", "policy", "--nope"), ("gate", "--rep", "x")])
def test_wrong_arguments_are_one_line_and_exit_2(arguments: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(list(arguments)) == Exit.USAGE
    said = capfd.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "--help" in said.err


def test_arguments_that_are_no_text_are_shown_escaped(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "\udcff\x1b[31m"]) == Exit.USAGE
    said = capfd.readouterr().err
    assert "\\udcff\\x1b[31m" in said and "\x1b" not in said and said.count("\n") == 1


def test_no_argument_from_a_checkout_is_gate(tmp_path: Path) -> None:
    assert start(cwd=tmp_path, env={**os.environ, "MODEL_API_KEY": "x"}).stderr.startswith("probatum: MODEL_API_KEY")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UsageError("a", "b", "c"), 2, "probatum: a: b; c"),
        (PolicyError("a", "b"), 2, "probatum: a: b"),
        (EvidenceCorrupt("a", "b\nc"), 4, "probatum: a: b\\nc"),
        (EngineUnavailable("", "b", "c"), 5, "probatum: b; c"),
        (ExceptionGroup("x", [EngineUnavailable("", "b"), ExceptionGroup("y", [UsageError("a", "c")])]), 5, "probatum: b"),
        (
            ExceptionGroup("x", [EngineUnavailable("", "b"), ValueError("odd")]),
            70,
            "probatum: a bug of ours: ValueError: odd; ",
        ),
        (KeyError("k\n"), 70, "probatum: a bug of ours: KeyError: 'k\\n'; "),
        (OSError(errno.ENOSPC, "full", "there"), 5, "probatum: there: no space left on the device; "),
        (KeyboardInterrupt(), 130, ""),
        (BaseExceptionGroup("x", [KeyboardInterrupt(), ValueError("odd")]), 130, ""),
        (RecursionError("deep"), 70, "probatum: a bug of ours: RecursionError: deep; "),
        (SystemExit(), 0, ""),
        (SystemExit("text"), 2, ""),
    ],
)
def test_every_end_has_its_exit_code_and_at_most_one_line(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    command(monkeypatch, raising(error))
    assert cli.main(["verify"]) == code
    said = capfd.readouterr().err
    assert said.startswith(line) and said.count("\n") == bool(line) and "Traceback" not in said


def test_a_bug_shows_its_traceback_when_asked(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    command(monkeypatch, raising(ValueError("odd")))
    monkeypatch.setenv("PROBATUM_DEBUG", "1")
    assert cli.main(["verify"]) == Exit.BUG
    assert "Traceback" in capfd.readouterr().err


@pytest.mark.parametrize("name", [name for name, row in cli.COMMANDS.items() if row.sandbox])
def test_without_linux_a_sandbox_is_refused_in_one_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli.sys, "platform", "darwin")
    assert cli.main([name]) == Exit.ENGINE
    said = capfd.readouterr().err
    assert "darwin" in said and "Linux" in said and said.count("\n") == 1


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_gets_no_pass_and_no_noise(unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    code = "import sys; from probatum import cli; sys.exit(cli.main(['explain', 'oracle_integrity']))"
    env = {**os.environ, "PYTHONPATH": str(PIPELINE), "PYTHONUNBUFFERED": unbuffered}
    with os.fdopen(write, "wb") as broken:
        done = subprocess.run([sys.executable, "-c", code], stdout=broken, stderr=subprocess.PIPE, env=env)
    assert done.returncode == Exit.USAGE and done.stderr == b""


def test_a_terminal_without_utf_8_gets_escapes() -> None:
    env = {**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}
    done = start("explain", "é→", env=env)
    assert done.returncode == Exit.USAGE and "explain" in done.stderr and "Traceback" not in done.stderr
