"""What is observed of a patch: the policy at base, the oracle, classes, links, and what cannot be scored."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import toy
from probatum import checks
from probatum.core.check import Patch
from probatum.core.policy import BUILT_IN, STRICT
from probatum.core.records import PatchBody
from probatum.core.stage import Runtime, Tree
from probatum.core.yaml12 import load_policy
from probatum.errors import Exit, PolicyError
from probatum.host import git as git_module
from probatum.host.observe import Base, look, observe
from probatum.host.workspace import Workspace

POLICY = "version: 1\n"


def load(data: bytes) -> Any:
    return load_policy(data, {name: checks.load(name).Options for name in checks.names()})


def observed(repo: Path, tmp_path: Path, base: str = "main", head: str = "agent") -> tuple[Base, Patch, PatchBody]:
    with Workspace(repo, tmp_path / "cache") as workspace:
        seen = look(workspace, base, head, load)
        empty = Tree({})
        runtime = Runtime("environment", "x")
        patch, body = observe(
            workspace,
            seen,
            environment=runtime,
            probe=empty,
            generated=empty,
            installed=["hypothesis"],
            seed="s",
            now=1_700_000_000,
        )
    return seen, patch, body


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    toy.strict(folder)
    return folder


def rows(body: PatchBody) -> dict[str, tuple[str, str]]:
    return {row.path: (row.status, row.class_) for row in body.changes}


# -- policy -------------------------------------------------------------------------------------------------------------
def test_the_built_in_policy_where_base_has_a_manifest(repo: Path, tmp_path: Path) -> None:
    toy.patch(repo, {"src/thing.py": toy.MENDED})
    seen, patch, body = observed(repo, tmp_path)
    assert (seen.policy, seen.source, body.layout) == (STRICT, BUILT_IN, "strict")
    assert patch.modules == (b"tests/sealed/test_thing.py",) and body.oracle == ()
    assert set(patch.sealed.files) == {b"tests/sealed/test_thing.py", b"tests/sealed/MANIFEST.txt"}
    assert rows(body) == {"src/thing.py": ("M", "product")}
    assert patch.read(patch.merged.files[b"src/thing.py"].oid) == toy.MENDED.encode()


def test_policy_comes_from_base_and_never_from_head(repo: Path, tmp_path: Path) -> None:
    toy.patch(repo, {"ci/gate.yaml": "version: 1\npaths: {product: ['**']}\n", "tests/x.py": ""})
    seen, _, body = observed(repo, tmp_path)
    assert seen.policy == STRICT
    assert rows(body) == {"ci/gate.yaml": ("A", "harness"), "tests/x.py": ("A", "other")}


def test_no_policy_and_no_manifest_is_exit_2(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    repo.mkdir()
    toy.git(repo, "init", "-q", "-b", "main")
    toy.commit(repo, {"src/a.py": ""})
    toy.patch(repo, {"ci/gate.yaml": POLICY, "tests/sealed/MANIFEST.txt": ""})
    with pytest.raises(PolicyError, match="probatum init") as caught:
        observed(repo, tmp_path)
    assert caught.value.exit == Exit.USAGE


@pytest.mark.parametrize("text", ["version: 2\n", "version: 1\nversion: 1\n", "nonsense", ""])
def test_a_malformed_policy_is_exit_2_with_its_line(text: str, tmp_path: Path) -> None:
    toy.strict(tmp_path / "repo", {"ci/gate.yaml": text})
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    with pytest.raises(PolicyError, match=r"ci/gate\.yaml:\d+: ") as caught:
        observed(tmp_path / "repo", tmp_path)
    assert caught.value.exit == Exit.USAGE


def test_a_policy_that_is_a_link_is_refused(repo: Path, tmp_path: Path) -> None:
    (repo / "ci/gate.yaml").symlink_to("../src/thing.py")
    toy.commit(repo, {})
    toy.patch(repo, {"src/thing.py": toy.MENDED})
    with pytest.raises(PolicyError, match="no plain file"):
        observed(repo, tmp_path)


# -- the manifest -------------------------------------------------------------------------------------------------------
ONE = "tests/sealed/test_thing.py\n"


@pytest.mark.parametrize(
    ("manifest", "files", "said"),
    [
        ("", {}, "does not list"),
        (ONE + "tests/sealed/test_gone.py\n", {}, "lists tests/sealed/test_gone.py, which is no test module at base"),
        (ONE + "tests/sealed/helper.py\n", {"tests/sealed/helper.py": ""}, "lists tests/sealed/helper.py"),
        (ONE, {"tests/sealed/deep/more_test.py": ""}, "tests/sealed/deep/more_test.py is a test module at base that"),
        (ONE + "tests/sealed/test_a.py\n", {"tests/sealed/test_a.py": ""}, "not byte-sorted"),
        (ONE + ONE, {}, "not byte-sorted"),
        (ONE.strip(), {}, "the last line does not end"),
        (ONE.replace("\n", "\r\n"), {}, "white space"),
        (ONE + "\n", {}, "an empty line"),
        ("# comment\n" + ONE, {}, "lists # comment"),
        ("./" + ONE, {}, "lists ./tests/sealed"),
    ],
)
def test_a_drifted_manifest_is_a_fact_not_an_error(manifest: str, files: dict[str, Any], said: str, tmp_path: Path) -> None:
    toy.strict(tmp_path / "repo", {"tests/sealed/MANIFEST.txt": manifest, **files})
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    _, _, body = observed(tmp_path / "repo", tmp_path)
    assert any(said in line for line in body.oracle), body.oracle


def test_a_sealed_module_that_is_a_link_is_said(repo: Path, tmp_path: Path) -> None:
    (repo / "tests/sealed/test_link.py").symlink_to("test_thing.py")
    toy.commit(repo, {"tests/sealed/MANIFEST.txt": "tests/sealed/test_link.py\n" + ONE})
    toy.patch(repo, {"src/thing.py": toy.MENDED})
    assert observed(repo, tmp_path)[2].oracle == ("tests/sealed/test_link.py is no plain file at base",)


def test_a_policy_without_a_manifest_is_said(tmp_path: Path) -> None:
    toy.strict(tmp_path / "repo", {"ci/gate.yaml": POLICY})
    (tmp_path / "repo/tests/sealed/MANIFEST.txt").unlink()
    toy.commit(tmp_path / "repo", {})
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    assert observed(tmp_path / "repo", tmp_path)[2].oracle == ("tests/sealed/MANIFEST.txt is not a file at base",)


# -- changes ------------------------------------------------------------------------------------------------------------
def test_a_rename_is_a_deletion_and_an_addition(repo: Path, tmp_path: Path) -> None:
    toy.patch(repo, {"tests/sealed/test_thing.py": None, "src/notes.py": toy.TESTS})
    assert rows(observed(repo, tmp_path)[2]) == {
        "src/notes.py": ("A", "product"),
        "tests/sealed/test_thing.py": ("D", "oracle"),
    }


def test_a_mode_alone_is_a_change(repo: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "-b", "agent")
    (repo / "tests/sealed/test_thing.py").chmod(0o755)
    toy.commit(repo, {})
    (row,) = observed(repo, tmp_path)[2].changes
    assert (row.class_, row.old_mode, row.new_mode, row.old_oid) == ("oracle", "100644", "100755", row.new_oid)


def test_a_sealed_folder_that_becomes_a_link(repo: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "-b", "agent")
    toy.git(repo, "rm", "-q", "-r", "tests/sealed")
    (repo / "tests").mkdir(exist_ok=True)
    (repo / "tests/sealed").symlink_to("../src")
    toy.commit(repo, {})
    body = observed(repo, tmp_path)[2]
    assert rows(body)["tests/sealed"] == ("A", "oracle") and "tests/sealed" in body.links


def test_content_decides_where_names_do_not(tmp_path: Path) -> None:
    toy.strict(tmp_path / "repo", {"pyproject.toml": "[project]\nname = 'a'\n"})
    toy.patch(tmp_path / "repo", {"pyproject.toml": "[project]\nname = 'a'\n[tool.pytest.ini_options]\naddopts = '-x'\n"})
    (row,) = observed(tmp_path / "repo", tmp_path)[2].changes
    assert (row.class_, row.why) == ("harness", "what differs in it: harness")


def test_names_are_bytes(repo: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "-b", "agent")
    for name in (b"src/caf\xe9.py", "tests/sealed/te\u0301st.py".encode(), b"src/a\nb.py", b'src/"q".py'):
        Path(os.fsdecode(os.fsencode(repo) + b"/" + name)).write_bytes(b"x")
    toy.commit(repo, {})
    assert rows(observed(repo, tmp_path)[2]) == {
        "src/caf%E9.py": ("A", "product"),
        "src/a%0Ab.py": ("A", "product"),
        'src/"q".py': ("A", "product"),
        "tests/sealed/te\u0301st.py": ("A", "oracle"),
    }


def test_a_path_of_4000_characters_is_noted(repo: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "-b", "agent")
    blob = toy.git(repo, "rev-parse", "main:src/thing.py")
    long = "src/" + "/".join(["d" * 99] * 40)
    toy.git(repo, "update-index", "--add", "--cacheinfo", f"100644,{blob},{long}")
    toy.git(repo, "commit", "-q", "-m", "long")
    body = observed(repo, tmp_path)[2]
    assert body.missing == {long: "a path of 4003 bytes; 3500 is the limit"} and long in rows(body)


def test_a_conflict_is_a_fact_and_shows_what_head_changed(repo: Path, tmp_path: Path) -> None:
    toy.patch(repo, {"src/thing.py": toy.MENDED, "src/new.py": ""})
    toy.git(repo, "checkout", "-q", "main")
    toy.commit(repo, {"src/thing.py": "def double(n):\n    return 7\n", "src/mains.py": ""})
    seen, patch, body = observed(repo, tmp_path)
    assert body.conflict == ("src/thing.py",) and seen.subject.merged_tree == ""
    assert rows(body) == {"src/new.py": ("A", "product"), "src/thing.py": ("M", "product")}
    assert patch.merged.files == patch.base.files, "nothing of a conflict is scored"


def test_only_the_sum_of_the_commits_counts(repo: Path, tmp_path: Path) -> None:
    toy.patch(repo, {"tests/sealed/test_thing.py": "weak = True\n"})
    toy.commit(repo, {"tests/sealed/test_thing.py": toy.TESTS, "src/thing.py": toy.MENDED})
    assert rows(observed(repo, tmp_path)[2]) == {"src/thing.py": ("M", "product")}


def test_an_empty_patch(repo: Path, tmp_path: Path) -> None:
    toy.patch(repo, {})
    _, patch, body = observed(repo, tmp_path)
    assert body.changes == () and patch.merged.files == patch.base.files


# -- what is not there --------------------------------------------------------------------------------------------------
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 12345\n"


def test_lfs_pointers_are_noted_where_lfs_is_used(tmp_path: Path) -> None:
    files = {
        ".gitattributes": "*.bin filter=lfs diff=lfs merge=lfs -text\n",
        "src/w.bin": POINTER,
        "fixtures/sealed/f.bin": POINTER,
    }
    toy.strict(tmp_path / "repo", {**files, "docs/d.bin": POINTER, "src/real.bin": "version of mine\n"})
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    missing = observed(tmp_path / "repo", tmp_path)[2].missing
    assert set(missing) == {"src/w.bin", "fixtures/sealed/f.bin"} and "LFS" in missing["src/w.bin"]


def test_a_file_that_looks_like_a_pointer_is_a_file_elsewhere(tmp_path: Path) -> None:
    toy.strict(tmp_path / "repo", {"src/w.bin": POINTER})
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    assert observed(tmp_path / "repo", tmp_path)[2].missing == {}


def test_submodules_are_noted(repo: Path, tmp_path: Path) -> None:
    toy.git(repo, "checkout", "-q", "-b", "agent")
    toy.git(repo, "update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},src/vendor")
    toy.git(repo, "commit", "-q", "-m", "submodule")
    body = observed(repo, tmp_path)[2]
    assert "submodule" in body.missing["src/vendor"] and "submodule" in body.links["src/vendor"]
    assert rows(body) == {"src/vendor": ("A", "product")}


# -- in place -----------------------------------------------------------------------------------------------------------
IN_PLACE = "version: 1\nlayout: in-place\npaths: {product: [src/**], sealed: [tests/**]}\n"


def test_in_place_without_a_seal_is_said(tmp_path: Path) -> None:
    toy.strict(tmp_path / "repo", {"ci/gate.yaml": IN_PLACE})
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    _, patch, body = observed(tmp_path / "repo", tmp_path)
    assert body.layout == "in-place" and "ci/seal.lock" in body.oracle[0] and patch.sealed.files == {}


@pytest.mark.parametrize("seal", ["{}", "nonsense", '{"version": 1, "sealed_at": "2026-01-01", "paths": {}}'])
def test_in_place_with_a_broken_seal_is_said(seal: str, tmp_path: Path) -> None:
    toy.strict(tmp_path / "repo", {"ci/gate.yaml": IN_PLACE, "ci/seal.lock": seal})
    toy.patch(tmp_path / "repo", {"src/thing.py": toy.MENDED})
    _, patch, body = observed(tmp_path / "repo", tmp_path)
    assert body.oracle and patch.modules == ()


@pytest.fixture
def sealed_repo(tmp_path: Path) -> Path:
    from probatum.core.seal import make_seal, render

    repo = tmp_path / "sealed"
    toy.strict(repo, {"ci/gate.yaml": IN_PLACE, "tests/test_more.py": "def test_more():\n    assert True is True\n"})
    with Workspace(repo, tmp_path / "cache") as workspace:
        (head,) = workspace.commits(["main"])
        tree = workspace.objects.tree(workspace.objects.commit(head).tree)
        seal, left = make_seal(tree, load(IN_PLACE.encode()), workspace.objects.read, "2023-11-01")
        assert left == []
    toy.commit(repo, {"ci/seal.lock": render(seal).decode()})
    return repo


def test_in_place_takes_the_oracle_from_the_seal_not_from_base(sealed_repo: Path, tmp_path: Path) -> None:
    pinned = toy.git(sealed_repo, "rev-parse", "main:tests/test_more.py")
    toy.commit(
        sealed_repo, {"tests/test_more.py": "def test_more():\n    pass\n", "tests/test_unsealed.py": "def test_x(): pass\n"}
    )
    toy.patch(sealed_repo, {"src/thing.py": toy.MENDED})
    _, patch, body = observed(sealed_repo, tmp_path)
    assert body.oracle == () and patch.sealed.files[b"tests/test_more.py"].oid == pinned
    assert b"tests/test_unsealed.py" not in patch.sealed.files
    assert patch.modules == (b"tests/sealed/test_thing.py", b"tests/test_more.py")


def test_in_place_new_tests_are_proposed_and_edits_are_oracle(sealed_repo: Path, tmp_path: Path) -> None:
    toy.patch(
        sealed_repo,
        {
            "src/thing.py": toy.MENDED,
            "tests/test_new.py": "def test_new():\n    pass\n",
            "tests/sealed/test_thing.py": toy.TESTS + "\n\ndef test_added():\n    assert double(0) == 0\n",
            "tests/test_more.py": "def test_more():\n    pass\n",
        },
    )
    body = observed(sealed_repo, tmp_path)[2]
    assert {path: class_ for path, (_, class_) in rows(body).items()} == {
        "src/thing.py": "product",
        "tests/sealed/test_thing.py": "proposed",
        "tests/test_more.py": "oracle",
        "tests/test_new.py": "proposed",
    }
    assert {(edit.path, edit.as_) for edit in body.edits} >= {
        ("tests/test_more.py", "oracle"),
        ("tests/test_new.py", "proposed"),
    }


def test_in_place_a_new_conftest_is_harness(sealed_repo: Path, tmp_path: Path) -> None:
    toy.patch(sealed_repo, {"src/thing.py": toy.MENDED, "tests/conftest.py": "", "tests/test_new.py": ""})
    found = {path: class_ for path, (_, class_) in rows(observed(sealed_repo, tmp_path)[2]).items()}
    assert found == {"src/thing.py": "product", "tests/conftest.py": "harness", "tests/test_new.py": "proposed"}


def test_in_place_a_pinned_blob_that_is_not_there_is_said(sealed_repo: Path, tmp_path: Path) -> None:
    text = (sealed_repo / "ci/seal.lock").read_text()
    pinned = toy.git(sealed_repo, "rev-parse", "main:tests/test_more.py")
    toy.commit(sealed_repo, {"ci/seal.lock": text.replace(pinned, "1" * 40)})
    toy.patch(sealed_repo, {"src/thing.py": toy.MENDED})
    body = observed(sealed_repo, tmp_path)[2]
    assert any("not in the repository" in line for line in body.oracle)


def test_a_module_beside_tests_within_production_is_harness(tmp_path: Path) -> None:
    """pytest would put src/app on sys.path for its tests once the package's __init__.py is gone."""
    from probatum.core.seal import make_seal, render

    repo, policy = (
        tmp_path / "beside",
        "version: 1\nlayout: in-place\npaths: {product: [src/**], sealed: [src/app/test_*.py]}\n",
    )
    files = {"src/app/__init__.py": "", "src/app/test_a.py": "def test_a():\n    assert 1 == 1\n", "ci/gate.yaml": policy}
    toy.strict(repo, files)
    with Workspace(repo, tmp_path / "cache") as workspace:
        (head,) = workspace.commits(["main"])
        tree = workspace.objects.tree(workspace.objects.commit(head).tree)
        seal, _ = make_seal(tree, load(policy.encode()), workspace.objects.read, "2023-11-01")
    toy.commit(repo, {"ci/seal.lock": render(seal).decode()})
    toy.patch(repo, {"src/app/random.py": ""})
    assert rows(observed(repo, tmp_path)[2]) == {"src/app/random.py": ("A", "product")}
    toy.commit(repo, {"src/app/__init__.py": None})
    assert rows(observed(repo, tmp_path)[2])["src/app/random.py"] == ("A", "harness")


# -- cost ---------------------------------------------------------------------------------------------------------------
def test_five_processes_are_enough(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy.patch(repo, {"src/thing.py": toy.MENDED, "pyproject.toml": "[tool.x]\n"})
    observed(repo, tmp_path)
    asked: list[str] = []
    start = git_module.Git.start

    def noted(self: git_module.Git, arguments: list[str], **rest: Any) -> Any:
        asked.append(next(iter(arguments)))
        return start(self, arguments, **rest)

    monkeypatch.setattr(git_module.Git, "start", noted)
    observed(repo, tmp_path)
    assert asked == ["version", "ls-remote", "cat-file", "ls-tree", "diff-tree"]
