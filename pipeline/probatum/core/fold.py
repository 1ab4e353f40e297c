"""Two paths that some disk takes for one fold to the same text: case, normal form, invisible marks, dots and spaces at ends."""

from __future__ import annotations

import re
import unicodedata

IGNORED = re.compile("[\u00ad\u034f\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
"""Code points that HFS+ and others leave out when they compare names."""

ENDS = re.compile(r"[. ]+(?=/|\Z)")
"""What Windows drops at the end of a name."""


def folded(path: str) -> str:
    """The folded spelling of a path. Equal paths fold equally; ``.`` and ``..`` never occur in a git path."""
    if path.isascii():
        path = path.lower()
    else:
        path = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", IGNORED.sub("", path)).casefold())
    return ENDS.sub("", path) if ". " in path or "./" in path or " /" in path or path.endswith((".", " ")) else path
