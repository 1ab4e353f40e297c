"""Trees are laid out as raw bytes, once, and nowhere but in their folder."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probatum.core.stage import Blob, Tree
from probatum.errors import EngineUnavailable, UsageError
from probatum.host import tree as tree_module
from probatum.host.tree import WHEN, Trees, check


def blob(data: bytes = b"x", mode: int = 0o100644) -> Blob:
    return Blob(mode, data=data)


def no_read(oid: str) -> bytes:
    raise AssertionError(oid)


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    return Trees(no_read, tmp_path / "work")


def test_files_links_and_submodules(trees: Trees) -> None:
    previous = os.umask(0o077)
    try:
        files = {
            b"a.py": blob(b"\r\nraw \xff\x00"),
            b"bin/run": blob(b"#!", 0o100755),
            b"deep/er/empty": blob(b""),
            b"link": blob(b"../outside", 0o120000),
            b"vendored": Blob(0o160000, oid="1" * 40),
            b"caf\xe9\n": blob(),
        }
        folder = trees(Tree(files))
    finally:
        os.umask(previous)
    assert (folder / "a.py").read_bytes() == b"\r\nraw \xff\x00"
    assert os.readlink(folder / "link") == "../outside"
    assert list((folder / "vendored").iterdir()) == []
    assert os.fsencode(folder) + b"/caf\xe9\n" in [
        os.path.join(os.fsencode(folder), name) for name in os.listdir(os.fsencode(folder))
    ]
    modes = {
        name: stat.S_IMODE((folder / name).stat().st_mode) for name in ("a.py", "bin", "bin/run", "deep/er", "vendored", ".")
    }
    assert modes == {"a.py": 0o644, "bin": 0o755, "bin/run": 0o755, "deep/er": 0o755, "vendored": 0o755, ".": 0o755}
    assert {path.lstat().st_mtime for path in [folder, *folder.rglob("*")]} == {WHEN}


def test_once_per_digest(tmp_path: Path) -> None:
    asked: list[str] = []

    def read(oid: str) -> bytes:
        asked.append(oid)
        return oid.encode()

    trees = Trees(read, tmp_path / "work")
    first = trees(Tree({b"a": Blob(0o100644, oid="1" * 40)}))
    assert trees(Tree({b"a": Blob(0o100644, oid="1" * 40)})) == first and asked == ["1" * 40]
    assert trees(Tree({b"a": Blob(0o100755, oid="1" * 40)})) != first
    assert first.is_dir()
    trees.close()
    assert list((tmp_path / "work").iterdir()) == []


def test_many_is_asked_in_order(tmp_path: Path) -> None:
    trees = Trees(no_read, tmp_path / "work", lambda oids: (oid.encode() for oid in oids))
    files = {b"%d" % number: Blob(0o100644, oid=f"{number:040x}") for number in range(30)} | {b"mine": blob(b"data")}
    folder = trees(Tree(files))
    assert all((folder / str(number)).read_text() == f"{number:040x}" for number in range(30))
    assert (folder / "mine").read_bytes() == b"data"


HOSTILE = [
    b"../up",
    b"a/../../up",
    b"/etc/passwd",
    b"a//b",
    b"a/./b",
    b".",
    b"",
    b"a/",
    b"nul\0byte",
    b".git/hooks/post-checkout",
    b"a/.git",
    b".GIT/config",
    b".Git",
    b"GIT~1/config",
    b".g\xe2\x80\x8cit/config",
    b".git./config",
    b".git /config",
    b".git:$DATA",
    "．git/config".encode(),
    b"n" * 256,
    b"/".join([b"d" * 200] * 20),
]


@pytest.mark.parametrize("path", HOSTILE, ids=lambda path: repr(path[:20]))
def test_a_path_that_cannot_be_laid_out(path: bytes, trees: Trees, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        trees(Tree({b"fine": blob(), path: blob()}))
    assert "\n" not in caught.value.line() and len(caught.value.line()) < 400
    assert not (tmp_path / "work").exists() and not (tmp_path / "up").exists()


@pytest.mark.parametrize(
    "path", [b".gitignore", b".github/x", b"a.git", b"git", b".gitlab-ci.yml", b"src/...", b"n" * 255, b" ", b".git_"]
)
def test_a_path_that_only_looks_odd(path: bytes, trees: Trees) -> None:
    assert os.path.lexists(os.fsencode(trees(Tree({path: blob()}))) + b"/" + path)


def test_no_link_is_followed(trees: Trees, tmp_path: Path) -> None:
    """Trees laid over each other could put a file below a link; that must not write outside."""
    (tmp_path / "outside").mkdir()
    files = {b"a": blob(os.fsencode(tmp_path / "outside"), 0o120000), b"a/b": blob(b"out")}
    with pytest.raises(UsageError, match="file and a folder at once"):
        trees(Tree(files))
    assert list((tmp_path / "outside").iterdir()) == []


def test_a_full_disk_is_the_engines_failure_and_leaves_nothing(
    trees: Trees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def full(handle: int, data: bytes) -> int:
        if bytes(data) == b"second":
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(handle, data)

    monkeypatch.setattr(tree_module.os, "write", full)
    with pytest.raises(EngineUnavailable, match="No space left"):
        trees(Tree({b"a": blob(b"first"), b"b": blob(b"second")}))
    assert list((tmp_path / "work").iterdir()) == []


def test_an_interrupted_layout_is_not_taken_for_a_whole_one(tmp_path: Path) -> None:
    calls = iter([KeyboardInterrupt(), b"now"])

    def read(oid: str) -> bytes:
        answer = next(calls)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    trees = Trees(read, tmp_path / "work")
    tree = Tree({b"a": blob(), b"b": Blob(0o100644, oid="1" * 40)})
    with pytest.raises(KeyboardInterrupt):
        trees(tree)
    assert sorted(path.name for path in trees(tree).iterdir()) == ["a", "b"]


parts = st.binary(min_size=1, max_size=6).filter(lambda part: b"/" not in part and b"\0" not in part)


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.lists(parts, min_size=1, max_size=4).map(b"/".join), st.binary(max_size=20), max_size=8))
def test_what_is_laid_out_is_what_was_asked(files: dict[bytes, bytes]) -> None:
    tree = Tree({path: blob(data) for path, data in files.items()})
    try:
        check(tree)
    except UsageError:
        return
    found = {}
    with tempfile.TemporaryDirectory() as top:
        folder = os.fsencode(Trees(no_read, Path(top))(tree))
        for where, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(where, name)
                with open(path, "rb") as file:
                    found[os.path.relpath(path, folder)] = file.read()
    assert found == files
