"""A pinned image is the environment: unpacked from an archive, the same digest in every record, nothing pulled."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

import oci_kit as kit
import toy
from probatum.core.images import parse_lock
from probatum.errors import PolicyError
from probatum.host import env_image, images, replay
from probatum.host.drive import load


class Store(NamedTuple):
    """A folder of archives, the digest of the image in it, and where it came from."""

    folder: Path
    digest: str
    made_of: str

    @property
    def ref(self) -> str:
        return f"registry.example/tests/runner@{self.digest}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """One image, built here: from distribution packages, else from this machine's own files."""
    work = tmp_path_factory.mktemp("store")
    layout = work / "layout"
    layout.mkdir()
    first, why = kit.from_packages(work)
    made_of = "distribution packages"
    if why:
        first, missing = kit.from_this_machine(work)
        made_of = f"this machine's files ({why})"
        if missing:
            pytest.skip(f"no image can be built: {why}; {missing}")
    second = kit.layer([("etc/built-by", "file", "probatum's tests\n"), ("usr/share/.wh.info", "file")])
    digest = kit.image(layout, [first, second])
    folder = work / "images"
    folder.mkdir()
    kit.archive(layout, folder / "runner.tar")
    print(f"the image is made of {made_of}")
    return Store(folder, digest, made_of)


