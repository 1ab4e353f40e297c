"""Fills an environment: uv where it is found, else venv and pip. Base's own code is never run here."""

from __future__ import annotations

import compileall
import importlib.metadata
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ..core.stage import Blob, Tree
from ..errors import EngineUnavailable
from .env_entry import INSIDE, Info
from .env_python import Python
from .env_sources import Files, Wanted, flatten, pins

DEADLINE = 900
"""Seconds that one command of the installer may take."""

_KEPT = re.compile(
    r"HOME|PATH|LANG|NETRC|XDG_CONFIG_HOME|XDG_CONFIG_DIRS|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE"
    r"|(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy"
    r"|UV_(DEFAULT_INDEX|INDEX.*|EXTRA_INDEX_URL|FIND_LINKS|NATIVE_TLS|SYSTEM_CERTS|KEYRING_PROVIDER|INSECURE_HOST|HTTP_.*)"
    r"|PIP_(INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|CERT|TRUSTED_HOST|DEFAULT_TIMEOUT|PROXY|CONFIG_FILE)"
)
"""Variables of the caller that say where packages come from; nothing else of its environment reaches an installer."""

_GUARD = (
    "import ctypes,os,sys; ctypes.CDLL(None).prctl(1,9); os.getppid()==int(sys.argv[1]) and os.execv(sys.argv[2],sys.argv[2:])"
)
"""Dies with the gate: a gate that is killed leaves no installer behind (PR_SET_PDEATHSIG survives execv)."""


def build(folder: Path, python: Python, wanted: Wanted, project: str, cache: Path, uv: str | None) -> bytes:
    """Fills ``folder/env`` and returns Info as JSON bytes. ``project`` is the gated project's name, which is not installed.

    Raises EngineUnavailable with the installer's last words.
    """
    installer = Installer(folder, python, cache, uv)
    installer.create()
    notes = list(wanted.notes)
    sources = folder / "wanted"
    for name, data in wanted.files.items():
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        (sources / name).write_bytes(data)
    main = sources / wanted.main
    if wanted.kind == "uv":
        main = installer.export(sources, wanted.options, notes)
    if main.read_bytes().strip():
        installer.install(main, hashed=wanted.hashed)
    if "pytest" not in (found := installer.packages()):
        added = installer.add_pytest(found)
        notes.append(f"{wanted.source} names no pytest: {added} added")
    kept = installer.drop_project(project)
    if kept:
        notes.append(f"pytest itself imports {', '.join(kept)}: the installed copy stays beside the gated one")
    shutil.rmtree(sources)
    installer.finish()
    packages = installer.packages()
    info = Info(
        python=python.version, pytest=packages["pytest"], packages=packages, notes=tuple(notes), project=kept,
        names=tuple(sorted(installer.names() - set(kept))), site=str(installer.site.relative_to(folder / "env")),
    )  # fmt: skip
    return msgspec.json.encode(info)


