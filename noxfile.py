"""Every task of this repository, as nox sessions; ``python3 noxfile.py ARGS`` is ``nox ARGS`` and brings nox along.

Run as a script it needs Python 3.11 and git, nothing else: where nox is missing it goes into a private environment under
.nox/, so that a system interpreter that refuses pip (PEP 668) is never touched.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
WANTED = "nox[uv]>=2025.2.9"
OLDEST = (3, 11)
SAME_IN_UV = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_EXTRA_INDEX_URL",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
"""pip's setting to uv's variable."""


def with_nox(arguments: list[str]) -> int:
    """Run nox with these arguments on an interpreter that has it; the exit code is nox's."""
    if sys.version_info[:2] < OLDEST:
        newer = next(filter(None, (shutil.which(f"python3.{minor}") for minor in (14, 13, 12, 11))), None)
        if newer is None:
            sys.exit(f"noxfile.py: needs Python 3.11 or newer, this is {sys.version.split()[0]}; run it with a newer python3")
        return subprocess.call([newer, __file__, *arguments])
    python = sys.executable if importlib.util.find_spec("nox") else private_nox()
    return subprocess.call([python, "-m", "nox", "-f", __file__, *arguments], env=like_pip(python))


def like_pip(python: str) -> dict[str, str]:
    """The environment, with uv told what pip is told: by itself uv reads neither pip's files nor the system's certificates."""
    env = {"UV_SYSTEM_CERTS": "1", **os.environ}
    command = [python, "-m", "pip", "--disable-pip-version-check", "config", "list"]
    asked = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in asked.stdout.splitlines() if asked.returncode == 0 else ():
        key, _, value = line.partition("=")
        name = SAME_IN_UV.get(key.rpartition(".")[2])
        if name:
            env.setdefault(name, ast.literal_eval(value).strip())
    return env


def private_nox() -> str:
    """The interpreter of a private environment that holds nox; made once for each Python version, whole or not at all."""
    final = HERE / ".nox" / f".self-{sys.version_info.major}.{sys.version_info.minor}"
    python = Path("Scripts", "python.exe") if os.name == "nt" else Path("bin", "python")
    if not (final / python).exists():
        print(f"noxfile.py: nox is missing here; installing it into {final.relative_to(HERE)}", file=sys.stderr, flush=True)
        part = final.with_name(f"{final.name}.{os.getpid()}")
        shutil.rmtree(part, ignore_errors=True)
        try:
            make_environment(part, str(part / python))
            shutil.rmtree(final, ignore_errors=True)
            part.rename(final)
        except OSError as error:
            if not (final / python).exists():  # somebody else may have made it meanwhile
                sys.exit(f"noxfile.py: cannot make {final}: {error.strerror or error}; make the checkout writable")
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return str(final / python)


def make_environment(folder: Path, python: str) -> None:
    """An environment with nox: by venv, else by a uv or a pip that is here; else one line with the remedy."""
    pip = ["-m", "pip", "--disable-pip-version-check"]
    uv = shutil.which("uv")
    if importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip"):
        steps = [[sys.executable, "-m", "venv", str(folder)], [python, *pip, "install", "-q", WANTED]]
    elif uv:
        steps = [
            [uv, "venv", "-q", "--python", sys.executable, str(folder)],
            [uv, "pip", "install", "-q", "-p", python, WANTED],
        ]
    elif importlib.util.find_spec("venv") and importlib.util.find_spec("pip"):
        # Debian without python3-venv, with pip: an environment needs no pip of its own.
        steps = [
            [sys.executable, "-m", "venv", "--without-pip", str(folder)],
            [sys.executable, *pip, "--python", python, "install", "-q", WANTED],
        ]
    else:
        sys.exit("noxfile.py: this Python has no venv module; install it (Debian, Ubuntu: apt install python3-venv)")
    for step in steps:
        done = subprocess.run(step, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            print(done.stdout, file=sys.stderr)
            command = " ".join(Path(step[0]).name if index == 0 else word for index, word in enumerate(step))
            sys.exit(f"noxfile.py: failed: {command}; see above (pip needs an index it can reach), or install nox yourself")


if __name__ == "__main__":
    try:
        sys.exit(with_nox(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)

import nox  # noqa: E402

nox.options.default_venv_backend = "uv|virtualenv"
nox.options.sessions = ["lint", "types", "tests"]
nox.options.reuse_existing_virtualenvs = True

DEV = nox.project.dependency_groups(nox.project.load_toml("pyproject.toml"), "dev")


def only(*names: str) -> list[str]:
    """The requirements of the dev group with these names."""
    return [line for line in DEV if any(line.startswith(name) for name in names)]


@nox.session
def gate(session: nox.Session) -> None:
    """Judge a patch, advisory; every flag after -- goes to `probatum gate`. nox flattens failures to 1."""
    session.install("-e", ".")
    with session.chdir(session.invoked_from):
        session.run("probatum", "gate", *session.posargs)


@nox.session
def cold_replay(session: nox.Session) -> None:
    """Replay the suite once from a cold state and admit the record; what follows -- goes to `probatum replay run`."""
    session.install("-e", ".")
    given = list(session.posargs)
    if "--out" not in given:
        given += ["--out", "ci_out.replay/admission.json"]
    shared = [word for at, word in enumerate(given) if word in SUBJECT or (at and given[at - 1] in SUBJECT)]
    with session.chdir(session.invoked_from):
        session.run("probatum", "replay", "run", *given)
        session.run("probatum", "replay", "admit", given[given.index("--out") + 1], *shared)


SUBJECT = ("--repo", "--base", "--head", "--ledger")
"""Flags that run and admit share."""


@nox.session
def tests(session: nox.Session) -> None:
    """The test suite; what follows -- goes to pytest."""
    session.install("-e", ".", *DEV)
    session.run("pytest", *(session.posargs or ["-q"]))


@nox.session
def lint(session: nox.Session) -> None:
    """ruff's rules and format, and which room may import which."""
    session.install(*only("ruff", "import-linter"))
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports", env={"PYTHONPATH": "pipeline"})


@nox.session
def types(session: nox.Session) -> None:
    """mypy --strict over the package."""
    session.install("-e", ".", *DEV)
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """Links resolve, commands in the README are real, and tables say what the code says."""
    session.install("-e", ".", *only("pytest"))
    session.run("pytest", "-q", "tests/docs", *session.posargs)


@nox.session
def schemas(session: nox.Session) -> None:
    """Write the JSON Schemas from the record types; `-- --check` says whether they are current."""
    session.install("-e", ".")
    session.run("python", "-m", "probatum.report.schemas", *session.posargs)


@nox.session
def shards(session: nox.Session) -> None:
    """Run the suite split, here: plan, shards at once, gate; `-- --matrix`, `-- --index I`, `-- gate DIR` as the command."""
    session.install("-e", ".")
    with session.chdir(session.invoked_from):
        session.run("probatum", "shards", *session.posargs)


@nox.session
def bench(session: nox.Session) -> None:
    """Measure the gate against a plain pytest run, or what follows -- first: shards; the rest goes to the script."""
    session.install("-e", ".", *DEV)
    name, *rest = session.posargs if session.posargs[:1] == ["shards"] else ("gate", *session.posargs)
    if name == "shards":
        session.install("pytest-split", "pytest-xdist")
    session.run("python", f"tests/bench/{name}.py", *rest)


@nox.session
def demo(session: nox.Session) -> None:
    """An honest patch is merged and two hostile ones are blocked, in a toy repository."""
    session.install("-e", ".")
    session.run("probatum", "demo", *session.posargs)
