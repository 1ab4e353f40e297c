"""Links, submodules and look-alike names, each as a patch would bring it."""

from __future__ import annotations

import pytest

from probatum.core.canonical import escape
from probatum.core.check import Change, Entry
from probatum.core.classes import Rules, classify
from probatum.core.links import collisions, wrong_links
from probatum.core.policy import STRICT
from probatum.core.records import Class
from probatum.core.stage import Blob, Tree

LINK, SUBMODULE = 0o120000, 0o160000
SEALED = [b"tests/sealed/test_a.py", b"tests/sealed/MANIFEST.txt", b"fixtures/sealed/a.json", b"ci/gate.yaml"]
RULES = Rules.of(STRICT, SEALED)


def class_of(path: bytes) -> Class:
    return classify(path, RULES)


def tree(links: dict[bytes, bytes], submodules: tuple[bytes, ...] = (), without: tuple[bytes, ...] = ()) -> Tree:
    files = {path: Blob(0o100644, data=b"x") for path in (*SEALED, b"src/a.py", b"src/pkg/b.py", b"docs/a.md", b"shared/x")}
    files |= {path: Blob(LINK, data=target) for path, target in links.items()}
    files |= {path: Blob(SUBMODULE, oid="1" * 40) for path in submodules}
    return Tree({path: blob for path, blob in files.items() if path not in without})


def between(before: Tree, after: Tree) -> list[Change]:
    changes = []
    for path in sorted(before.files.keys() | after.files.keys()):
        sides = [side.files.get(path) for side in (before, after)]
        if sides[0] != sides[1]:
            old, new = (None if blob is None else Entry(blob.mode, "", path) for blob in sides)
            changes.append(Change("M", old, new))
    return changes


def wrong(before: Tree, after: Tree) -> dict[str, str]:
    return wrong_links(before, after, between(before, after), SEALED, class_of, lambda oid: b"")


@pytest.mark.parametrize(
    ("links", "said"),
    [
        ({b"src/zones": b"../../../../etc"}, "out of the repository"),
        ({b"src/zones": b"/etc"}, "absolute: /etc"),
        ({b"src/x": b"../shared/x"}, "leaves the production paths, to shared/x"),
        ({b"src/x": b"../docs"}, "leaves the production paths, to docs"),
        ({b"src/x": b".."}, "to the top of the repository"),
        ({b"src/x": b"../tests/sealed/test_a.py"}, "leads to the sealed tests/sealed/test_a.py"),
        ({b"src/x": b"../tests/sealed"}, "leads to the sealed tests/sealed"),
        ({b"docs/x": b"../fixtures/sealed/a.json"}, "leads to the sealed"),
        ({b"docs/x": b"../tests"}, "leads to the sealed tests"),
        (
            {b"src/x": b"pkg/y", b"src/pkg/y": b"z", b"src/pkg/z": b"../../docs/a.md"},
            "leaves the production paths, to docs/a.md",
        ),
        ({b"src/x": b"y/a.md", b"src/y": b"../docs"}, "leaves the production paths, to docs/a.md"),
        ({b"src/x": b"y", b"src/y": b"x"}, "no end"),
        ({b"src/x": b"x/x"}, "no end"),
        ({b"src/x": b"./pkg/../../src/../shared/./x"}, "leaves the production paths, to shared/x"),
        ({b"src/x": b"nowhere/../../secret"}, "leaves the production paths, to secret"),
        ({b"tests/sealed/extra": b"test_a.py"}, "sealed"),
    ],
)
def test_a_new_link_that_may_not_be(links: dict[bytes, bytes], said: str) -> None:
    found = wrong(tree({}), tree(links))
    assert said in found[next(iter(links)).decode()]


@pytest.mark.parametrize("target", [b"a.py", b"pkg", b"pkg/b.py", b"../src/a.py", b"./pkg/../a.py", b"not-yet.py"])
def test_a_link_within_production_is_fine(target: bytes) -> None:
    assert wrong(tree({}), tree({b"src/x": target})) == {}


def test_links_elsewhere_are_no_concern() -> None:
    assert wrong(tree({}), tree({b"docs/x": b"a.md", b"shared/y": b"/etc"})) == {}


def test_a_link_in_place_of_a_sealed_path() -> None:
    sealed = tuple(path for path in SEALED if path.startswith(b"tests/"))
    assert "tests/sealed" in wrong(tree({}), tree({b"tests/sealed": b"../src"}, without=sealed))
    assert "tests" in wrong(tree({}), tree({b"tests": b"src"}, without=sealed))
    assert "ci/gate.yaml" in wrong(tree({}), tree({b"ci/gate.yaml": b"../src/a.py"}))
    assert "tests/sealed/test_a.py" in wrong(tree({b"tests/sealed/test_a.py": b"x"}), tree({}))


def test_submodules() -> None:
    assert "submodule" in wrong(tree({}), tree({}, (b"src/vendor",)))["src/vendor"]
    assert "submodule" in wrong(tree({}), tree({b"src/x": b"../lib/a"}, (b"lib",)))["src/x"]
    assert wrong(tree({}), tree({}, (b"lib",))) == {}
    assert wrong(tree({}, (b"src/vendor",)), tree({}, (b"src/vendor",))) == {}
    assert "sealed" in wrong(tree({}), tree({}, (b"tests/sealed/more",)))["tests/sealed/more"]


def test_what_base_has_too_is_bases_affair_unless_it_leads_elsewhere_now() -> None:
    before = tree({b"src/x": b"../docs/a.md"})
    assert wrong(before, tree({b"src/x": b"../docs/a.md"})) == {}
    assert "src/x" in wrong(before, tree({b"src/x": b"../docs/b.md"}))
    # The link stays, and what it leads through is turned: the chain as a whole is looked at.
    before = tree({b"src/x": b"y/a.py", b"src/y": b"pkg"})
    assert wrong(before, before) == {}
    assert "shared" in wrong(before, tree({b"src/x": b"y/a.py", b"src/y": b"../shared"}))["src/x"]


@pytest.mark.parametrize(
    "path",
    [
        "tests/sealed/TEST_A.py",
        "Tests/Sealed/test_a.py",
        "TESTS/sealed/new.py",
        "tests/sealed./test_b.py",
        "tests/sealed/test_a.py ",
        "tests/se\u200baled/new.py",
        "ｔests/sealed/test_a.py",
        "CI/gate.yaml",
        "ci/Gate.YAML",
        "fixtures/ſealed/a.json",
    ],
)
def test_look_alikes_of_sealed_paths(path: str) -> None:
    after = tree({}).with_files({path.encode(): Blob(0o100644, data=b"y")})
    assert escape(path.encode()) in collisions(between(tree({}), after), SEALED)


def test_normal_forms() -> None:
    sealed = ["tests/sealed/test_prüfung.py".encode()]
    twin = "tests/sealed/test_pru\u0308fung.py".encode()
    assert len(collisions([Change("A", None, Entry(0o100644, "", twin))], sealed)) == 1


@pytest.mark.parametrize(
    "path", [b"tests/sealed/test_a.py", b"tests/sealed/test_new.py", b"Tests/other.py", b"src/Sealed/x", b"fixtures/b"]
)
def test_what_collides_with_nothing(path: bytes) -> None:
    assert collisions([Change("A", None, Entry(0o100644, "", path))], SEALED) == {}


def test_a_deleted_look_alike_is_fine() -> None:
    assert collisions([Change("D", Entry(0o100644, "", b"tests/sealed/TEST_A.py"), None)], SEALED) == {}
