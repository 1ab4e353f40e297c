"""The plugin reports every collected module, node id, phase and subtest at once; it decides nothing."""

import os
import sys

import pytest

LONG = 2000


def reporter(fd, label):
    """A function that writes one JSON line; everything it needs is captured here, before any code of a tree runs."""
    write, length = os.write, len
    try:
        from _json import encode_basestring_ascii, make_encoder

        pieces = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, True)
    except ImportError:
        import json

        encode = json.JSONEncoder(separators=(",", ":")).encode

        def pieces(value, level):
            return (encode(value),)

    join, number = "".join, [0]

    def report(line):
        number[0] += 1
        data = (join(pieces({"n": number[0], "job": label, **line}, 0)) + "\n").encode("ascii")
        while data:
            done = write(fd, data)
            data = data[done:] if done < length(data) else b""

    return report


def finisher(report, nonce):
    """The last line of a job: the nonce and pytest's exit status."""

    def finish(status):
        report({"r": "finish", "nonce": nonce, "exit": status})

    return finish


class Probe:
    """One job's hooks. ``job`` is one entry of the config's ``jobs`` (see core/suite.py)."""

    def __init__(self, report, job, watch, freeze):
        self.__dict__.update(_hooks(report, job, watch(job["tree"], job.get("sealed", ())), freeze))


def _hooks(report, job, watch, freeze):
    tree = job["tree"] + "/"
    only = None if job.get("ids") is None else frozenset(job["ids"])
    strip, order = bool(job.get("strip")), job.get("order")
    expect = None if job.get("expect") is None else frozenset(job["expect"])
    passed_over = frozenset(job.get("ignore") or ())
    failures = {}
    seed = _seeder()
    hooks = {}

    def hook(**options):
        def add(function):
            hooks[function.__name__] = pytest.hookimpl(**options)(function)
            return function

        return add

    @hook(tryfirst=True)
    def pytest_addoption(parser):
        # The earliest hook: pytest's own plugins are loaded, nothing of the tree or the environment is.
        if job.get("freeze"):
            freeze(int(os.environ["SOURCE_DATE_EPOCH"]))
        watch.begin()
        seed()
        report({"r": "start", "python": sys.version.split()[0], "pytest": pytest.__version__})

    @hook(tryfirst=True)
    def pytest_load_initial_conftests(early_config, parser, args):
        early_config.known_args_namespace.no_cov = True
        where = os.path.join(os.environ.get("TMPDIR", "/tmp"), f"pytest-cache-{os.getpid()}")
        early_config._inicache["cache_dir"] = where
        _derandomise()
        watch.more(early_config)

    @hook(tryfirst=True)
    def pytest_cmdline_main(config):
        # One process, every test, once, in the order given: whatever the project's addopts say.
        for name, value in _OPTIONS.items():
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
        def pytest_pycollect_makeitem(collector, name, obj):
            return _unskip(collector, name, obj)

    if passed_over:

        @hook(tryfirst=True)
        def pytest_ignore_collect(collection_path):
            path = str(collection_path)
            return True if path.startswith(tree) and path[len(tree) :] in passed_over else None

    @hook(trylast=True)
    def pytest_collectreport(report):
        _collected(report)

    say = report

    def _collected(report):
        head = _plain(report.nodeid).partition("::")
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
    def pytest_collection_modifyitems(session, config, items):
        if expect is not None:
            _as_planned(items, expect)
        if only is not None:
            items[:] = [item for item in items if _plain(item.nodeid) in only or item.nodeid.partition("[")[0] in only]
        if strip:
            for item in items:
                for node in item.listchain():
                    node.own_markers[:] = [m for m in node.own_markers if m.name not in ("skip", "skipif", "xfail")]
        if order is not None:
            _shuffle(items, order)

    @hook(trylast=True)
    def pytest_collection_finish(session):
        say({"r": "ids", "ids": [_plain(item.nodeid) for item in session.items]})
        watch.collected(session)

    @hook(tryfirst=True, hookwrapper=True)
    def pytest_runtest_protocol(item, nextitem):
        seed()
        yield
        failures.clear()
        watch.after_test()

    @hook(trylast=True, hookwrapper=True)
    def pytest_runtest_call(item):
        watch.before_call(item)
        yield
        watch.after_call()

    @hook(tryfirst=True, hookwrapper=True)
    def pytest_runtest_makereport(item, call):
        yield
        if call.excinfo is not None:  # pytest's unittest plugin puts it there only now
            failures[call.when] = _signature(call.excinfo)

    @hook(tryfirst=True)
    def pytest_runtest_logreport(report):
        _phase(report)

    def _phase(report):
        line = {"r": "phase", "id": _plain(report.nodeid), "when": report.when, "outcome": report.outcome}
        line["us"] = _micros(report.duration)
        if type(report).__name__.lower() == "subtestreport":
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
    def pytest_sessionfinish(session, exitstatus):
        say({"r": "watch", "found": watch.end()})

    return hooks


