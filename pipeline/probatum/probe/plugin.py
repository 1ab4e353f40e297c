"""The plugin reports every collected module, node id, phase and subtest at once; it decides nothing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import pytest

LONG = 2000

fixed: Any = None
"""The module fixed.py; run.py puts it here, since nothing of the probe is importable."""


def reporter(fd: Any, label: Any) -> Any:
    """A function that writes one JSON line; everything it needs is captured here, before any code of a tree runs."""
    write, length = os.write, len
    pieces = _encoder()
    join, number = "".join, [0]

    def report(line: Any) -> None:
        number[0] += 1
        data = (join(pieces({"n": number[0], "job": label, **line}, 0)) + "\n").encode("ascii")
        while data:
            done = write(fd, data)
            data = data[done:] if done < length(data) else b""

    return report


def _encoder() -> Any:
    """(value, 0) to pieces of JSON text; in CPython without a line of Python that could be patched."""
    try:
        import _json
    except ImportError:
        import json

        encode = json.JSONEncoder(separators=(",", ":")).encode
        return lambda value, level: (encode(value),)
    make: Any = _json.make_encoder
    return make(None, None, _json.encode_basestring_ascii, None, ":", ",", False, False, True)


def finisher(report: Any, nonce: Any) -> Any:
    """The last line of a job: the nonce and pytest's exit status."""

    def finish(status: Any) -> None:
        report({"r": "finish", "nonce": nonce, "exit": status})

    return finish


class Probe:
    """One job's hooks. ``job`` is one entry of the config's ``jobs`` (see core/suite.py)."""

    def __init__(self, report: Any, job: Any, watch: Any, freeze: Any, disguise: Any) -> None:
        worn = disguise(job) if job.get("disguise") else None
        self.__dict__.update(_hooks(report, job, watch(job["tree"], job.get("sealed", ())), freeze, worn))


