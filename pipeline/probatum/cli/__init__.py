"""The command line: one module a command group, and only the chosen one is imported."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from .. import __version__
from ..errors import Exit, ProbatumError, one_line

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


class Command(NamedTuple):
    """A row of the table: the module beside this file that has ``add_parser``, the help line, and whether stages run."""

    module: str
    help: str
    sandbox: bool = False


COMMANDS: dict[str, Command] = {
    "gate": Command("gate", "judge a patch: evidence, three verdicts, one decision", sandbox=True),
    "init": Command("init", "set a repository up: policy, seal or manifest, ledger"),
    "seal": Command("seal", "pin the blobs of the sealed tests; shows what is new first"),
    "lease": Command("lease", "digest, add, renew, list and check leases for skipped tests"),
    "verify": Command("verify", "check the records of a finished gate, or a commit that landed"),
    "explain": Command("explain", "print the page of a check or finding, or the policy's keys and defaults"),
    "shards": Command("shards", "split a suite, run the parts, prove that their union is the plan"),
    "replay": Command("replay", "run the suite from a cold state, once, and admit the record of it", sandbox=True),
    "images": Command("images", "lock, check and list the pinned images and their archives"),
    "doctor": Command("doctor", "say what this machine lacks, and where the required check could be imitated"),
    "demo": Command("demo", "gate an honest patch and two hostile ones in a toy repository", sandbox=True),
    "judge": Command("judge", "inner step of gate: compute one verdict from the evidence alone"),
    "join": Command("join", "inner step of gate: compute the decision from plan and verdicts alone"),
}
"""The whole of the command line. ``--help`` reads this and imports none of the modules."""


class Parser(argparse.ArgumentParser):
    """An argument error is one line and exit 2; a flag is spelt in full, so that a new flag never changes an old call."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(Exit.USAGE, one_line(f"{self.prog}: {message}; see {self.prog} --help") + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code (design: 0 1 2 3 4 5 70 130). Nothing is raised."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            code = _run(list(sys.argv[1:] if argv is None else argv))
        except SystemExit as stop:  # argparse: 0 after --help, 2 after an error
            code = stop.code if isinstance(stop.code, int) else Exit.PASS if stop.code is None else Exit.USAGE
        sys.stdout.flush()
        return code
    except BaseException as error:
        return _failed(error)


def _run(argv: list[str]) -> int:
    parser = Parser(
        prog="probatum",
        description="A merge gate for patches written by coding agents.",
        epilog="Exit codes: 0 PASS, 1 BLOCK, 2 usage or policy, 3 HOLD, 4 evidence corrupt, 5 engine unavailable, 70 our bug.",
    )
    parser.add_argument("--version", action="version", version=f"probatum {__version__}")
    subparsers: Any = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    # No option of the outer parser takes a value, so the first word that is no option is the command.
    chosen = next((word for word in argv if not word.startswith("-")), "")
    for name, command in COMMANDS.items():
        if name != chosen:
            subparsers.add_parser(name, help=command.help)
            continue
        if command.sandbox and sys.platform != "linux":
            raise NotHere(name)
        add_parser: Callable[[Subparsers], None] = importlib.import_module(f"{__name__}.{command.module}").add_parser
        add_parser(subparsers)
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return int(run(arguments))


class NotHere(ProbatumError):
    """Sandboxes are made of Linux namespaces; elsewhere the gate cannot judge: exit 5."""

    exit = Exit.ENGINE

    def __init__(self, command: str) -> None:
        super().__init__(
            f"probatum {command}",
            f"needs Linux namespaces for its sandboxes, and this is {sys.platform}",
            "run it on Linux, in a Linux container or in CI; init, seal, lease, verify and explain work here",
        )


def _failed(error: BaseException) -> int:
    """One line on stderr and the exit code. Several errors at once (a task group's): ^C first, then a bug, then ours."""
    leaves = _leaves(error)
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        return Exit.INTERRUPT
    if any(isinstance(leaf, BrokenPipeError) for leaf in leaves):
        # Whoever read our output is gone. Not 0: an answer that nobody took is no PASS.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return Exit.USAGE
    full = next((leaf for leaf in leaves if isinstance(leaf, OSError) and leaf.errno in (errno.ENOSPC, errno.EDQUOT)), None)
    unexpected = [leaf for leaf in leaves if not isinstance(leaf, ProbatumError)]
    if os.environ.get("PROBATUM_DEBUG") == "1":
        import traceback

        traceback.print_exception(error)
    if full is not None:
        where = one_line(os.fsdecode(full.filename)) if isinstance(full.filename, (str, bytes)) else "disk"
        _say(f"{where}: no space left on the device; free some room and run it again, nothing of this run counts")
        return Exit.ENGINE
    if unexpected:
        first = unexpected[0]
        _say(f"a bug of ours: {type(first).__name__}: {first}; run it again with PROBATUM_DEBUG=1 and report the traceback")
        return Exit.BUG
    first = next(leaf for leaf in leaves if isinstance(leaf, ProbatumError))
    _say(first.line())
    return first.exit


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]


def _say(text: str) -> None:
    try:
        print(one_line(f"probatum: {text}"), file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody listens; the exit code still says it
