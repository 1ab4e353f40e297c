"""All walls, in the order of the promises: importing a module of them registers it."""

from __future__ import annotations

import walls_after
import walls_around
import walls_ends
import walls_rights
from engine_world import WALLS, World

__all__ = ["WALLS", "World", "walls_after", "walls_around", "walls_ends", "walls_rights"]
