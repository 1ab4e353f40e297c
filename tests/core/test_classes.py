"""Which class a path has: the table of section 0, tricks with names included."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from probatum.core.check import Change, Entry
from probatum.core.claims import BUILT_IN, HARNESS, ORDER, RANK, Globs
from probatum.core.classes import Rules, classify, classify_change, explain, new_shadows, roots_of_tests
from probatum.core.fold import folded
from probatum.core.globs import compiled, text, wrong
from probatum.core.policy import STRICT, Paths, Policy
from probatum.core.records import Class

SEALED = [b"tests/sealed/test_a.py", b"tests/sealed/conftest.py", b"fixtures/sealed/a.json", b"tests/sealed/deep/er/test_b.py"]


def rules(policy: Policy = STRICT, sealed: list[bytes] = SEALED, base: list[bytes] | None = None) -> Rules:
    return Rules.of(policy, sealed, new_shadows(policy, base or [b"src/a.py"], ["hypothesis", "pytest", "Yaml"]))


TABLE = """
workflow: .github/workflows/ci.yml .github/actions/x/action.yml .gitlab-ci.yml Jenkinsfile
    deploy/Jenkinsfile.prod .circleci/config.yml azure-pipelines.yml .buildkite/pipeline.yml
    bitbucket-pipelines.yml .travis.yml .drone.yml .woodpecker.yml .woodpecker/a.yml .tekton/run.yaml
    .GitHub/Workflows/ci.yml ci/templates/build.gitlab-ci.yml .cirrus.yml appveyor.yml
harness: conftest.py src/conftest.py tests/proposed/conftest.py tests/conftest.py CONFTEST.PY src/Conftest.py
    src/conftest.pyc pytest.ini src/pytest.ini .pytest.ini tox.ini pytest.toml .pytest.toml src/deep/tox.ini
    sitecustomize.py src/usercustomize.py src/sitecustomize/__init__.py evil.pth src/x.pth
    src/pkg.dist-info/METADATA x.egg-info/PKG-INFO .gitattributes src/.gitattributes .gitmodules noxfile.py
    ci/gate.yaml ci/src_score.sh .ci/run CODEOWNERS .github/CODEOWNERS docs/CODEOWNERS
    src/__pycache__/a.cpython-311.pyc tests/sealed/__pycache__/x.py src/a.pyc json.py hypothesis/__init__.py
    pytest.py yaml.py random.cpython-311-x86_64-linux-gnu.so JSON.py ci_out/decision.json conftest.py.
    .github/dependabot.yml pyvenv.cfg ſitecustomize.py
oracle: tests/sealed/test_a.py tests/sealed/conftest.py tests/sealed/new.py fixtures/sealed/b.bin ci/seal.lock
    ci/flake_leases.json tests/sealed/MANIFEST.txt ci/Flake_Leases.JSON review.lock.json
    prompts/review.lock.json tests/sealed tests fixtures
environment: requirements.txt requirements-dev.txt requirements/dev.txt requirements.in src/requirements.txt
    constraints.txt uv.lock poetry.lock pdm.lock Pipfile Pipfile.lock pylock.toml pylock.dev.toml setup.py
    Dockerfile docker/Dockerfile.test ci/images.lock.yaml containers/gate/run.sh .python-version
    environment.yml Cargo.lock meson.build
product: src/a.py src/data/table.csv src/a/b/c src/json.py src/requirements.py src/setup.py src/test_x.py
proposed: tests/proposed/test_x.py tests/proposed/data/x.json
docs: README.md docs/a.md docs/conf.py LICENSE LICENSE.txt CHANGELOG.rst NOTICE
other: .gitignore Makefile lib/a.py a/README.md tests/test_old.py src setup scripts/x.sh hypothesis/data.txt
    json/data.txt .github/ISSUE_TEMPLATE/bug.md
