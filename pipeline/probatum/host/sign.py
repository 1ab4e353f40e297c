"""DSSE signatures over records: tamper-proof across jobs, where the policy names a key for the lane.

https://github.com/secure-systems-lab/dsse, protocol v1. Keys are Ed25519: a PEM private key in a file, and in base's policy
``keys: {gate: BASE64}`` the 32 public bytes. Needs the ``sign`` extra (cryptography), imported only when used.
"""

from __future__ import annotations

import base64
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..core import canonical
from ..errors import EvidenceCorrupt, UsageError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

STATEMENT_TYPE = "application/vnd.in-toto+json"
DECISION_TYPE = "application/vnd.probatum.decision+json"
SUFFIX = ".dsse"


class Signature(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One signature of an envelope, base64; ``keyid`` is the digest of the public bytes."""

    keyid: str
    sig: str


class Envelope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A DSSE envelope."""

    payload: str
    payloadType: str
    signatures: tuple[Signature, ...]


def type_of(name: str) -> str:
    """The payload type of a file of the store."""
    return DECISION_TYPE if name == "decision.json" else STATEMENT_TYPE


def pae(payload_type: str, payload: bytes) -> bytes:
    """Pre-authentication encoding: what is signed binds the type to the bytes."""
    kind = payload_type.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def load_key(path: Path) -> Ed25519PrivateKey:
    """The private key in ``path``. Raises UsageError when it is no Ed25519 key in PEM."""
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise UsageError("--key", "signing needs cryptography", "pip install 'probatum[sign]'") from None
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"--key {path}", str(error), "give an unencrypted Ed25519 key in PEM") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"--key {path}", "is no Ed25519 key", "make one: openssl genpkey -algorithm ed25519")
    return key


def sign(key: Ed25519PrivateKey, name: str, data: bytes) -> bytes:
    """The canonical envelope around a file of the store."""
    public = key.public_key().public_bytes_raw()
    signature = Signature(canonical.digest(public), _b64(key.sign(pae(type_of(name), data))))
    return canonical.encode(Envelope(_b64(data), type_of(name), (signature,)))


def check(public: str, name: str, data: bytes, envelope: bytes | None) -> None:
    """With a key configured, an unsigned or wrongly signed record is corrupt."""
    if envelope is None:
        raise EvidenceCorrupt(name, "is not signed, and base's policy names a key", "sign in the lane that wrote it")
    found: Envelope = canonical.decode(envelope, Envelope, name + SUFFIX)
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError:
        raise UsageError(name, "checking signatures needs cryptography", "pip install 'probatum[sign]'") from None
    if found.payload != _b64(data) or found.payloadType != type_of(name):
        raise EvidenceCorrupt(name, "the signature is over other bytes", "run the gate again")
    try:
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public, validate=True))
    except ValueError:
        raise UsageError(
            "keys in ci/gate.yaml", f"{public!r} is no Ed25519 key", "give the 32 public bytes in base64"
        ) from None
    for signature in found.signatures:
        try:
            key.verify(base64.b64decode(signature.sig), pae(found.payloadType, data))
            return
        except (InvalidSignature, ValueError):
            continue
    raise EvidenceCorrupt(name, "no signature is by the key that base's policy names", "run the gate again")


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")
