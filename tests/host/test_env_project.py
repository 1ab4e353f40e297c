"""The gated project's metadata, read from base; a build would have run base's code."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import pytest

from probatum.core.stage import Blob, Tree
from probatum.host.env_project import UNKNOWN, metadata, read, version_files
from probatum.host.env_sources import Files


def project(**texts: str):
    return read(
        Files(Tree({path.encode(): Blob(0o100644, data=text.encode()) for path, text in texts.items()}), lambda oid: b"")
    )


def laid(tree: Tree, folder: Path) -> importlib.metadata.Distribution:
    for path, blob in tree.files.items():
        target = folder / path.decode()
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(blob.data or b"")
    (found,) = importlib.metadata.distributions(path=[str(folder)])
    return found


def test_an_installer_would_have_left_the_same_metadata(tmp_path):
    toml = """
[project]
name = "My.Parcel"
version = "1.4"
description = "Costs.\\nTwo lines"
requires-python = ">=3.10"
dependencies = ["attrs>=20"]
authors = [{name = "A", email = "a@example.org"}]
[project.optional-dependencies]
fast = ["click ; python_version < '4'"]
[project.scripts]
parcel = "parcel.cli:main"
[project.entry-points."parcel.rates"]
eu = "parcel.rates:eu"
"""
    found = laid(metadata(project(**{"pyproject.toml": toml})), tmp_path)
    assert (found.metadata["Name"], found.version) == ("My.Parcel", "1.4")
    assert found.metadata["Summary"] == "Costs. Two lines" and found.metadata["Author-email"] == "A <a@example.org>"
    assert found.requires == ["attrs>=20", "click ; (python_version < '4') and extra == 'fast'"]
    points = {(point.group, point.name, point.value) for point in found.entry_points}
    assert points == {("console_scripts", "parcel", "parcel.cli:main"), ("parcel.rates", "eu", "parcel.rates:eu")}
    assert {str(file) for file in found.files or []} == {
        str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()
    }


HATCH = '[build-system]\nbuild-backend = "hatchling.build"\n[project]\nname = "p"\ndynamic = ["version"]\n'
FLIT = '[build-system]\nbuild-backend = "flit_core.buildapi"\n[project]\nname = "p-q"\ndynamic = ["version"]\n'
SETUPTOOLS = '[project]\nname = "p"\ndynamic = ["version"]\n[tool.setuptools.dynamic]\n'


@pytest.mark.parametrize(
    ("texts", "version"),
    [
        (
            {
                "pyproject.toml": HATCH + '[tool.hatch.version]\npath = "src/p/about.py"\n',
                "src/p/about.py": '__version__ = "2.1"\n',
            },
            "2.1",
        ),
        (
            {"pyproject.toml": HATCH + '[tool.hatch.version]\npath = "v"\npattern = "V=(?P<version>.*)"\n', "v": "V=3.0\n"},
            "3.0",
        ),
        ({"pyproject.toml": HATCH + '[tool.hatch.version]\nsource = "vcs"\n'}, UNKNOWN),
        ({"pyproject.toml": FLIT, "src/p_q/__init__.py": '"""Doc."""\n__version__ = "0.9"\n'}, "0.9"),
        ({"pyproject.toml": SETUPTOOLS + 'version = {attr = "p.v.VERSION"}\n', "p/v.py": "VERSION = (1, 2, 3)\n"}, "1.2.3"),
        ({"pyproject.toml": SETUPTOOLS + 'version = {file = "VERSION"}\n', "VERSION": "4.5\n"}, "4.5"),
        (
            {"setup.cfg": "[metadata]\nname = p\nversion = attr: p.__version__\n", "p/__init__.py": '__version__ = "7.0"\n'},
            "7.0",
        ),
        ({"setup.py": 'import sys\nsys.exit("run!")\nfrom setuptools import setup\nsetup(name="p", version="8")\n'}, "8"),
        ({"pyproject.toml": '[tool.poetry]\nname = "p"\nversion = "6"\n'}, "6"),
        ({"pyproject.toml": '[project]\nname = "p"\nversion = "../../x"\n'}, UNKNOWN),
        ({"pyproject.toml": FLIT, "p_q.py": "import os; os._exit(1)\n__version__ = os.name\n"}, UNKNOWN),
    ],
)
def test_a_version_is_read_where_base_states_it(texts, version):
    assert project(**texts).version == version


def test_version_files_are_written_unless_git_has_them():
    toml = HATCH + '[tool.hatch.version]\nsource = "vcs"\n[tool.hatch.build.hooks.vcs]\nversion-file = "src/p/_version.py"\n'
    made = version_files(project(**{"pyproject.toml": toml}))
    names: dict[str, object] = {}
    exec(made.files[b"src/p/_version.py"].data or b"", names)
    assert names["__version__"] == UNKNOWN and names["version_tuple"] == (0, 0, 0, "base")
    assert not version_files(project(**{"pyproject.toml": toml, "src/p/_version.py": ""})).files


@pytest.mark.parametrize("path", ["/etc/x.py", "../x.py", "src/../../x.py"])
def test_no_version_file_leaves_the_tree(path):
    toml = f'[project]\nname = "p"\ndynamic = ["version"]\n[tool.setuptools_scm]\nversion_file = "{path}"\n'
    assert not version_files(project(**{"pyproject.toml": toml})).files


def test_the_projects_own_pytest_plugin_is_left_out_and_said_so():
    toml = (
        '[project]\nname = "p"\nversion = "1"\n[project.entry-points.pytest11]\np = "p.plugin"\n'
        '[project.scripts]\np = "p:main"\n'
    )
    found = project(**{"pyproject.toml": toml})
    assert "pytest11" not in found.points and "console_scripts" in found.points
    assert any("pytest11" in note for note in found.notes)


@pytest.mark.parametrize("name", ["", "../up", "a b", "-x", "x\n"])
def test_a_name_that_is_none_makes_no_metadata(name):
    assert project(**{"pyproject.toml": f"[project]\nname = {name!r}\n"}).name == ""