class Installer:
    """uv or pip, on one environment folder."""

    def __init__(self, folder: Path, python: Python, cache: Path, uv: str | None) -> None:
        self.folder, self.env, self._python, self._uv = folder, folder / "env", python, uv
        self._cache = cache
        self.python = self.env / "bin" / "python"
        self.site = self.env / "lib" / f"python{python.minor}" / "site-packages"

    def create(self) -> None:
        """An empty virtual environment whose links and settings hold inside the sandbox too."""
        if self._uv:
            self._run(
                self._uv, "venv", "--quiet", "--no-project", "--relocatable", "--no-python-downloads",
                "--python", self._python.executable, str(self.env),
            )  # fmt: skip
        else:
            self._run(self._python.executable, "-I", "-m", "venv", "--symlinks", str(self.env))

    def export(self, sources: Path, options: Sequence[str], notes: list[str]) -> Path:
        """A requirements file with hashes from uv.lock, as locked."""
        if not self._uv:
            raise EngineUnavailable(
                "uv.lock", "cannot be read without uv", "install uv, or name a requirements file as environment.lock"
            )
        for parent in sources.resolve().parents:
            if (parent / "pyproject.toml").exists() or (parent / "uv.toml").exists():
                raise EngineUnavailable(
                    str(parent), "is a project around the cache", "set PROBATUM_CACHE to a folder outside it"
                )
        text = self._run(
            self._uv, "export", "--quiet", "--frozen", "--no-emit-workspace", "--no-header", "--no-annotate",
            "--no-python-downloads", "--python", self._python.executable, "--project", str(sources), *options,
        )  # fmt: skip
        tree = Tree({b"uv.lock": Blob(0o100644, data=text.encode())})
        main = sources / "requirements.txt"
        main.write_text(flatten("uv.lock", Files(tree, str.encode), notes)[0] + "\n")
        return main

    def install(self, main: Path, *, hashed: bool, constraints: Path | None = None) -> None:
        """Everything that ``main`` names. ``hashed``: what matches no hash of the file is refused."""
        options = ["--require-hashes"] if hashed and main.name == "requirements.txt" else []
        options += ["-c", str(constraints)] if constraints else []
        if self._uv:
            command = [self._uv, "pip", "install", "--quiet", "--python", str(self.python), "--link-mode", "copy"]
            self._run(*command, *options, "-r", str(main))
        elif main.name == "pylock.toml":
            raise EngineUnavailable("pylock.toml", "cannot be read without uv", "install uv, or name a requirements file")
        else:
            self._run(str(self.python), "-I", "-m", "pip", "install", "--quiet", "--no-input", *options, "-r", str(main))

    def add_pytest(self, found: dict[str, str]) -> str:
        """Our pinned pytest, or where its needs fight the lock the newest one that fits. What is there does not move."""
        fixed = self.folder / "wanted" / "fixed.txt"
        fixed.write_text("".join(f"{name}=={version}\n" for name, version in found.items()))
        want = self.folder / "wanted" / "pytest.txt"
        pinned = sorted(set(re.findall(rb"^pytest==(\S+)", pins().files["requirements.txt"], re.MULTILINE)), reverse=True)
        tries = [
            f"pytest=={version.decode()}" for version in pinned if int(self._python.minor.split(".")[1]) >= 10 or version < b"9"
        ]
        for text in (*tries, "pytest>=7"):
            want.write_text(text + "\n")
            try:
                self.install(want, hashed=False, constraints=fixed)
            except EngineUnavailable:
                if text == "pytest>=7":
                    raise
                continue
            break
        return f"pytest {self.packages()['pytest']}"

    def drop_project(self, project: str) -> tuple[str, ...]:
        """Takes an installed copy of the gated project out; returns its modules where pytest cannot run without them."""
        by_name = {_normal(dist.name): dist for dist in importlib.metadata.distributions(path=[str(self.site)])}
        mine = by_name.get(_normal(project))
        if mine is None:
            return ()
        needed, pending = set(), ["pytest"]
        while pending:
            name = pending.pop()
            if name in by_name and name not in needed:
                needed.add(name)
                lines = [line for line in by_name[name].requires or [] if "extra ==" not in line]
                pending += [_normal(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in lines]
        if _normal(project) in needed:
            tops = {Path(str(file)).parts[0].split(".")[0] for file in mine.files or [] if ".." not in str(file)}
            return tuple(sorted(top for top in tops if top.isidentifier()))
        if self._uv:
            self._run(self._uv, "pip", "uninstall", "--quiet", "--python", str(self.python), mine.name)
        else:
            self._run(str(self.python), "-I", "-m", "pip", "uninstall", "--quiet", "--yes", mine.name)
        return ()

    def finish(self) -> None:
        """Nothing that runs at start-up but one path line, no scripts that name this folder, everything compiled."""
        if not self._uv:
            tools = [name for name in ("setuptools", "pip") if name in self.packages()]
            self._run(str(self.python), "-I", "-m", "pip", "uninstall", "--quiet", "--yes", *tools)
        for path in [*self.site.glob("_virtualenv.*"), *self.env.glob("bin/*ctivate*"), *self.env.glob("bin/*.bat"),
                     self.env / ".lock", self.env / ".gitignore", self.env / "CACHEDIR.TAG"]:  # fmt: skip
            path.unlink(missing_ok=True)
        for path in (self.env / "bin").iterdir():
            if path.is_symlink() and os.readlink(path).startswith("/"):
                path.unlink()
                path.symlink_to(self._python.executable)
            elif path.is_file() and (data := path.read_bytes()).startswith(b"#!" + os.fsencode(self.env)):
                path.write_bytes(b"#!" + f"{INSIDE}/bin/python\n".encode() + data.split(b"\n", 1)[1])
        (self.env / "project").mkdir()
        (self.site / "probatum_project.pth").write_text(f"{INSIDE}/project\n")
        if self._python.executable == os.path.realpath(getattr(sys, "_base_executable", "")):
            compileall.compile_dir(self.site, quiet=2, workers=1)
        else:
            self._run(str(self.python), "-I", "-m", "compileall", "-qq", str(self.site), check=False)

    def packages(self) -> dict[str, str]:
        """Installed distributions, normalised name to version."""
        found = importlib.metadata.distributions(path=[str(self.site)])
        return dict(sorted((_normal(dist.name), dist.version) for dist in found))

    def names(self) -> set[str]:
        """Top-level module names in site-packages."""
        return {name for path in self.site.iterdir() if (name := path.name.split(".")[0]).isidentifier() and _module(path)}

    def _run(self, *command: str, check: bool = True) -> str:
        kept = {name: value for name, value in os.environ.items() if _KEPT.fullmatch(name)}
        clean = {"PATH": os.defpath, "LANG": "C.UTF-8", "UV_HTTP_TIMEOUT": "30", **kept}
        clean |= {"UV_CACHE_DIR": str(self._cache), "PIP_CACHE_DIR": str(self._cache.with_name("pip")), "UV_NO_PROGRESS": "1"}
        clean |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        guarded = [sys.executable, "-I", "-S", "-c", _GUARD, str(os.getpid()), *command]
        process = subprocess.Popen(
            guarded, env=clean, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, errors="replace", umask=0o022, start_new_session=True,
        )  # fmt: skip
        try:
            out, said = process.communicate(timeout=DEADLINE)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            if isinstance(error, subprocess.TimeoutExpired):
                raise EngineUnavailable(
                    "environment", f"cannot be built: {command[0]} took over {DEADLINE} s", _REMEDY
                ) from None
            raise
        if check and process.returncode != 0:
            raise EngineUnavailable("environment", f"cannot be built: {_last_words(said or out)}", _REMEDY)
        return out


_REMEDY = "see that the package index is reachable and that base's lock can be installed; then run the gate again"


def _last_words(said: str) -> str:
    """What an installer said, on one line, without its drawing: how it begins (which package) and how it ends (why)."""
    lines = [re.sub(r"^[\s×╰─▶│├·]+", "", line).strip() for line in said.splitlines()]
    text = " ".join(line for line in lines if line)
    return (text if len(text) <= 600 else f"{text[:200]} … {text[-380:]}") or "the installer said nothing"


def _module(path: Path) -> bool:
    if path.is_dir():
        return not path.name.endswith((".dist-info", ".egg-info", ".data")) and path.name != "__pycache__"
    return path.suffix in (".py", ".so")


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
