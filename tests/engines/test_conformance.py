"""Every wall of every engine: it holds, and its attack wins (or nothing runs at all) once the defence is taken away."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from engine_kit import KITS, Kit
from engine_walls import WALLS, World

from probatum.errors import EngineUnavailable

EVERY = [pytest.param(kit, name, id=f"{name}-{kit.name}") for kit in KITS.values() for name in WALLS]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the host that any uid may enter and write to."""
    tmp_path.chmod(0o777)
    monkeypatch.setenv("WALLS_HOST", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def result(kit: Kit, wall: str, host: Path, weaker: str = "") -> str:
    """What the wall's attack got."""
    if reason := kit.missing():
        pytest.skip(reason)

    async def attack() -> str:
        trees, cache = host / "trees", host / "cache"
        trees.mkdir()
        async with kit.make(trees, cache=cache, weaker=weaker) as engine:
            world = World(engine, host, cache, kit.drops)
            world.lose_trees = lambda: kit.lose_trees(engine)
            return await WALLS[wall][1](world)

    return anyio.run(attack)


@pytest.mark.parametrize(("kit", "wall"), EVERY)
def test_wall_holds(kit: Kit, wall: str, host: Path) -> None:
    assert result(kit, wall, host) == ""


@pytest.mark.parametrize(("kit", "wall"), [param for param in EVERY if param.values[0].weakened(param.values[1]) == "wins"])
def test_attack_wins_without_the_defence(kit: Kit, wall: str, host: Path) -> None:
    try:
        assert result(kit, wall, host, weaker=wall) != ""
    except EngineUnavailable as error:
        pytest.fail(f"the weakened engine does not run: {error}")


@pytest.mark.parametrize("kit", KITS.values(), ids=list(KITS))
def test_every_wall_says_how_it_was_seen_failing(kit: Kit) -> None:
    """A defence that cannot be taken away says why."""
    assert {name: kit.weakened(name) for name in WALLS if len(kit.weakened(name)) < 4} == {}
    assert len(WALLS) >= 30
    assert {promise for promise, _ in WALLS.values()} == set(range(1, 11))