"""

ROWS = [(path, name) for name, paths in re.findall(r"^(\w+): (.*(?:\n    .*)*)", TABLE, re.MULTILINE) for path in paths.split()]


@pytest.mark.parametrize(("path", "expected"), ROWS)
def test_table(path: str, expected: Class) -> None:
    assert classify(path.encode(), rules()) == expected


def test_every_class_that_the_gate_decides_by_has_rows() -> None:
    assert {name for _, name in ROWS} | {"cassette"} == set(ORDER)


def test_the_strictest_class_counts() -> None:
    both = Policy(
        version=1,
        paths=Paths(product=("**",), proposed=("**",), docs=("**",), cassette=("src/*.json",), harness=("src/gate.py",)),
    )
    assert classify(b"src/a.py", rules(both)) == "product"
    assert classify(b"src/a.json", rules(both)) == "cassette"
    assert classify(b"src/gate.py", rules(both)) == "harness"
    assert classify(b"Dockerfile", rules(both)) == "environment"
    assert classify(b"tests/sealed/test_a.py", rules(both)) == "oracle"


def test_policy_cannot_call_a_conftest_product() -> None:
    mild = Policy(version=1, paths=Paths(product=("**",)))
    assert classify(b"src/conftest.py", rules(mild)) == "harness"


def test_a_conftest_is_oracle_only_where_it_is_sealed() -> None:
    in_place = Policy(version=1, layout="in-place", paths=Paths(sealed=("tests/**",)))
    sealed = rules(in_place, [b"tests/conftest.py", b"tests/test_a.py"])
    assert classify(b"tests/conftest.py", sealed) == "oracle"
    assert classify(b"tests/new/conftest.py", sealed) == "harness"
    assert classify(b"tests/test_new.py", sealed) == "oracle"


@pytest.mark.parametrize(
    "path", [b"conf\xe2\x80\x8btest.py", "cönftest.py".encode(), "conftest．py".encode(), b"\xff\xfeconftest.py"]
)
def test_names_that_are_no_text_or_only_look_alike_have_some_class(path: bytes) -> None:
    assert classify(path, rules()) in ("harness", "other")


def test_look_alikes_of_conftest_are_harness() -> None:
    for name in ("ＣONFTEST.py", "conf\u200btest.py", "CONFTEST.PY", "conftest.py ", "src/ConfTest.Py"):
        assert classify(name.encode(), rules()) == "harness", name


# -- modules at the top of sys.path ---------------------------------------------------------------------------------------
def test_a_module_that_base_has_is_no_new_shadow() -> None:
    assert classify(b"queue/__init__.py", rules()) == "harness"
    assert classify(b"queue/__init__.py", rules(base=[b"queue/__init__.py"])) == "other"
    assert classify(b"queue.py", rules(base=[b"queue.py"])) == "other"
    assert classify(b"queue.py", rules(base=[b"src/queue.py"])) == "harness"


def test_pythonpath_is_where_modules_shadow() -> None:
    policy = Policy(version=1, pythonpath=("src", "./Lib/"))
    assert classify(b"src/json.py", rules(policy)) == "harness"
    assert classify(b"src/json/__init__.py", rules(policy)) == "harness"
    assert classify(b"src/app/json.py", rules(policy)) == "product"
    assert classify(b"Lib/json.py", rules(policy)) == "harness"
    assert classify(b"json.py", rules(policy)) == "harness", "the tests' own top folder is on sys.path as well"
    assert explain(b"src/json.py", rules(policy))[1] == "it would be imported in place of json"


def test_folders_that_pytest_puts_on_the_path_are_roots_too() -> None:
    files = {b"src/app/__init__.py", b"src/app/tests/__init__.py", b"src/app/tests/test_a.py", b"src/loose/test_b.py"}
    found = roots_of_tests([b"src/app/tests/test_a.py", b"src/loose/test_b.py", b"test_c.py"], files)
    assert found == {"src/", "src/loose/", ""}
    with_them = Rules.of(STRICT, [], new_shadows(STRICT, files, (), found), found)
    for path, class_ in ((b"src/json.py", "harness"), (b"src/loose/random.py", "harness"), (b"src/app/json.py", "product")):
        assert classify(path, with_them) == class_, path


# -- content -------------------------------------------------------------------------------------------------------------
def changed(
    path: bytes, old: bytes | None, new: bytes | None, modes: tuple[int, int] = (0o100644, 0o100644)
) -> tuple[Class, str]:
    store = {"0": old or b"", "1": new or b""}
    before = None if old is None else Entry(modes[0], "0", path)
    after = None if new is None else Entry(modes[1], "1", path)
    return classify_change(Change("M", before, after), rules(), store.__getitem__)


@pytest.mark.parametrize(
    ("path", "old", "new", "expected"),
    [
        (b"pyproject.toml", b"[project]\nname='a'\n", b"[project]\nname='b'\n", "other"),
        (b"pyproject.toml", b"", b"[project]\ndependencies=['x']\n", "environment"),
        (b"pyproject.toml", b"", b"[tool.pytest.ini_options]\naddopts='-x'\n", "harness"),
        (b"pyproject.toml", None, b"[tool.ruff]\nx=1\n", "other"),
        (b"pyproject.toml", b"[build-system]\n", None, "environment"),
        (b"PyProject.TOML", b"", b"[tool.pytest]\n", "harness"),
        ("pyproject.tom\u2113".encode(), b"", b"[tool.pytest]\n", "harness"),
        (b"setup.cfg", b"", b"[tool:pytest]\n", "harness"),
        (b"src/pkg/pyproject.toml", b"", b"[tool.ruff]\nx=1\n", "product"),
        (b"src/pkg/pyproject.toml", b"", b"[tool.pytest]\n", "harness"),
        (b"src/a.py", b"", b"[tool.pytest]\n", "product"),
    ],
)
def test_tables(path: bytes, old: bytes | None, new: bytes | None, expected: Class) -> None:
    assert changed(path, old, new)[0] == expected


def test_a_link_in_place_of_pyproject_is_harness() -> None:
    assert changed(b"pyproject.toml", b"", b"other.toml", (0o100644, 0o120000)) == ("harness", "it is no plain file")


# -- the fast way and the plain way agree --------------------------------------------------------------------------------
names = st.sampled_from(
    ["a", "src", "tests", "sealed", "x.py", "README.md", "a.b.c", "conftest.py", "é", "ci", "gate.yaml", ".github"]
)
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
parts = st.sampled_from(["**", "*", "a", "src", "*.py", "*.*", "x.?y", "*.b.c", "re*", "a*", "é"])
globs = st.lists(parts, min_size=1, max_size=4).map("/".join).filter(lambda glob: not wrong(glob))
claims = st.dictionaries(st.sampled_from(ORDER[:-1]), st.lists(globs, max_size=3), max_size=3)


@given(claims, paths)
def test_sorting_globs_by_folder_changes_nothing(several: dict[Class, list[str]], path: str) -> None:
    folder, _, name = path.rpartition("/")
    fixed, by_name = Globs(several).of_folder(folder)
    found = [name for name in (fixed, by_name.of(name) if by_name else None) if name is not None]
    expected = [name for name in ORDER if compiled(several.get(name, [])).fullmatch(path)]
    assert min(found, key=RANK.__getitem__, default=None) == (expected[0] if expected else None)


@given(paths)
def test_the_built_in_globs_claim_what_they_say(path: str) -> None:
    bare = Policy(version=1, paths=Paths(product=("none",), sealed=("none",), proposed=(), docs=()))
    expected = [name for name, several in BUILT_IN if compiled(several.split()).fullmatch(folded(path))]
    found = classify(path.encode(), Rules.of(bare, []))
    assert found == (expected[0] if expected else "harness" if path.startswith("ci/") else "other")


@given(st.binary())
def test_any_bytes_have_a_class(path: bytes) -> None:
    assert classify(path, rules()) in ORDER


@given(st.text(min_size=1))
def test_folding_is_idempotent_and_forgets_case(name: str) -> None:
    assert folded(folded(name)) == folded(name)
    if name.isascii():
        assert folded(name.upper()) == folded(name)


def test_built_in_globs_are_well_formed_and_folded() -> None:
    for _, several in BUILT_IN:
        for glob in several.split():
            assert not wrong(glob) and glob == glob.lower(), glob
    assert re.search("conftest", HARNESS)


def test_classifying_does_not_grow_with_the_policy(tmp_path: Path) -> None:
    """Folders decide once: a path is looked up, not searched for, so the number of calls per path stays small."""
    counted = Rules.of(msgspec.structs.replace(STRICT, paths=Paths(product=tuple(f"part{n}/**" for n in range(200)))), [])
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    classify(b"part7/pkg/first.py", counted)
    sys.setprofile(count)
    try:
        for number in range(100):
            classify(b"part7/pkg/module_%d.py" % number, counted)
    finally:
        sys.setprofile(None)
    assert calls / 100 < 25


def test_real_paths_come_through(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=Path(__file__).parents[2], capture_output=True, check=True).stdout
    found = {classify(path, rules()) for path in listed.split(b"\0") if path}
    assert {"docs", "other", "harness"} <= found
    assert all(text(path) for path in listed.split(b"\0") if path)
