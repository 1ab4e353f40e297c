"""A policy glob is matched against a whole path: ``*`` and ``?`` stay within one folder, ``**`` crosses folders.

``src/**``      everything below src (not a file called src)
``*.md``        at the top level only
``**/*.md``     at any depth, the top level included
``a/**/b.txt``  a/b.txt, a/x/b.txt, a/x/y/b.txt
Nothing else is special: a glob that looks as if it were (``[``, ``{``, ``!``, a folder's ``/`` at the end) is refused.
Matching is by bytes and case counts; paths are read as UTF-8 with surrogate escapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

SPECIAL = re.compile(r"[\[\]{}\\\0]")


def text(path: bytes) -> str:
    """A path as the text that globs are matched against."""
    return path.decode("utf-8", "surrogateescape")


def wrong(glob: str) -> str:
    """What is wrong with a glob, "" when nothing is."""
    if not glob:
        return "is empty"
    if glob.startswith("!"):
        return "starts with '!': there is no negation; name what belongs to the class"
    if glob.startswith("/"):
        return "starts with '/': globs start at the top of the repository"
    if glob.endswith("/"):
        return f"ends with '/': write {glob}**"
    found = SPECIAL.search(glob)
    if found is not None:
        return f"has {found[0]!r}, which is not special here: list several globs, or use ? or *"
    for part in glob.split("/"):
        if part in ("", ".", ".."):
            return f"has the component {part!r}"
        if "**" in part and part != "**":
            return f"has {part!r}: ** is a whole component"
    return ""


def simplified(glob: str) -> str:
    """The same glob without ``**`` beside ``**``."""
    parts = glob.split("/")
    return "/".join(part for at, part in enumerate(parts) if part != "**" or parts[at - 1 : at] != ["**"])


def pattern(glob: str) -> str:
    """The regular expression of one glob, for ``fullmatch`` on ``text(path)``. Raises ValueError for a glob that is wrong."""
    why = wrong(glob)
    if why:
        raise ValueError(f"the glob {glob!r} {why}")
    parts = simplified(glob).split("/")
    out = []
    for at, part in enumerate(parts):
        last = at == len(parts) - 1
        if part == "**":
            out.append(r"[^/].*" if last else r"(?:[^/]+/)*")
        else:
            out.append("".join(r"[^/]*" if c == "*" else r"[^/]" if c == "?" else re.escape(c) for c in part))
            out.append("" if last else "/")
    return "".join(out)


def union(globs: Iterable[str]) -> str:
    """One regular expression for several globs; of none, one that matches nothing."""
    return "|".join(f"(?:{pattern(glob)})" for glob in globs) or r"(?!)"


def compiled(globs: Iterable[str]) -> re.Pattern[str]:
    """The compiled union, for ``fullmatch``."""
    return re.compile(union(globs), re.DOTALL)
