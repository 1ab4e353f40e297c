"""The launcher's framed result, read strictly: anything else on the channel means that the engine failed."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from ..core.canonical import digest_of
from ..core.stage import End, Facts, Outcome, Stage
from ..errors import EngineUnavailable
from ..probe.launcher import MAGIC
from . import machine


class Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the launcher says before the bytes. ``failed``: trouble of its own, named by ``problem``."""

    nonce: str
    how: Literal["exited", "signalled", "over", "setup", "failed"]
    code: int
    limit: str
    first_process: int
    problem: str
    sizes: tuple[int, int, int]
    outputs: list[tuple[int, int]]


def read(data: bytes, stage: Stage, nonce: str, started: int, finished: int, engine: str = "bubblewrap") -> Outcome:
    """The outcome in ``data``. Raises EngineUnavailable when it is cut short, not ours, not this run's, or a failure."""
    try:
        if not data.startswith(MAGIC):
            raise ValueError("no result")
        at = len(MAGIC) + 8
        size = int.from_bytes(data[len(MAGIC) : at], "big")
        header = msgspec.json.decode(data[at : at + size], type=Header)
        at += size
        parts = []
        for length in (*header.sizes, *(length for _, length in header.outputs)):
            parts.append(data[at : at + length])
            at += length
        if at != len(data):
            raise ValueError(f"{len(data)} bytes, {at} announced")
        outputs = {stage.outputs[index]: part for (index, _), part in zip(header.outputs, parts[3:], strict=True)}
    except (ValueError, IndexError) as error:
        raise EngineUnavailable(engine, f"stage {stage.name}: the launcher's result cannot be read: {error}") from None
    if header.how == "failed":
        raise EngineUnavailable(engine, f"stage {stage.name}: the launcher failed: {header.problem}")
    if header.nonce != nonce:
        raise EngineUnavailable(engine, f"stage {stage.name}: the result is of another run: nonce {header.nonce!r}")
    return Outcome(
        end=End(header.how, header.code, header.limit),
        nonce=header.nonce,
        report=parts[0],
        stdout=parts[1],
        stderr=parts[2],
        outputs=outputs,
        started=started,
        finished=finished,
        first_process=header.first_process,
    )


def digest_of_run(stage: Stage, facts: Facts) -> str:
    """Over everything that can change what a reusable stage yields: the stage, the launcher and the engine."""
    return digest_of({"stage": stage.digest, "engine": facts, "launcher": hashlib.sha256(machine.launcher()).hexdigest()})
