"""What goes into an environment, read from base's files alone: no network, nothing run."""

from __future__ import annotations

import re

import pytest

from probatum.core.policy import Environment
from probatum.core.stage import Blob, Tree
from probatum.errors import PolicyError
from probatum.host.env_sources import Files, pins, wanted


def base(texts: dict[str, str]) -> Files:
    return Files(Tree({path.encode(): Blob(0o100644, data=text.encode()) for path, text in texts.items()}), lambda oid: b"")


def lines(texts: dict[str, str], policy: Environment | None = None) -> set[str]:
    want = wanted(policy or Environment(), base(texts))
    return {line for line in want.files[want.main].decode().splitlines() if line}


def test_without_packages_our_pinned_pytest_is_taken_with_hashes():
    want = wanted(Environment(), base({"src/a.py": ""}))
    text = want.files[want.main].decode()
    assert want.pinned and want.hashed
    assert all("--hash=sha256:" in line for line in text.splitlines())
    assert "pytest==" in text and "hypothesis==" not in text


def test_pins_follow_what_the_tests_import_and_not_what_the_product_does():
    with_tests = wanted(Environment(), base({"tests/sealed/test_a.py": "import os\nfrom hypothesis import given\n"}))
    product = wanted(Environment(), base({"src/a.py": "import hypothesis\nimport yaml\n"}))
    assert b"hypothesis==" in with_tests.files[with_tests.main] and b"pyyaml==" not in with_tests.files[with_tests.main]
    assert product.files == pins().files


@pytest.mark.parametrize(
    ("there", "source"),
    [
        (("uv.lock", "requirements.lock", "requirements.txt"), "uv.lock"),
        (("requirements.lock", "requirements.txt"), "requirements.lock"),
        (("pylock.toml", "requirements.txt"), "pylock.toml"),
        (("requirements.txt",), "requirements.txt"),
        (("requirements.txt", "requirements-dev.txt"), "requirements.txt + requirements-dev.txt"),
        (("requirements/tests.txt",), "requirements/tests.txt"),
    ],
)
def test_a_lock_goes_before_requirements(there, source):
    texts = dict.fromkeys(there, "attrs==25.1.0\n") | {"pyproject.toml": "[tool.x]\n"}
    assert wanted(Environment(), base(texts)).source == source


def test_included_files_are_put_in_place_and_every_one_counts_as_an_input():
    texts = {
        "requirements.txt": "-r more/base.in\nattrs==25.1.0 \\\n  --hash=sha256:00 # why\n",
        "more/base.in": "-r ../requirements.txt\nidna\n",
    }
    want = wanted(Environment(), base(texts))
    assert {" ".join(line.split()) for line in lines(texts)} == {"idna", "attrs==25.1.0 --hash=sha256:00"}
    assert want.hashed and {"requirements.txt", "more/base.in"} <= set(want.inputs)


def test_the_project_itself_is_never_installed_but_its_extras_are_asked_for():
    texts = {
        "requirements-dev.txt": "-e .[fast]\n./vendored\n-e git+https://example.invalid/x.git\nidna\n",
        "pyproject.toml": '[project]\nname = "me"\ndependencies = ["attrs"]\n'
        '[project.optional-dependencies]\nfast = ["me[more]"]\nmore = ["click"]\nother = ["rich"]\n',
    }
    assert lines(texts) == {"idna", "attrs", "click"}
    notes = wanted(Environment(), base(texts)).notes
    assert any("./vendored" in note for note in notes) and any("git+https" in note for note in notes)


def test_groups_include_groups_and_policy_chooses_among_extras():
    toml = (
        '[project]\nname = "me"\ndependencies = ["attrs"]\n[project.optional-dependencies]\ntest = ["idna"]\nssh = ["rich"]\n'
        '[dependency-groups]\ndev = [{include-group = "lint"}]\nlint = ["ruff"]\nother = ["mypy"]\n'
    )
    assert lines({"pyproject.toml": toml}) == {"attrs", "idna", "ruff"}
    assert lines({"pyproject.toml": toml}, Environment(extras=("ssh",), groups=("other",))) == {"attrs", "rich", "mypy"}


def test_older_tables_are_read_and_setup_py_is_not_run():
    setup = (
        'import os\nos._exit(3)\nfrom setuptools import setup\nNAME = "me"\nsetup(name=NAME, install_requires=["attrs>=20"])\n'
    )
    assert lines({"setup.py": setup}) == {"attrs>=20"}
    config = (
        "[metadata]\nname = me\n[options]\ninstall_requires =\n    click\n"
        "[options.extras_require]\ntest =\n    idna\ndocs = sphinx\n"
    )
    assert lines({"setup.cfg": config}) == {"click", "idna"}


@pytest.mark.parametrize(
    ("bound", "spelt"),
    [("^1.2.3", ">=1.2.3,<2"), ("^0.2.3", ">=0.2.3,<0.3"), ("^0.0.3", ">=0.0.3,<0.0.4"), ("~1.2.3", ">=1.2.3,<1.3"),
     ("~1", ">=1,<2"), ("1.4", "==1.4"), (">=1,<3", ">=1,<3"), ("*", "")],
)  # fmt: skip
def test_poetry_bounds_are_spelt_out(bound, spelt):
    toml = f'[tool.poetry]\nname = "me"\n[tool.poetry.dependencies]\npython = "^3.11"\nattrs = "{bound}"\n'
    assert lines({"pyproject.toml": toml}) == {f"attrs{spelt}"}


def test_poetry_lock_keeps_versions_and_hashes_and_leaves_other_groups_out():
    lock = (
        '[[package]]\nname = "attrs"\nversion = "25.1.0"\noptional = false\ngroups = ["main"]\n'
        'files = [{file = "a", hash = "sha256:aa"}]\n'
        '[[package]]\nname = "sphinx"\nversion = "8"\noptional = false\ngroups = ["docs"]\nfiles = []\n'
    )
    assert lines({"poetry.lock": lock}) == {"attrs==25.1.0 --hash=sha256:aa"}


@pytest.mark.parametrize(
    ("policy", "texts", "says"),
    [
        (Environment(lock="none.txt"), {}, "none.txt: is not a file of base"),
        (Environment(lock="a.txt", packages=("x",)), {"a.txt": ""}, "exclude each other"),
        (Environment(image="x@sha256:00"), {}, "engine that runs images"),
        (Environment(lock="uv.lock"), {"uv.lock": ""}, "no pyproject.toml beside it"),
        (Environment(), {"pyproject.toml": "[project"}, "pyproject.toml: is no TOML"),
        (Environment(), {"requirements.txt": "-r gone.txt\n"}, "gone.txt: is not a file of base"),
    ],
)
def test_what_base_names_and_has_not_is_one_line_and_exit_2(policy, texts, says):
    with pytest.raises(PolicyError, match=re.escape(says)) as caught:
        wanted(policy, base(texts))
    assert caught.value.exit == 2 and "\n" not in caught.value.line()


def test_a_link_is_no_lock():
    tree = Tree({b"requirements.txt": Blob(0o120000, data=b"/etc/passwd")})
    assert wanted(Environment(), Files(tree, lambda oid: b"")).pinned