@pytest.fixture
def repo(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(images.VARIABLE, str(store.folder))
    at = tmp_path / "repo"
    seen = "import sys\n\n\ndef test_where():\n    assert sys.executable.startswith('/usr/bin/python3')\n"
    files = {
        "ci/gate.yaml": POLICY.format(store.ref),
        "tests/sealed/test_where.py": seen,
        "tests/sealed/MANIFEST.txt": "tests/sealed/test_thing.py\ntests/sealed/test_where.py\n",
    }
    toy.strict(at, dict(files))
    toy.patch(at, {"src/thing.py": toy.MENDED})
    return at


POLICY = """version: 1
environment: {{image: {}}}
checks:
  oracle_integrity: {{}}
  src_score: {{}}
  flake_lease: {{}}
  cold_replay: {{}}
"""


def test_replay_and_gate_run_on_the_image(repo: Path, store: Store, tmp_path: Path) -> None:
    out = tmp_path / "evidence/admission.json"
    body, _ = replay.run(replay.Order(repo=repo, base="main", head="agent", out=out), lambda line: None)
    assert (body.cache, body.result, body.tests) == ("cold", "pass", 3), body.reason
    assert body.runner_image == store.digest and body.environment == store.ref
    code, decision, said = toy.gate(repo, tmp_path / "out", "--evidence", str(out.parent))
    assert code == 0 and decision["decision"] == "MERGE_OK", said
    now = json.loads((tmp_path / "out/replay.json").read_text())["predicate"]["body"]
    assert now["runner_image"] == store.digest


def test_a_rotated_image_voids_the_record(repo: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "evidence/admission.json"
    replay.run(replay.Order(repo=repo, base="main", head="agent", out=out), lambda line: None)
    folder = tmp_path / "both"
    shutil.copytree(store.folder, folder)
    monkeypatch.setenv(images.VARIABLE, str(folder))
    layout = folder / "rotated"
    layout.mkdir()
    subprocess.run(["tar", "-xf", store.folder / "runner.tar", "-C", layout], check=True)
    manifest = json.loads((layout / "blobs/sha256" / store.digest[7:]).read_text())
    manifest["annotations"] = {"rebuilt": "yes"}
    rotated = kit.blob(layout, json.dumps(manifest).encode())
    toy.git(repo, "checkout", "-q", "main")
    toy.commit(repo, {"ci/gate.yaml": POLICY.format(f"registry.example/tests/runner@{rotated}")})
    found = [one.id for one in replay.admit(out, repo, "main", "agent", None)]
    assert found == ["cold_replay/base-moved", "cold_replay/image-rotated"]


def test_what_the_image_can_import_is_read_from_its_files(store: Store, tmp_path: Path) -> None:
    def info(root: Path) -> bytes:
        import msgspec

        return msgspec.json.encode(env_image.look(root, ""))

    root = images.rootfs(store.digest, (store.folder,), tmp_path, "runner.tar", info) / "env"
    found = env_image.look(root, "")
    assert found.pytest and {"pytest", "_pytest", "os", "json"} <= set(found.names)
    assert (root / "etc/built-by").exists() and os.readlink(root / "bin") == "usr/bin"
    with pytest.raises(PolicyError, match=r"no python3\.7"):
        env_image.look(root, "3.7")


def test_an_image_that_is_not_here_is_exit_5_with_the_remedy(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(images.VARIABLE, str(tmp_path / "empty"))
    code, _, said = toy.gate(repo, tmp_path / "out")
    assert code == 5 and "no image with this digest" in said and "skopeo copy" in said


def test_an_image_without_pytest_is_refused(repo: Path, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = tmp_path / "bare"
    layout.mkdir()
    digest = kit.image(
        layout, [kit.layer([("usr/bin/python3", "link", "python3.11"), ("usr/bin/python3.11", "file", "", 0o755)])]
    )
    monkeypatch.setenv(images.VARIABLE, str(layout))
    toy.git(repo, "checkout", "-q", "main")
    toy.commit(repo, {"ci/gate.yaml": POLICY.format(f"bare@{digest}")})
    code, _, said = toy.gate(repo, tmp_path / "out")
    assert code == 2 and "holds no pytest" in said


@pytest.mark.parametrize(
    "image", ["python", "python:3.12", "registry.example:5000/a/b:latest", "python@sha256:12", "a b@sha256:"]
)
def test_a_policy_names_an_image_by_digest_or_not_at_all(image: str) -> None:
    with pytest.raises(PolicyError) as refused:
        load(f"version: 1\nenvironment: {{image: '{image}'}}\n".encode())
    assert "ci/gate.yaml:2" in refused.value.line() and "write name@sha256:" in refused.value.line()


@pytest.mark.parametrize("archive", ["../x.tar", "/x.tar", "a/../../x.tar"])
def test_an_archive_lies_in_the_folder_of_images(archive: str) -> None:
    with pytest.raises(PolicyError, match="no file below the folder of images"):
        load(f"version: 1\nenvironment: {{image: 'a@sha256:{'1' * 64}', archive: '{archive}'}}\n".encode())


def command(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    given = [*toy.PROBATUM, "images", *map(str, arguments)]
    return subprocess.run(given, capture_output=True, text=True, stdin=subprocess.DEVNULL)


def test_lock_check_and_ls(store: Store, tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "containers").mkdir(parents=True)
    given = ("--repo", top, "--images", store.folder)
    lock = command("lock", *given, "--name", "runner", "--reference", "registry.example:5000/tests/runner:1", "--archive",
                   store.folder / "runner.tar", "--package", "pytest")  # fmt: skip
    pinned = f"registry.example:5000/tests/runner@{store.digest}"
    assert lock.returncode == 0 and lock.stdout == pinned + "\n", lock.stderr
    row = parse_lock((top / "containers/images.lock.yaml").read_bytes()).images[0]
    assert row.packages["pytest"] and row.platform == "linux/amd64" and row.pinned == pinned
    dockerfile = top / "containers/Dockerfile"
    dockerfile.write_text(f"FROM {pinned} AS one\nFROM one\nFROM scratch\nCOPY --from=one /a /a\n")
    done = command("check", *given)
    assert (done.returncode, done.stdout) == (0, "1 images are pinned, 1 of their archives are here and hold\n"), done.stderr
    assert command("ls", *given).stdout.endswith("archive: runner.tar\n")
    dockerfile.write_text(f"FROM python:3.12\nARG X\nFROM ${{X}}\nFROM other@sha256:{'0' * 64}\n")
    done = command("check", *given)
    assert done.returncode == 1 and [line.split(": ")[0] for line in done.stdout.splitlines()] == [
        "containers/Dockerfile:1", "containers/Dockerfile:3", "containers/Dockerfile:4",
    ]  # fmt: skip
    (top / "ci").mkdir()
    (top / "ci/gate.yaml").write_text(f"version: 1\nenvironment: {{image: 'x@sha256:{'2' * 64}'}}\n")
    assert "environment.image x@sha256:2" in command("check", *given).stdout


def test_check_reads_every_byte_of_an_archive(store: Store, tmp_path: Path) -> None:
    top, folder = tmp_path / "top", tmp_path / "images"
    folder.mkdir()
    layout = folder / "layout"
    layout.mkdir()
    digest = kit.image(layout, [kit.layer([("a", "file", "x" * 100)])])
    (top / "containers").mkdir(parents=True)
    (top / "containers/images.lock.yaml").write_text(
        f"version: 1\nimages: [{{name: a, reference: a, digest: '{digest}', packages: {{}}}}]\n"
    )
    assert command("check", "--repo", top, "--images", folder).returncode == 0
    layers = json.loads((layout / "blobs/sha256" / digest[7:]).read_text())["layers"]
    path = layout / "blobs/sha256" / layers[0]["digest"][7:]
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    done = command("check", "--repo", top, "--images", folder)
    assert done.returncode == 1 and "another digest" in done.stdout and done.stdout.count("\n") == 1
