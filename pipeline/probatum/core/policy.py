"""Base's policy as a typed value. Every key has a default; unknown keys are refused by the loader (yaml12.py)."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec

BUILT_IN = "built-in strict policy"
FILE = "ci/gate.yaml"
LEDGER = "ci/flake_leases.json"
SEAL = "ci/seal.lock"
MANIFEST = "tests/sealed/MANIFEST.txt"

THREE = ("oracle_integrity", "src_score", "flake_lease")

Globs = tuple[str, ...]
Duration = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]*(s|m|h)$")]
Size = Annotated[str, msgspec.Meta(pattern=r"^[1-9][0-9]*(KiB|MiB|GiB)$")]


class Paths(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which class a path belongs to; what no glob claims is ``other``. ``**`` crosses folders, ``*`` does not.

    The classes workflow, harness and environment have built-in globs; what is named here adds to them.
    """

    product: Globs = ("src/**",)
    sealed: Globs = ("tests/sealed/**", "fixtures/sealed/**")
    proposed: Globs = ("tests/proposed/**",)
    docs: Globs = ("docs/**", "*.md", "*.rst", "LICENSE*", "LICENCE*", "COPYING*", "NOTICE*")
    cassette: Globs = ()
    environment: Globs = ()
    harness: Globs = ()
    workflow: Globs = ()


class Environment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What candidate code runs on. One of ``lock`` (requirements file, uv.lock or pylock.toml), ``packages`` or ``image``;
    none: base's lock or requirements where they are found, else a pinned pytest.

    ``archive``: the file or folder below the folder of images that holds ``image``; found by digest where nothing is named.

    ``metadata: false`` leaves the gated project's own metadata out. ``extras`` and ``groups`` choose from pyproject.toml
    and uv.lock.
    """

    python: str = ""
    lock: str = ""
    packages: tuple[str, ...] = ()
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    image: str = ""
    archive: str = ""
    metadata: bool = True


class LimitsPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of every stage that runs candidate or base code."""

    wall: Duration = "15m"
    memory: Size = "4GiB"
    processes: Annotated[int, msgspec.Meta(ge=8, le=32768)] = 256
    file: Size = "256MiB"
    disk: Size = "2GiB"
    output: Size = "16MiB"


class SealPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``max_days``: how old ci/seal.lock may get before a human must seal again; nothing named: any age."""

    max_days: Annotated[int, msgspec.Meta(ge=1, le=3650)] | None = None


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``ci/gate.yaml`` at base.

    ``checks``: a named check is required, ``{}`` takes its defaults, ``{off: true, because: TEXT}`` shows it as off.
    ``pythonpath``: folders of the tree that go on sys.path. ``writable``: paths of the tree that tests may write to.
    ``env``: literal variables, never secrets. ``engine``: any, or the name that a deciding gate demands.
    """

    version: Literal[1]
    layout: Literal["strict", "in-place"] = "strict"
    paths: Paths = Paths()
    environment: Environment = Environment()
    pythonpath: tuple[str, ...] = (".",)
    writable: tuple[str, ...] = ()
    env: dict[str, str] = {}
    limits: LimitsPolicy = LimitsPolicy()
    seal: SealPolicy = SealPolicy()
    checks: dict[str, dict[str, Any]] = msgspec.field(default_factory=lambda: {name: {} for name in THREE})
    engine: str = "any"
    freeze_clock: bool | None = None
    keys: dict[str, str] = {}

    @property
    def required(self) -> tuple[str, ...]:
        """Names of the checks that must judge, sorted."""
        return tuple(sorted(name for name, options in self.checks.items() if options.get("off") is not True))

    @property
    def off(self) -> dict[str, str]:
        """Name to reason of the checks that policy switches off."""
        return {name: str(options.get("because", "")) for name, options in self.checks.items() if options.get("off") is True}


STRICT = Policy(version=1)
"""Applies where base has no policy but a manifest of sealed tests (section 0)."""

_UNIT = {"s": 1, "m": 60, "h": 3600, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def amount(text: str) -> int:
    """``15m`` is 900 seconds, ``4GiB`` is 4294967296 bytes. Raises ValueError for anything else."""
    match = re.fullmatch(r"([1-9][0-9]*)(s|m|h|KiB|MiB|GiB)", text)
    if match is None:
        raise ValueError(f"not an amount: {text!r}")
    return int(match[1]) * _UNIT[match[2]]
