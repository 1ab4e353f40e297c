"""A disguised run hides what tells product code that it is tested: it must behave there as it does when it is scored.

Hidden in this job only: environment names, the clock's value, HOME, sys.argv, pytest's modules while product code runs, and
the sealed test modules and their folders where product code asks the disk. What product code looks at all the same is in
looks.py. This raises the price; it proves nothing: the disguise is Python in the candidate's own process.
"""

from __future__ import annotations

import builtins
import errno
import importlib.machinery
import io
import os
import pathlib
import posixpath
import sys
from typing import Any

looks: Any = None
"""The module looks.py; run.py puts it here, since nothing of the probe is importable."""

GONE = ("SOURCE_DATE_EPOCH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE")
HIDDEN = ("pytest", "_pytest", "pluggy", "iniconfig")
WORD = "main"


class Disguise:
    """One job's disguise; ``job["disguise"]`` holds the clock's ``epoch`` and the ``hidden`` paths (see core/suite.py)."""

    def __init__(self, job: Any) -> None:
        self.epoch = job["disguise"]["epoch"]
        self.looks = looks.Looks(job["tree"], job.get("sealed", ()), job["disguise"]["hidden"], os.path.dirname(__file__))
        self.modules = _Modules(self.looks)

    def begin(self) -> None:
        """Before the first code of the tree."""
        from _pytest import runner
        from _pytest.assertion import rewrite

        for name in GONE:
            os.environ.pop(name, None)
        home = os.path.join(os.environ.get("TMPDIR", "/tmp"), os.urandom(4).hex())
        os.mkdir(home)
        os.environ["HOME"] = home
        sys.argv = [WORD]
        sys.__dict__["orig_argv"] = [sys.executable, WORD]
        vars(sys.modules["__main__"]).pop("__file__", None)
        vars(runner)["_update_current_test_var"] = _nothing
        _guard_files(self.looks)
        self.modules.begin((importlib.machinery.SourceFileLoader, rewrite.AssertionRewritingHook))
        self.looks.listen()

    def hide(self) -> None:
        """Before product code may run."""
        self.modules.hide()

    def show(self) -> None:
        self.modules.show()

    def end(self) -> Any:
        """What product code was seen to look at, sorted."""
        return sorted(self.looks.found)


def _nothing(*given: Any) -> None:
    """Instead of pytest's function that keeps PYTEST_CURRENT_TEST."""


