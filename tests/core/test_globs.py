"""Globs, against a slow reference that walks components."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probatum.core.globs import compiled, pattern, text, wrong


def slow(glob: list[str], path: list[str]) -> bool:
    """The rule of the docstring, word by word."""
    if not glob:
        return not path
    if glob[0] == "**":
        if len(glob) == 1:
            return bool(path)
        return slow(glob[1:], path) or (bool(path) and slow(glob, path[1:]))
    return bool(path) and slow_name(glob[0], path[0]) and slow(glob[1:], path[1:])


def slow_name(glob: str, name: str) -> bool:
    if not glob:
        return not name
    if glob[0] == "*":
        return slow_name(glob[1:], name) or (bool(name) and slow_name(glob, name[1:]))
    return bool(name) and glob[0] in ("?", name[0]) and slow_name(glob[1:], name[1:])


names = st.text(st.sampled_from("ab.é\n"), min_size=1, max_size=3)
glob_parts = st.one_of(st.just("**"), st.text(st.sampled_from("ab.é*?"), min_size=1, max_size=3))
globs = st.lists(glob_parts, min_size=1, max_size=4).map("/".join).filter(lambda glob: not wrong(glob))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)


@given(globs, paths)
def test_a_glob_says_what_the_reference_says(glob: str, path: str) -> None:
    assert bool(compiled([glob]).fullmatch(path)) == slow(glob.split("/"), path.split("/"))


@given(st.lists(globs, max_size=4), paths)
def test_a_union_is_any_of_its_globs(several: list[str], path: str) -> None:
    assert bool(compiled(several).fullmatch(path)) == any(slow(glob.split("/"), path.split("/")) for glob in several)


@given(st.binary())
def test_paths_are_matched_by_bytes(path: bytes) -> None:
    assert text(path).encode("utf-8", "surrogateescape") == path


TABLE = [
    ("src/**", "src/a.py", True),
    ("src/**", "src/a/b.py", True),
    ("src/**", "src", False),
    ("src/**", "srcs/a", False),
    ("*.md", "README.md", True),
    ("*.md", "docs/a.md", False),
    ("**/*.md", "README.md", True),
    ("**/*.md", "docs/x/a.md", True),
    ("a/**/b", "a/b", True),
    ("a/**/b", "a/x/y/b", True),
    ("a/**/b", "ab", False),
    ("**", "x/y", True),
    ("*", "x", True),
    ("*", "x/y", False),
    ("a?c", "abc", True),
    ("a?c", "a/c", False),
    ("*.PY", "a.py", False),
    ("a.py", "axpy", False),
    ("src/**", "src/line\nbreak", True),
    ("a+b(c)|d$", "a+b(c)|d$", True),
]


@pytest.mark.parametrize(("glob", "path", "expected"), TABLE)
def test_table(glob: str, path: str, expected: bool) -> None:
    assert bool(compiled([glob]).fullmatch(path)) == expected


@pytest.mark.parametrize(
    "glob", ["", "/src/**", "src/", "!src", "a/../b", "./a", "a//b", "a**", "**b/c", "[ab]", "{a,b}", "a\\b", "a\0b"]
)
def test_what_only_looks_like_a_glob_is_refused(glob: str) -> None:
    assert wrong(glob)
    with pytest.raises(ValueError, match="the glob"):
        pattern(glob)


def test_no_globs_match_nothing() -> None:
    assert compiled([]).fullmatch("") is None and compiled([]).fullmatch("a") is None
