"""Runs the real probe on real trees, as the launcher does, but outside a sandbox."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from probatum.core import testimony
from probatum.core.stage import FIXED_ENV, End, Outcome, Runtime, Stage

PROBE = Path(testimony.__file__).parents[1] / "probe"
NONCE = "5eed" * 8


class Probe:
    """``write`` lays a tree down; ``run`` runs the probe on it and gives the parsed body."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tree = folder / "w" / "0123456789abcdef"
        self.tree.mkdir(parents=True)
        self.python = sys.executable
        self.env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # their imports take longer than most tests here

    def write(self, files, tree=None):
        for name, text in files.items():
            path = (tree or self.tree) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")

    def job(self, **options):
        tree = options.pop("tree", self.tree)
        modules = sorted(str(path.relative_to(tree)) for path in tree.glob("tests/**/test_*.py"))
        sealed = [str(path.relative_to(tree)) for path in tree.glob("tests/**/*.py")]
        plain = {"label": "run", "tree": str(tree), "modules": modules, "pythonpath": ["."], "sealed": sealed}
        return {**plain, **options}

    def outcome(self, jobs, seconds=60):
        report, scratch = self.folder / "report", self.folder / "tmp"
        report.write_bytes(b"")
        scratch.mkdir(exist_ok=True)
        env = {**FIXED_ENV, "TMPDIR": str(scratch), "HOME": str(scratch), "PATH": os.environ["PATH"], **self.env}
        argv = ["/bin/sh", "-c", 'exec "$@" 3>>"$0"', str(report), self.python, "-s", "-B", str(PROBE / "run.py")]
        stdin = NONCE.encode() + b"\n" + json.dumps({"jobs": jobs}).encode()
        done = subprocess.run(argv, input=stdin, capture_output=True, env=env, cwd=self.folder, timeout=seconds, check=False)
        end = End("exited", done.returncode) if done.returncode >= 0 else End("signalled", -done.returncode)
        return Outcome(end=end, nonce=NONCE, report=report.read_bytes(), stdout=done.stdout, stderr=done.stderr)

    def run(self, files=None, **options):
        self.write(files or {})
        self.last = self.outcome([self.job(**options)])
        return testimony.parse(self.last)

    def jobs(self, jobs, seconds=60):
        self.last = self.outcome(jobs, seconds)
        stage = Stage(
            name="suite.twins",
            trust="candidate",
            runtime=Runtime("environment", ""),
            mounts=(),
            argv=(),
            stdin=json.dumps({"jobs": [{"ids": None, **job} for job in jobs]}).encode(),
        )
        return testimony.parse_jobs(stage, self.last)


@pytest.fixture
def probe(tmp_path):
    return Probe(tmp_path)


@pytest.fixture
def outcomes():
    """Short id (without the module's path) to outcome."""
    return lambda body: {row.id.partition("::")[2]: row.outcome for row in body.tests}
