"""With a key configured, an unsigned or wrongly signed record is corrupt."""

from __future__ import annotations

import base64
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import toy


def key_file(path: Path) -> tuple[Path, str]:
    """A new private key in PEM, and its public bytes in base64."""
    key = Ed25519PrivateKey.generate()
    none = serialization.NoEncryption()
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, none))
    return path, base64.b64encode(key.public_key().public_bytes_raw()).decode()


def verify(out: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*toy.PROBATUM, "verify", "--evidence", str(out)], capture_output=True, text=True)


def test_signed_gate_verifies_and_nothing_else_does(tmp_path: Path) -> None:
    key, public = key_file(tmp_path / "key.pem")
    other, _ = key_file(tmp_path / "other.pem")
    repo, out = tmp_path / "repo", tmp_path / "out"
    toy.strict(repo, {"ci/gate.yaml": f"version: 1\nkeys: {{gate: {public}}}\n"})
    toy.patch(repo, {"src/thing.py": toy.MENDED})
    code, _, said = toy.gate(repo, out, "--key", str(key))
    assert code == 0, said
    assert verify(out).returncode == 0 and "signed" in verify(out).stdout
    for name in ("plan.json", "suite.run.json", "decision.json"):
        copy = tmp_path / "copy"
        shutil.copytree(out, copy)
        (copy / f"{name}.dsse").unlink()
        gone = verify(copy)
        assert gone.returncode == 4 and "not signed" in gone.stderr
        shutil.copy(out / "patch.json.dsse", copy / f"{name}.dsse")
        assert verify(copy).returncode == 4
        shutil.rmtree(copy)
    assert toy.gate(repo, tmp_path / "out2", "--key", str(other))[0] == 0
    foreign = verify(tmp_path / "out2")
    assert foreign.returncode == 4 and "no signature is by the key" in foreign.stderr
    assert toy.gate(repo, tmp_path / "out3")[0] == 0
    assert verify(tmp_path / "out3").returncode == 4


@pytest.mark.parametrize("content", [b"", b"not a key", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"])
def test_a_bad_key_is_one_line(tmp_path: Path, content: bytes) -> None:
    repo = tmp_path / "repo"
    toy.strict(repo)
    toy.patch(repo, {"src/thing.py": toy.MENDED})
    (tmp_path / "key").write_bytes(content)
    code, decision, said = toy.gate(repo, tmp_path / "out", "--key", str(tmp_path / "key"))
    assert code == 2 and not decision and "Ed25519" in said
    assert not list((tmp_path / "out").glob("*.txt"))
