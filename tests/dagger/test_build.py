"""What needs no engine: which engine is chosen, what stands in a Dockerfile, and who gets a word on the line."""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Any

import anyio
import pytest

from probatum.core.policy import Environment, Policy
from probatum.core.stage import Blob, Mount, Place, Runtime, Stage, Tree
from probatum.engines import dagger_session
from probatum.engines.bubblewrap import Bubblewrap
from probatum.engines.dagger import Dagger, pinned
from probatum.engines.dagger_build import LARGEST, Build, Image, carried, dockerfile
from probatum.engines.dagger_line import Lines
from probatum.engines.sandbox import Command
from probatum.errors import EngineUnavailable, UsageError
from probatum.host.drive import choose_engine

REF = "registry.example/runner@sha256:" + "a" * 64
IMAGE = Image.of(REF, {"/usr": False, "/bin": True, "/etc/ld.so.cache": False})


def command(**fields: Any) -> Command:
    stage = Stage(**{"name": "a", "trust": "candidate", "runtime": Runtime("gate", ""), "mounts": (), "argv": ("x",), **fields})
    return Command.of(stage, Place(python="/python/bin/python3"), "nonce", lambda tree: Path("/trees") / tree.digest[7:])


@pytest.mark.parametrize(
    ("asked", "demanded", "session", "kind"),
    [
        ("", "any", False, Bubblewrap),
        ("", "any", True, Dagger),
        ("", "bubblewrap", True, Bubblewrap),
        ("", "dagger", False, Dagger),
        ("dagger", "any", False, Dagger),
        ("dagger", "dagger", False, Dagger),
        ("bubblewrap", "any", True, Bubblewrap),
        ("bubblewrap", "dagger", False, UsageError),
        ("dagger", "bubblewrap", True, UsageError),
        ("docker", "any", False, UsageError),
    ],
)
def test_which_engine(asked: str, demanded: str, session: bool, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (dagger_session.PORT, dagger_session.TOKEN):
        monkeypatch.setenv(name, "1") if session else monkeypatch.delenv(name, raising=False)
    policy = Policy(version=1, engine=demanded, environment=Environment(image=REF))
    parts: Any = (lambda _: Path(), lambda _: Place(python=""), Path())
    if kind is UsageError:
        with pytest.raises(UsageError):
            choose_engine(asked, policy, *parts)
    else:
        engine = choose_engine(asked, policy, *parts)
        assert type(engine) is kind
        assert getattr(engine, "image", REF) == REF


@pytest.mark.parametrize("ref", ["", "name", "name:tag", REF[:-1], REF + "0", REF.upper(), f"{REF}\nRUN x", f"a b@{REF}"])
def test_an_image_is_named_by_digest(ref: str) -> None:
    with pytest.raises(UsageError):
        pinned(ref)
    assert pinned(REF) == REF


def test_no_word_of_a_candidate_is_in_the_dockerfile() -> None:
    """Its command, folder, variables, stdin and file names are not; its trees are named by us."""
    word = "CANARY\nRUN true"
    tree = Tree({b"CANARY/.dockerignore": Blob(0o100644, data=b"**\n")})
    fields = {"argv": ("x", word), "cwd": word, "env": ((word, word),), "stdin": word.encode(), "outputs": ("CANARY",)}
    build = Build.of(command(mounts=(Mount("/w/0123", tree),), **fields), IMAGE)
    text = dockerfile(IMAGE, [build])
    assert "CANARY" not in text and b"CANARY" in build.config
    assert [line.split()[0] for line in text.splitlines()] == [
        "FROM",
        "FROM",
        "COPY",
        "COPY",
        "FROM",
        "COPY",
        "FROM",
        "ARG",
        "RUN",
    ]
    assert all(re.fullmatch(r"d[0-9a-f]{20}", source.name) for source in build.sources)
    assert text.count("--network=none") == text.count("RUN --") == 1


@pytest.mark.parametrize("path", ["/a b", "/a,rw", '/a"', "/$A", "/a\\b", "/a\nRUN true"])
def test_a_path_that_means_something_else_is_refused(path: str) -> None:
    with pytest.raises(EngineUnavailable, match="Dockerfile"):
        Build.of(command(scratch=(path,)), IMAGE)


def test_only_small_records_of_ours_are_carried() -> None:
    small, large = Tree({b"plan.json": Blob(0o100644, data=b"{}")}), Tree({b"a": Blob(0o100644, data=bytes(LARGEST + 1))})
    for trust, tree, expected in (
        ("trusted", small, 1),
        ("candidate", small, 0),
        ("base", small, 0),
        ("trusted", large, 0),
        ("trusted", Tree({b"../a": Blob(0o100644, data=b"")}), 0),
        ("trusted", Tree({b"a": Blob(0o120000, data=b"/etc")}), 0),
        ("trusted", Tree({b"a": Blob(0o100644, oid="1")}), 0),
    ):
        found = carried(command(trust=trust, mounts=(Mount("/evidence", tree),)).stage)
        assert len(found) == expected, (trust, tree.files)


def test_the_line_answers_only_runs_that_are_wanted_and_each_once(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "line")

    def ask(run: str) -> bytes:
        with socket.socket(socket.AF_UNIX) as line:
            line.connect(str(tmp_path / "line"))
            line.sendall(run.encode())
            return line.recv(100)

    wanted, other = "a" * 32, "b" * 32
    lines.want(wanted, b"config")
    assert [ask(other), ask(wanted), ask(wanted)] == [b"", b"config", b""]
    lines.want(other, b"config")
    assert anyio.run(lines.end, other)
    assert ask(other) == b""
    lines.close()


def test_the_end_of_a_run_is_waited_for(tmp_path: Path) -> None:
    """The line closes towards the launcher at once, and ``end`` returns when the launcher has closed its side."""
    lines, run = Lines(tmp_path / "line"), "a" * 32
    lines.want(run, b"x")
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(tmp_path / "line"))
        line.sendall(run.encode())
        assert line.recv(1) == b"x"
        assert not anyio.run(lines.end, run, 0.2)
        assert line.recv(1) == b""
    assert anyio.run(lines.end, run, 20)
    lines.close()