_OPTIONS = {
    "numprocesses": 0,
    "maxprocesses": 0,
    "dist": "no",
    "tx": [],
    "maxfail": 0,
    "continue_on_collection_errors": True,
    "randomly_reorganize": False,
    "randomly_reset_seed": False,
    "reruns": 0,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "collectonly": False,
    "usepdb": False,
    # Source lines in tracebacks are slow, and CPython 3.11 can fail while it parses them; messages do not depend on it.
    "tbstyle": "native",
}
"""Options of pytest and well-known plugins that would run a test elsewhere, twice, not at all, or in another order."""


def _micros(seconds):
    """Microseconds within a day: where a test turns the clock, a duration may be anything."""
    try:
        return max(0, min(int(seconds * 1000000), 86400 * 1000000))
    except BaseException:
        return 0


def _plain(text):
    """``text`` without lone surrogates, which no JSON reader takes."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def _text(value):
    """``value`` as text of a bounded length; a hostile ``__str__`` gives a fixed word."""
    try:
        text = str(value)
        return _plain(text[-LONG:]) if type(text) is str else "unprintable"
    except BaseException:
        return "unprintable"


def _last(text):
    """The last line of a longrepr that names an error (``E   Type: message``), else its last line."""
    lines = [line for line in text.splitlines() if line.strip()]
    errors = [line[1:] for line in lines if line.startswith("E ")]
    return " ".join((errors or lines or [""])[-1].split())


def _signature(excinfo):
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
    return _plain((name + ": " + " ".join(text.split()))[:LONG].rstrip())


def _seeder():
    """A function that seeds the generators a test may use without asking; bound before any code of a tree runs."""
    import random

    seed, modules = random.seed, sys.modules

    def again():
        seed(0)
        numpy = modules.get("numpy.random")
        if numpy is not None:
            try:
                numpy.seed(0)
            except Exception:
                pass

    return again


def _as_planned(items, expect):
    """Nothing runs where the collection is not exactly the planned one: pytest ends with exit status 4 and says why."""
    found = [_plain(item.nodeid) for item in items]
    seen = set(found)
    wrong = []
    for what, ids in (("missing", expect - seen), ("not in the plan", seen - expect)):
        if ids:
            wrong.append("%d %s, the first is %s" % (len(ids), what, min(ids)))
    if len(found) != len(seen):
        wrong.append("%d collected twice" % (len(found) - len(seen)))
    if wrong:
        items[:] = []
        raise pytest.UsageError("what is collected is not what the plan says: " + "; ".join(wrong))


def _shuffle(items, order):
    """Modules in an order that ``order`` chooses, and the tests of each module likewise."""
    import random

    rng = random.Random(order)
    groups = {}
    for item in items:
        groups.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = sorted(groups)
    rng.shuffle(names)
    for name in names:
        rng.shuffle(groups[name])
    items[:] = [item for name in names for item in groups[name]]


def _unskip(collector, name, obj):
    """unittest's skip and expectedFailure leave attributes and wrappers; a forced run takes both away."""
    if isinstance(obj, type):
        for cls in obj.__mro__[:-1]:
            for key, value in list(vars(cls).items()):
                inner = _unwrapped(value)
                if inner is not value:
                    setattr(cls, key, inner)
            for key in ("__unittest_skip__", "__unittest_expecting_failure__"):
                if vars(cls).get(key):
                    setattr(cls, key, False)
        return None
    inner = _unwrapped(obj)
    if inner is obj or isinstance(collector.obj, type) or not isinstance(collector.obj, type(sys)):
        return None
    setattr(collector.obj, name, inner)
    return collector.ihook.pytest_pycollect_makeitem(collector=collector, name=name, obj=inner)


def _unwrapped(value):
    marks = getattr(value, "__dict__", None)
    if not isinstance(marks, dict):
        return value
    if marks.get("__unittest_expecting_failure__"):
        value.__unittest_expecting_failure__ = False
    if not isinstance(value, type) and marks.get("__unittest_skip__"):
        value.__unittest_skip__ = False
        return marks.get("__wrapped__", value)
    return value


class _Profile:
    """Finds ``hypothesis`` once, for the loader that was going to load it, and makes its default profile deterministic."""

    def find_spec(self, name, path=None, target=None):
        if name != "hypothesis":
            return None
        sys.meta_path.remove(self)
        from importlib.machinery import PathFinder, SourceFileLoader

        spec = PathFinder.find_spec(name, path)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader.__class__ = _profiled(SourceFileLoader)
        return spec


def _profiled(base):
    class SourceLoader(base):
        def exec_module(self, module):
            self.__class__ = base
            base.exec_module(self, module)
            _settle(module)

    return SourceLoader


def _settle(module):
    """Examples follow from the test alone: no database, no deadline; a conftest's own profile still gets a fixed seed."""
    module.settings.register_profile("gate", derandomize=True, database=None, deadline=None, print_blob=False)
    module.settings.load_profile("gate")
    core = sys.modules.get("hypothesis.core")
    if core is not None:
        core.global_force_seed = 0


def _derandomise():
    # Before the finder of assertion rewriting, which would answer first.
    if "hypothesis" in sys.modules:
        _settle(sys.modules["hypothesis"])
    else:
        sys.meta_path.insert(0, _Profile())
