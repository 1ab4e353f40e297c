"""The probe runs pytest on explicit modules and reports on a descriptor that nothing can inherit or name.

Started as ``{python} -s -B /probe/run.py``: descriptor 0 holds the gate's nonce, a newline and a JSON config (see
core/suite.py), descriptor 3 takes the report, one JSON object a line. One job runs in this process; several run one after
another, each in a fork that was made before any code of a tree was imported.
"""

from __future__ import annotations

import sys

HERE = sys.path.pop(0)  # this folder: nothing in it may be imported by name

import contextlib  # noqa: E402
import os  # noqa: E402
from typing import Any  # noqa: E402


def main() -> None:
    fd, nonce, config = _inputs()
    jobs = config["jobs"]
    import pytest  # noqa: F401

    _preload()
    plugin = _part("plugin", fixed=_part("fixed"))
    disguise = None
    if any(job.get("disguise") for job in jobs):
        disguise = _part("disguise", looks=_part("looks")).Disguise
    parts = _part("watch", look=_part("look")).Watch, _part("clock").freeze, disguise
    if len(jobs) == 1:
        os._exit(_job(plugin, plugin.reporter(fd, jobs[0]["label"]), jobs[0], nonce, parts))
    worst = 0
    for job in jobs:
        report = plugin.reporter(fd, job["label"])
        code = _forked(plugin, report, job, nonce, parts)
        worst = max(worst, code)
    os._exit(min(worst, 125))


def _part(name: Any, **others: Any) -> Any:
    """A module of the probe, in nobody's sys.modules and with builtins of its own: a patched ``all`` does not reach it."""
    import builtins

    module: Any = type(sys)("probe_" + name)
    module.__file__ = os.path.join(HERE, name + ".py")
    module.__builtins__ = dict(vars(builtins))
    with open(module.__file__, "rb") as handle:
        exec(compile(handle.read(), module.__file__, "exec"), module.__dict__)
    module.__dict__.update(others)
    return module


def _inputs() -> Any:
    """The report's descriptor, high, random and closed on exec; the nonce; the config. Descriptors 0 and 3 end here."""
    import fcntl
    import json
    import resource

    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    top = 1000 if soft == resource.RLIM_INFINITY else min(soft - 2, 1000)
    low = min(100, top)
    at = low + int.from_bytes(os.urandom(4), "big") % (top - low + 1)
    fd = fcntl.fcntl(3, fcntl.F_DUPFD_CLOEXEC, at)
    os.close(3)
    parts = []
    while True:
        part = os.read(0, 1 << 20)
        if not part:
            break
        parts.append(part)
    nonce, _, text = b"".join(parts).partition(b"\n")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    if null:
        os.close(null)
    return fd, nonce.decode("ascii"), json.loads(text)


def _preload() -> None:
    """pytest's own plugins, loaded once and before the tree's code."""
    import importlib

    from _pytest import config

    for name in config.default_plugins:
        importlib.import_module("_pytest." + name)


def _forked(plugin: Any, report: Any, job: Any, nonce: Any, parts: Any) -> Any:
    """One job in a child of its own; what it leaves behind in its process group is ended."""
    import signal

    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            os._exit(_job(plugin, report, job, nonce, parts))
        finally:
            os._exit(70)
    try:
        os.setpgid(child, child)
    except OSError:
        pass

    def over(signum: Any, frame: Any) -> None:
        raise TimeoutError

    limited = job.get("wall", 0)
    previous = signal.signal(signal.SIGALRM, over)
    how, code = "over", 0
    try:
        signal.setitimer(signal.ITIMER_REAL, limited)
        status = os.waitpid(child, 0)[1]
        signal.setitimer(signal.ITIMER_REAL, 0)
        how, code = ("signalled", os.WTERMSIG(status)) if os.WIFSIGNALED(status) else ("exited", os.WEXITSTATUS(status))
    except TimeoutError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    signal.signal(signal.SIGALRM, previous)
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        pass
    report({"r": "end", "how": how, "code": code})
    return code if how == "exited" else 1


def _job(plugin: Any, report: Any, job: Any, nonce: Any, parts: Any) -> Any:
    """pytest's exit status for one job, after its finish is reported; 70 when pytest itself could not run."""
    import pytest

    tree = job["tree"]
    os.chdir(tree)
    args = ["--rootdir=" + tree]
    found = _config_file(tree)
    if found:
        args += ["-c", found]
    for name in _from_tree(pytest):
        args += ["-p", "no:" + name]
    for entry in reversed(job.get("pythonpath", ())):
        sys.path.insert(0, os.path.normpath(os.path.join(tree, entry)))
    args += [os.path.join(tree, path) for path in job["modules"]]
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", os.path.join(os.environ.get("TMPDIR", "/tmp"), "hypothesis"))
    finish = plugin.finisher(report, nonce)
    status = int(pytest.main(args, plugins=[plugin.Probe(report, job, *parts)]))
    finish(status)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return status


def _config_file(tree: Any) -> Any:
    """The tree's own pytest configuration, as pytest finds it when it is started in the root without arguments."""
    from pathlib import Path

    from _pytest.config import findpaths

    for name in ("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini", "pyproject.toml", "tox.ini", "setup.cfg"):
        path = Path(tree, name)
        try:
            if path.is_file() and findpaths.load_config_dict_from_file(path) is not None:
                return str(path)
        except Exception:  # pytest says what is wrong with it
            return str(path)
    return ""


def _from_tree(pytest: Any) -> Any:
    """Names of installed pytest plugins whose module the environment does not hold: it would come from the tree."""
    import importlib.util

    names = []
    for folder in sys.path:
        try:
            entries = [entry for entry in os.scandir(folder) if entry.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for entry in entries:
            try:
                with open(os.path.join(entry.path, "entry_points.txt"), encoding="utf-8") as handle:
                    text = handle.read()
            except OSError:
                continue
            section = ""
            for line in text.splitlines() if "pytest11" in text else ():
                if line.startswith("["):
                    section = line.strip("[] ")
                elif section == "pytest11" and "=" in line:
                    name, _, target = line.partition("=")
                    top = target.strip().split(":")[0].split(".")[0]
                    if importlib.util.find_spec(top) is None:
                        names.append(name.strip())
    return names


if __name__ == "__main__":
    main()
