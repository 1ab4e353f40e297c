"""Environments are built from base by a real installer from a real index, and are whole, verified and reused.

Without a package index (asked once, apart from the code under test) these tests are skipped, and say so.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from package_index import unreachable
from probatum.core.policy import Environment, Policy
from probatum.core.stage import Blob, Limits, Mount, Place, Runtime, Stage, Tree
from probatum.errors import EngineUnavailable, PolicyError
from probatum.host import env, env_python
from probatum.host.env import Built, environment
from probatum.host.env_build import Installer

UV = env_python.find_uv()


@pytest.fixture(scope="module")
def index() -> None:
    if why := unreachable():
        pytest.skip(why)


@pytest.fixture(scope="module")
def cache(tmp_path_factory, index) -> Path:
    """Shared, so that each wheel is fetched once."""
    return tmp_path_factory.mktemp("cache")


def tree(texts: dict[str, str]) -> Tree:
    return Tree({path.encode(): Blob(0o100644, data=text.encode()) for path, text in texts.items()})


def built(cache: Path, texts: dict[str, str] | None = None, **named) -> Built:
    return environment(Policy(version=1, environment=Environment(**named)), tree(texts or {}), lambda oid: b"", cache)


def folder(made: Built) -> Path:
    return next(Path(source) for source, target in made.place.binds if target == "/env")


def ask(made: Built, code: str) -> str:
    """Runs on the host: the files are the same ones that a stage sees."""
    python = folder(made) / "bin" / "python"
    return subprocess.run([python, "-I", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_without_packages_named_the_pinned_pytest_is_there_and_reused(cache):
    first = built(cache)
    before = folder(first).stat().st_ctime_ns
    second = built(cache)
    assert first.runtime == second.runtime and first.place == second.place and folder(second).stat().st_ctime_ns == before
    assert first.packages["pytest"] == first.pytest == ask(first, "import pytest; print(pytest.__version__)")
    assert {"pytest", "json"} <= first.names and first.notes == ("base names no packages: pinned pytest",)
    assert first.runtime.kind == "environment" and first.place.python == "/env/bin/python"


def test_nothing_compiles_when_a_stage_imports(cache):
    made = built(cache)
    sources = [path for path in folder(made).rglob("*.py") if "site-packages" in str(path)]
    assert sources and all(list((path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")) for path in sources)


def test_another_uid_can_read_it_whatever_the_callers_umask(cache, tmp_path):
    before = os.umask(0o077)
    try:
        private = built(tmp_path / "private")
    finally:
        os.umask(before)
    assert private.runtime == built(cache).runtime
    assert all(path.is_symlink() or path.stat().st_mode & 0o044 == 0o044 for path in folder(private).rglob("*"))
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("harm", ["change", "add", "remove", "same-size-and-time"])
def test_a_damaged_entry_is_built_again(cache, harm):
    made = built(cache, python="")
    victim = next(folder(made).rglob("site-packages/pytest/__init__.py"))
    good, stat = victim.read_bytes(), victim.stat()
    if harm == "add":
        (victim.parent / "evil.py").write_text("")
    elif harm == "remove":
        victim.unlink()
    elif harm == "change":
        victim.write_bytes(good + b"\n")
    else:
        victim.write_bytes(bytes([good[0] ^ 1]) + good[1:])
        os.utime(victim, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    again = built(cache)
    assert again.runtime == made.runtime
    assert victim.read_bytes() == good and not (victim.parent / "evil.py").exists()


def test_a_cache_that_was_copied_is_read_once_and_kept(cache, tmp_path):
    made = built(cache)
    shutil.copytree(cache, tmp_path / "copy", symlinks=True)
    place = folder(made).parent.name
    stamp = (tmp_path / "copy/envs" / place / "stamp").read_text()
    inode = (tmp_path / "copy/envs" / place / "env").stat().st_ino
    moved = built(tmp_path / "copy")
    assert moved.runtime == made.runtime and folder(moved).stat().st_ino == inode
    assert (tmp_path / "copy/envs" / place / "stamp").read_text() != stamp


SCRIPT = """
import sys
from pathlib import Path
from probatum.core.policy import Environment, Policy
from probatum.core.stage import Tree
from probatum.host.env import environment
print(environment(Policy(version=1), Tree({}), lambda oid: b"", Path(sys.argv[1])).runtime.ref)
"""


def start(cache: Path) -> subprocess.Popen[str]:
    path = os.pathsep.join(filter(None, sys.path))
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(cache)], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )


def until(condition, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.005)


def running(word: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if word in line:
                found.append(line)
    return found


def test_two_gates_at_once_make_one_entry(cache, tmp_path):
    shutil.copytree(cache / "uv", tmp_path / "uv", symlinks=True)
    both = [start(tmp_path), start(tmp_path)]
    refs = {process.communicate(timeout=300)[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0] and len(refs) == 1
    names = sorted(path.name for path in (tmp_path / "envs").iterdir())
    assert len(names) == 2 and names[1] == names[0] + ".lock"


@pytest.mark.parametrize("moment", ["the folder is there", "the interpreter is there", "packages are there"])
def test_killed_half_way_leaves_no_entry_and_no_installer(cache, tmp_path, moment):
    pattern = {
        "the folder is there": "",
        "the interpreter is there": "/env/bin/python",
        "packages are there": "/env/lib/*/site-packages/_pytest",
    }
    process = start(tmp_path)
    until(lambda: process.poll() is not None or any((tmp_path / "envs").glob(f".*{pattern[moment]}")))
    assert process.poll() is None, "it was too quick to be killed"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: not running(str(tmp_path)))
    assert not [path for path in (tmp_path / "envs").iterdir() if not path.name.startswith(".") and path.suffix != ".lock"]
    again = built(tmp_path)
    assert again.runtime == built(cache).runtime
    assert not list((tmp_path / "envs").glob(".*"))


def test_an_installer_dies_with_its_gate(tmp_path):
    forever = f"600.{os.getpid()}"
    code = (
        "import sys; from pathlib import Path; from probatum.host import env_build, env_python;"
        f"env_build.Installer(Path('/'), env_python.own(), Path({str(tmp_path)!r}), None)._run('/bin/sleep', {forever!r})"
    )
    process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    until(lambda: any(line.startswith("/bin/sleep") for line in running(forever)))
    process.kill()
    process.wait()
    until(lambda: not running(forever), 20)


def test_a_wheel_that_matches_no_hash_is_refused(cache):
    with pytest.raises(EngineUnavailable, match=r"(?i)hash") as caught:
        built(cache, {"requirements.txt": f"iniconfig==2.1.0 --hash=sha256:{'0' * 64}\n"})
    assert caught.value.exit == 5 and "cannot be built" in caught.value.line()


def test_a_lock_with_hashes_must_have_one_for_everything(cache):
    known = "iniconfig==2.1.0 --hash=sha256:9deba5723312380e77435581c6bf4935c94cbfab9b1ed33ef8d238ea168eb760"
    with pytest.raises(EngineUnavailable, match=r"(?i)hash"):
        built(cache, {"requirements.txt": f"{known}\nsortedcontainers==2.4.0\n"})


def test_a_lock_without_pytest_gets_it_and_keeps_its_own_versions(cache):
    made = built(cache, {"requirements.lock": "pluggy==1.5.0\n"})
    assert made.packages["pluggy"] == "1.5.0" and made.packages["pytest"]
    assert any("names no pytest" in note for note in made.notes) and made.inputs == ("requirements.lock",)


def test_no_index_and_nothing_cached_is_exit_5_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(EngineUnavailable, match="cannot be built") as caught:
        built(tmp_path)
    assert caught.value.exit == 5 and "index is reachable" in caught.value.remedy
    assert not [path for path in (tmp_path / "envs").iterdir() if path.suffix != ".lock"]


def test_what_is_cached_needs_no_index(cache, monkeypatch):
    made = built(cache)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PATH", "/nonexistent")
    assert built(cache).runtime == made.runtime


def test_nothing_of_base_is_run(cache, tmp_path):
    mark = tmp_path / "ran"
    evil = f"open({str(mark)!r}, 'w').close()\n"
    toml = (
        '[build-system]\nrequires = []\nbuild-backend = "back"\nbackend-path = ["."]\n'
        '[project]\nname = "p"\nversion = "1"\ndependencies = ["iniconfig"]\n'
    )
    made = built(cache, {
        "pyproject.toml": toml, "back.py": evil, "setup.py": evil, "sitecustomize.py": evil, "conftest.py": evil,
        "requirements.txt": "-e .\n./sub\n", "sub/setup.py": evil, "p/__init__.py": evil, "pip.py": evil, "uv.py": evil,
    })  # fmt: skip
    assert not mark.exists() and "p" not in made.packages


def test_the_installer_sees_no_secret_and_no_setting_of_the_caller(cache, tmp_path, monkeypatch):
    monkeypatch.setenv("MODEL_API_KEY", "secret")
    monkeypatch.setenv("PYTHONPATH", "/evil")
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", "/evil")
    monkeypatch.setenv("PIP_TARGET", "/evil")
    said = Installer(tmp_path, env_python.own(), cache / "uv", UV)._run("/usr/bin/env")
    assert "secret" not in said and "/evil" not in said


def test_an_installed_copy_of_the_project_is_taken_out(cache):
    toml = '[project]\nname = "Sorted_Containers"\nversion = "1"\n'.replace("Sorted_Containers", "sortedcontainers")
    made = built(cache, {"pyproject.toml": toml}, packages=("sortedcontainers", "pytest"))
    assert "sortedcontainers" not in made.packages and "sortedcontainers" not in made.names and not made.self_import


def test_a_project_that_pytest_imports_stays_and_is_named(cache):
    made = built(cache, {"pyproject.toml": '[project]\nname = "iniconfig"\nversion = "1"\n'})
    assert made.self_import == ("iniconfig",) and "iniconfig" not in made.names
    assert any("pytest itself imports iniconfig" in note for note in made.notes)


def test_uv_lock_is_installed_as_locked(cache, tmp_path):
    if not UV:
        pytest.skip("no uv on this machine")
    toml = (
        '[project]\nname = "p"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = ["iniconfig==2.1.0"]\n'
        '[dependency-groups]\ntest = ["pytest<9"]\ndocs = ["idna"]\n[tool.uv]\ndefault-groups = []\n'
    )
    (tmp_path / "pyproject.toml").write_text(toml)
    subprocess.run([UV, "lock", "--quiet", "--project", tmp_path], check=True, cwd=tmp_path)
    texts = {"pyproject.toml": toml, "uv.lock": (tmp_path / "uv.lock").read_text()}
    made = built(cache, texts)
    assert made.packages["iniconfig"] == "2.1.0" and made.pytest < "9" and "idna" not in made.packages
    assert set(made.inputs) == {"pyproject.toml", "uv.lock"} and "p" not in made.packages
    stale = texts | {"pyproject.toml": toml.replace("iniconfig==2.1.0", "idna")}
    assert built(cache, stale).packages["iniconfig"] == "2.1.0"


def test_a_cache_inside_a_project_is_refused_where_uv_would_read_it(tmp_path, index):
    if not UV:
        pytest.skip("no uv on this machine")
    (tmp_path / "pyproject.toml").write_text("[tool.uv]\n")
    texts = {"pyproject.toml": '[project]\nname = "p"\nversion = "1"\n', "uv.lock": "version = 1\n"}
    with pytest.raises(EngineUnavailable, match="a project around the cache"):
        built(tmp_path / "cache", texts)


def test_pip_is_enough_where_there_is_no_uv(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(env, "find_uv", lambda: None)
    made = built(tmp_path, {"requirements.txt": "iniconfig==2.1.0\n"})
    assert made.packages["iniconfig"] == "2.1.0" and made.pytest and not {"pip", "setuptools"} & set(made.packages)
    first = (folder(made) / "bin" / "pytest").read_bytes().split(b"\n")[0]
    assert first == b"#!/env/bin/python" or first == b"#!/bin/sh"


def test_another_interpreter_by_policy(cache):
    found = None
    for minor in ("3.10", "3.11", "3.12", "3.13", "3.14"):
        if minor != env_python.own().minor:
            try:
                found = env_python.find(minor, UV)
            except EngineUnavailable:
                continue
            break
    if found is None:
        pytest.skip("this machine has one Python only")
    made = built(cache, python=found.minor)
    assert (
        made.python == found.version and ask(made, "import sys, pytest; print('%d.%d' % sys.version_info[:2])") == found.minor
    )
    assert made.runtime != built(cache).runtime


def test_an_interpreter_that_is_not_there_is_named():
    with pytest.raises(EngineUnavailable, match=r"no Python 9\.9"):
        env_python.find("9.9", UV)
    with pytest.raises(PolicyError, match="is no version"):
        env_python.find("latest")


def test_metadata_changes_the_runtime_and_not_the_packages(cache):
    one = built(cache, {"pyproject.toml": '[project]\nname = "p"\nversion = "1"\n'})
    two = built(cache, {"pyproject.toml": '[project]\nname = "p"\nversion = "2"\n'})
    none = built(cache, {"pyproject.toml": '[project]\nname = "p"\nversion = "2"\n'}, metadata=False)
    assert folder(one) == folder(two) == folder(none)
    assert len({one.runtime.ref, two.runtime.ref, none.runtime.ref}) == 3


@pytest.fixture
def engine(tmp_path) -> Iterator[object]:
    bubblewrap = pytest.importorskip("probatum.engines.bubblewrap", reason="the engine is not there")
    tree_module = pytest.importorskip("probatum.host.tree", reason="trees are not there")
    return lambda *known: bubblewrap.Bubblewrap(
        trees=tree_module.Trees(lambda oid: b"", tmp_path / "trees"), places=env.places(*known), cache=None
    )


def in_stage(engine, runtime: Runtime, place: Place, argv: tuple[str, ...], trust: str = "base") -> tuple[object, str]:
    async def one():
        made = engine((runtime, place))
        await made.open()
        try:
            stage = Stage(
                name="t", trust=trust, runtime=runtime, mounts=(Mount("/t", Tree({})),), argv=argv, limits=Limits(wall=60)
            )
            return await made.run(stage, "n" * 32)
        finally:
            await made.close()

    outcome = anyio.run(one)
    return outcome.end, outcome.stdout.decode() + outcome.stderr.decode()


def test_a_stage_sees_the_environment_and_the_projects_metadata(cache, engine):
    toml = '[project]\nname = "parcel"\nversion = "1.5"\n[project.scripts]\nparcel = "parcel:main"\n'
    made = built(cache, {"pyproject.toml": toml})
    code = (
        "import importlib.metadata as m, pytest, sys;"
        "print(sys.prefix, pytest.__version__, m.version('parcel'), m.entry_points(name='parcel'))"
    )
    end, said = in_stage(engine, made.runtime, made.place, ("{python}", "-I", "-B", "-c", code))
    assert (end.how, end.code) == ("exited", 0), said
    assert f"/env {made.pytest} 1.5" in said and "parcel:main" in said


def test_our_own_code_runs_in_a_trusted_stage_and_its_digest_covers_it(engine):
    runtime, place = env.gate_place()
    end, said = in_stage(engine, runtime, place, env.gate_argv("judge", "--help"), "trusted")
    assert (end.how, end.code) == ("exited", 0) and "probatum judge" in said, said
    assert runtime == env.gate_place()[0]