class _Modules:
    """pytest's modules leave sys.modules while product code runs; who imports one of them all the same gets the very same."""

    def __init__(self, looks: Any) -> None:
        self.looks, self.depth = looks, 0
        self.away: dict[str, Any] = {}
        self.specs: dict[str, Any] = {}

    def begin(self, loaders: Any) -> None:
        sys.meta_path.insert(0, self)  # before the watch's own, which would load pytest anew
        builtins.__import__ = self.importer(builtins.__import__)
        for loader in loaders:
            loader.exec_module = self.executed(loader.exec_module)

    def hide(self) -> None:
        for name in [name for name in os.environ if name.startswith("PYTEST")]:
            os.environ.pop(name, None)
        self.depth += 1
        if self.depth == 1:
            self.take()

    def show(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            sys.modules.update(self.away)
            self.away.clear()

    def take(self) -> None:
        modules, product = sys.modules, self.looks.product
        for name in [name for name in modules if name.startswith(HIDDEN)]:
            if not product(getattr(modules[name], "__file__", None)):
                self.away[name] = modules.pop(name)

    def executed(self, real: Any) -> Any:
        """A loader's ``exec_module`` that hides while it executes a product module."""

        def exec_module(loader: Any, module: Any) -> Any:
            if not self.looks.product(getattr(getattr(module, "__spec__", None), "origin", None)):
                return real(loader, module)
            self.hide()
            try:
                return real(loader, module)
            finally:
                self.show()

        return exec_module

    def importer(self, real: Any) -> Any:
        """``__import__`` for whom a hidden module is there: pytest's own code and the tests import late, too."""

        def __import__(name: Any, globals: Any = None, locals: Any = None, fromlist: Any = (), level: Any = 0) -> Any:
            if self.away and type(globals) is dict:
                wanted = globals.get("__package__") if level else name
                if type(wanted) is str and wanted.startswith(HIDDEN) and not self.looks.product(globals.get("__file__")):
                    sys.modules.update(self.away)
                    try:
                        return real(name, globals, locals, fromlist, level)
                    finally:
                        self.take()
            return real(name, globals, locals, fromlist, level)

        return __import__

    def find_spec(self, name: Any, path: Any = None, target: Any = None) -> Any:
        if name not in self.away:
            return None
        self.specs[name] = getattr(self.away[name], "__spec__", None)
        loader: Any = self
        return importlib.machinery.ModuleSpec(name, loader)

    def create_module(self, spec: Any) -> Any:
        return self.away[spec.name]

    def exec_module(self, module: Any) -> None:
        module.__spec__ = self.specs.get(module.__name__)


def _guard_files(looks: Any) -> None:
    """The functions that ask the disk, in ``os`` and wherever the standard library or the builtins hold them."""
    real = {name: getattr(os, name) for name in ("stat", "lstat", "access", "listdir", "scandir", "open")}
    guards: dict[str, Any] = {name: _Guard(function, looks) for name, function in real.items()}
    guards["access"] = _Access(real["access"], looks)
    guards["listdir"] = _Listing(real["listdir"], looks, list)
    guards["scandir"] = _Listing(real["scandir"], looks, _Entries)
    for name, guard in guards.items():
        setattr(os, name, guard)
        for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
            if real[name] in able:
                able.add(guard)
    real["io.open"] = io.open
    opened = guards["io.open"] = _Guard(io.open, looks, reads=True)
    guards["open"].reads = True
    io.open = builtins.open = opened
    accessor = getattr(pathlib, "_NormalAccessor", None)  # before Python 3.11
    for name, function in list(vars(accessor).items()) if accessor is not None else ():
        for key, one in real.items():
            if function is one or getattr(function, "__func__", None) is one:
                setattr(accessor, name, guards[key])


class _Guard:
    """Calls ``real``, unless product code asks for a hidden path. No function, so that it never becomes a bound method."""

    def __init__(self, real: Any, looks: Any, reads: Any = False) -> None:
        self.real, self.looks, self.reads = real, looks, reads
        self.__name__, self.__doc__, self.__module__ = real.__name__, real.__doc__, real.__module__

    def __call__(self, *args: Any, **options: Any) -> Any:
        path = args[0] if args else options.get("path", options.get("file", "."))
        frame = sys._getframe(1)
        if not isinstance(path, int) and not _resolving(frame) and self.looks.nearest(frame, self.looks.shows):
            where = self.looks.resolved(path, options.get("dir_fd"))
            if where in self.looks.hidden or (where + "/").startswith(self.looks.probe):
                if self.reads:
                    self.looks.read(frame, where)
                return self.refuse(path)
            return self.allow(where, *args, **options)
        return self.real(*args, **options)

    def refuse(self, path: Any) -> Any:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    def allow(self, where: Any, *args: Any, **options: Any) -> Any:
        return self.real(*args, **options)


class _Access(_Guard):
    """``os.access`` never raises: it says no."""

    def refuse(self, path: Any) -> Any:
        return False


class _Listing(_Guard):
    """What lists a folder leaves out its hidden entries."""

    def __init__(self, real: Any, looks: Any, kind: Any) -> None:
        super().__init__(real, looks)
        self.kind = kind

    def allow(self, where: Any, *args: Any, **options: Any) -> Any:
        found = self.real(*args, **options)
        if where not in self.looks.parents:
            return found
        hidden = self.looks.hidden
        kept = (one for one in found if os.path.join(where, os.fsdecode(getattr(one, "name", one))) not in hidden)
        return self.kind(kept) if self.kind is list else self.kind(kept, found)


class _Entries:
    """An iterator as ``os.scandir`` gives it."""

    def __init__(self, kept: Any, real: Any) -> None:
        self.kept, self.real = kept, real

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return next(self.kept)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *raised: Any) -> None:
        self.real.close()

    def close(self) -> None:
        self.real.close()


def _resolving(frame: Any) -> Any:
    """Whether ``os.path.realpath`` asks: a path may always be resolved."""
    return frame.f_globals is posixpath.__dict__ and frame.f_code.co_name in ("realpath", "_joinrealpath")
