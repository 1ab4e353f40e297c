"""stub"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..core.stage import Blob, Tree
from .env_sources import Files


class Project(msgspec.Struct, frozen=True, kw_only=True):
    name: str = ""
    notes: tuple[str, ...] = ()


def read(files: Files) -> Project:
    return Project()


def metadata(project: Project) -> Tree:
    return Tree({})


def version_files(project: Project, files: Files) -> Mapping[bytes, Blob]:
    return {}