def _hooks(report: Any, job: Any, watch: Any, freeze: Any, worn: Any) -> Any:
    tree = job["tree"] + "/"
    only = None if job.get("ids") is None else frozenset(job["ids"])
    strip, order = bool(job.get("strip")), job.get("order")
    expect = None if job.get("expect") is None else frozenset(job["expect"])
    passed_over = frozenset(job.get("ignore") or ())
    failures: dict[str, str] = {}
    seed = fixed.seeder()
    hooks: dict[str, Any] = {}

    def hook(**options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            hooks[function.__name__] = pytest.hookimpl(**options)(function)
            return function

        return add

    @hook(tryfirst=True)
    def pytest_addoption(parser: Any) -> None:
        # The earliest hook: pytest's own plugins are loaded, nothing of the tree or the environment is.
        if job.get("freeze"):
            freeze(worn.epoch if worn else int(os.environ["SOURCE_DATE_EPOCH"]))
        watch.begin()
        if worn:
            worn.begin()
        seed()
        report({"r": "start", "python": sys.version.split()[0], "pytest": pytest.__version__})

    @hook(tryfirst=True)
    def pytest_load_initial_conftests(early_config: Any, parser: Any, args: Any) -> None:
        early_config.known_args_namespace.no_cov = True
        where = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"pytest-cache-{os.getpid()}")
        early_config._inicache["cache_dir"] = where
        fixed.derandomise()
        watch.more(early_config)

    @hook(tryfirst=True)
    def pytest_cmdline_main(config: Any) -> None:
        # One process, every test, once, in the order given: whatever the project's addopts say.
        for name, value in fixed.OPTIONS.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        if job.get("collect"):
            config.option.collectonly, config.option.verbose = True, -2
        if strip:
            config.option.runxfail = True
        for name in ("rerunfailures", "flaky"):
            if config.pluginmanager.hasplugin(name):
                config.pluginmanager.unregister(name=name)

    if strip:

        @hook(tryfirst=True)
        def pytest_pycollect_makeitem(collector: Any, name: Any, obj: Any) -> Any:
            return fixed.unskip(collector, name, obj)

    if passed_over:

        @hook(tryfirst=True)
        def pytest_ignore_collect(collection_path: Any) -> Any:
            path = str(collection_path)
            return True if path.startswith(tree) and path[len(tree) :] in passed_over else None

    @hook(trylast=True)
    def pytest_collectreport(report: Any) -> None:
        _collected(report)

    say = report

    def _collected(report: Any) -> None:
        head = fixed.plain(report.nodeid).partition("::")
        if report.outcome == "passed":
            if not head[1] and head[0].endswith(".py"):
                say({"r": "module", "path": head[0], "error": ""})
            return
        longrepr = report.longrepr
        if report.outcome == "skipped":
            text = "Skipped: " + _text(longrepr[2] if isinstance(longrepr, tuple) else longrepr).removeprefix("Skipped: ")
        else:
            text = _last(_text(longrepr)).replace(tree, "")
        say({"r": "module", "path": head[0], "error": text or "error"})

    @hook(trylast=True)
    def pytest_collection_modifyitems(session: Any, config: Any, items: Any) -> None:
        if expect is not None:
            fixed.as_planned(items, expect)
        if only is not None:
            items[:] = [item for item in items if fixed.plain(item.nodeid) in only or item.nodeid.partition("[")[0] in only]
        if strip:
            for item in items:
                for node in item.listchain():
                    node.own_markers[:] = [m for m in node.own_markers if m.name not in ("skip", "skipif", "xfail")]
        if order is not None:
            fixed.shuffle(items, order)

    @hook(trylast=True)
    def pytest_collection_finish(session: Any) -> None:
        say({"r": "ids", "ids": [fixed.plain(item.nodeid) for item in session.items]})
        watch.collected(session)

    @hook(tryfirst=True, hookwrapper=True)
    def pytest_runtest_protocol(item: Any, nextitem: Any) -> Any:
        seed()
        yield
        failures.clear()
        watch.after_test()

    @hook(trylast=True, hookwrapper=True)
    def pytest_runtest_call(item: Any) -> Any:
        watch.before_call(item)
        if worn:
            worn.hide()
        yield
        if worn:
            worn.show()
        watch.after_call()

    if worn:

        @hook(trylast=True, hookwrapper=True)
        def pytest_fixture_setup(fixturedef: Any, request: Any) -> Any:
            worn.hide()
            yield
            worn.show()

    @hook(tryfirst=True, hookwrapper=True)
    def pytest_runtest_makereport(item: Any, call: Any) -> Any:
        yield
        if call.excinfo is not None:  # pytest's unittest plugin puts it there only now
            failures[call.when] = _signature(call.excinfo)

    @hook(tryfirst=True)
    def pytest_runtest_logreport(report: Any) -> None:
        _phase(report)

    def _phase(report: Any) -> None:
        line = {"r": "phase", "id": fixed.plain(report.nodeid), "when": report.when, "outcome": report.outcome}
        line["us"] = _micros(report.duration)
        if type(report).__name__.lower() == "subtestreport":
            if report.outcome == "passed" and not hasattr(report, "wasxfail"):
                return  # there may be very many of them, and they decide nothing
            line["r"] = "subtest"
        why = getattr(report, "wasxfail", None)
        if why is not None:
            line["xfail"] = _text(why)
        if report.outcome == "skipped" and why is None:
            longrepr = report.longrepr
            line["reason"] = _text(longrepr[2] if isinstance(longrepr, tuple) else longrepr)
        if report.outcome == "failed" or why is not None:
            line["sig"] = failures.get(report.when) or _last(_text(report.longrepr))
        say(line)

    @hook(trylast=True)
    def pytest_sessionfinish(session: Any, exitstatus: Any) -> None:
        say({"r": "watch", "found": worn.end() if worn else watch.end()})

    return hooks


def _micros(seconds: Any) -> Any:
    """Microseconds within a day: where a test turns the clock, a duration may be anything."""
    try:
        return max(0, min(int(seconds * 1000000), 86400 * 1000000))
    except BaseException:
        return 0


def _text(value: Any) -> Any:
    """``value`` as text of a bounded length; a hostile ``__str__`` gives a fixed word."""
    try:
        text = str(value)
        return fixed.plain(text[-LONG:]) if type(text) is str else "unprintable"
    except BaseException:
        return "unprintable"


def _last(text: Any) -> Any:
    """The last line of a longrepr that names an error (``E   Type: message``), else its last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line[1:] for line in lines if line.startswith("E ")]
    return " ".join((errors or lines or [""])[-1].split())


def _signature(excinfo: Any) -> Any:
    """``Type: message`` with white space normalised."""
    try:
        name = str(type.__dict__["__name__"].__get__(excinfo.type))
    except BaseException:
        name = "Exception"
    try:
        text = str(excinfo.value)[: 4 * LONG]
        text = text if type(text) is str else "unprintable"
    except BaseException:
        text = "unprintable"
    return fixed.plain((name + ": " + " ".join(text.split()))[:LONG].rstrip())
