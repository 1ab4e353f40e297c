"""``ci/gate.yaml`` is YAML 1.2, core schema, and less: what two readers could take for two things is refused.

Only ``true`` and ``false`` are booleans (``on``, ``yes`` and ``off`` are text), ``012`` is refused, ``12:30`` is text. Refused
as well: duplicate keys, keys that are no text, merge keys, tags, a second document, and sizes that no policy has.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any, get_args

import msgspec

from ..errors import PolicyError
from . import globs, images
from .policy import FILE, Paths, Policy

SIZE, DEPTH, NODES = 64 << 10, 16, 5_000
"""Bytes of the file, levels of nesting, and nodes with every alias written out."""

NULL = re.compile(r"~|null|Null|NULL|")
TRUE = re.compile(r"true|True|TRUE")
FALSE = re.compile(r"false|False|FALSE")
INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})|0o[0-7]{1,20}|0x[0-9a-fA-F]{1,15}")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
DOUBTFUL = re.compile(r"[-+]?0[0-9_]+|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)|[-+]?[0-9]+")

Where = tuple[str | int, ...]
"""Keys and indexes from the top to a value."""


class Lines:
    """The line (from 1) of each value by its place, and the error that says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at: dict[Where, int] = {}
        self.spelled: dict[Where, str] = {}

    def error(self, where: Where | int, what: str, remedy: str = "") -> PolicyError:
        """A PolicyError at a place or line."""
        line = (
            where
            if isinstance(where, int)
            else next((self.at[where[:n]] for n in range(len(where), -1, -1) if where[:n] in self.at), 1)
        )
        return PolicyError(f"{self.name}:{line}", what, remedy)


def load(data: bytes, name: str = FILE) -> tuple[Any, Lines]:
    """(plain value, lines) of one YAML document. Raises PolicyError with the line."""
    lines = Lines(name)
    if len(data) > SIZE:
        raise lines.error(1, f"{len(data)} bytes; {SIZE} is the limit")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise lines.error(data[: error.start].count(b"\n") + 1, "not UTF-8") from None
    return _Reader(text, lines).document(), lines


class _Reader:
    """Builds plain values from parse events: no recursion deeper than DEPTH, no constructor, no implicit type of YAML 1.1."""

    def __init__(self, text: str, lines: Lines) -> None:
        import yaml

        self.yaml = yaml
        self.lines = lines
        self.nodes = 0
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.events = self._events(text)

    def _events(self, text: str) -> Iterator[Any]:
        loader = getattr(self.yaml, "CSafeLoader", self.yaml.SafeLoader)
        try:
            yield from self.yaml.parse(text, Loader=loader)
        except self.yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            last = text.rstrip("\n").count("\n") + 1
            raise self.lines.error(
                min(mark.line + 1, last) if mark else 1, f"not YAML: {error.problem or error.context}"
            ) from None
        except self.yaml.YAMLError as error:
            raise self.lines.error(1, f"not YAML: {str(error).splitlines()[0]}") from None

    def document(self) -> Any:
        yaml = self.yaml
        next(self.events)
        start = next(self.events)
        if isinstance(start, yaml.StreamEndEvent):
            raise self.lines.error(1, "empty", "write at least version: 1")
        if start.version not in (None, (1, 2)):
            raise self.lines.error(1, f"YAML {start.version[0]}.{start.version[1]}", "policy is YAML 1.2")
        value = self._node(next(self.events), (), DEPTH)
        next(self.events)
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            raise self.lines.error(after.start_mark.line + 1, "a second document", "keep one")
        return value

    def _node(self, event: Any, where: Where, depth: int) -> Any:
        yaml = self.yaml
        line = event.start_mark.line + 1
        self.lines.at.setdefault(where, line)
        self._count(1, line)
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise self.lines.error(line, f"*{event.anchor} stands for nothing")
            value, size = self.anchors[event.anchor]
            self._count(size, line)
            return value
        if event.tag is not None and event.tag != "!":
            raise self.lines.error(line, f"the tag {event.tag}", "leave tags out")
        before = self.nodes
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event.value, event.implicit[0], line)
            self.lines.spelled[where] = event.value
        elif depth == 0:
            raise self.lines.error(line, f"more than {DEPTH} levels deep")
        elif isinstance(event, yaml.SequenceStartEvent):
            value = self._sequence(where, depth)
        else:
            value = self._mapping(where, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = (value, self.nodes - before + 1)
        return value

    def _count(self, nodes: int, line: int) -> None:
        self.nodes += nodes
        if self.nodes > NODES:
            raise self.lines.error(line, f"more than {NODES} values, aliases written out")

    def _sequence(self, where: Where, depth: int) -> list[Any]:
        items: list[Any] = []
        for event in self.events:
            if isinstance(event, self.yaml.SequenceEndEvent):
                break
            items.append(self._node(event, (*where, len(items)), depth - 1))
        return items

    def _mapping(self, where: Where, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for event in self.events:
            if isinstance(event, self.yaml.MappingEndEvent):
                break
            line = event.start_mark.line + 1
            if not isinstance(event, self.yaml.ScalarEvent):
                raise self.lines.error(line, "a key that is no text", "keys are plain words")
            key = self._node(event, (*where, "<key>"), depth - 1)
            self.lines.at.pop((*where, "<key>"), None)
            if not isinstance(key, str):
                raise self.lines.error(line, f"the key {event.value!r} is no text", f'write "{event.value}"')
            if key == "<<" and event.implicit[0]:
                raise self.lines.error(line, "a merge key (<<)", "write the keys out")
            if key in found:
                raise self.lines.error(
                    line, f"the key {key!r} stands twice", f"the first is on line {self.lines.at[*where, key]}"
                )
            self.lines.at[*where, key] = line
            found[key] = self._node(next(self.events), (*where, key), depth - 1)
        return found

    def _scalar(self, text: str, plain: bool, line: int) -> Any:
        if not plain:
            return text
        if NULL.fullmatch(text):
            return None
        if TRUE.fullmatch(text):
            return True
        if FALSE.fullmatch(text):
            return False
        if INTEGER.fullmatch(text):
            return int(text, 0) if text.startswith("0") and len(text) > 1 else int(text)
        if DOUBTFUL.fullmatch(text):
            raise self.lines.error(line, f"the number {text}", f'write it without leading zeros, or as text: "{text}"')
        if FLOAT.fullmatch(text):
            value = float(text)
            if value in (float("inf"), float("-inf")):
                raise self.lines.error(line, f"the number {text}", "it is too large")
            return value
        return text


def load_policy(data: bytes, options: Mapping[str, type]) -> Policy:
    """Base's policy. ``options``: name of every installed check to the Struct of its options.

    Raises PolicyError with ``ci/gate.yaml:LINE``, the value and a remedy.
    """
    value, lines = load(data)
    if not isinstance(value, dict):
        raise lines.error((), "no mapping", "start with version: 1")
    if "version" not in value:
        raise lines.error((), "no version", "write version: 1")
    policy: Policy = _convert(value, Policy, (), lines)
    for name, given in policy.checks.items():
        _check_options(name, given, options, lines)
    _check_globs(policy, lines)
    _check_rest(policy, lines)
    return policy


def _convert(value: Any, type_: Any, top: Where, lines: Lines) -> Any:
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$")
        where = (*top, *_where(path.rstrip("`"), value, dict if "`object`" in what else str))
        unknown = re.search(r"unknown field `([^`]*)`", what)
        if unknown is not None:
            raise lines.error(
                (*where, unknown[1]),
                f"unknown key {unknown[1]!r}",
                _closest(
                    unknown[1], [field.encode_name for field in msgspec.structs.fields(_struct(type_, where[len(top) :]))]
                ),
            ) from None
        found = value
        for key in where[len(top) :]:
            found = found[key]
        spelled = lines.spelled.get(where, "")
        shown = "" if isinstance(found, (dict, list)) else f" (it is {spelled!r})"
        key = ".".join(map(str, where)) or "the file"
        raise lines.error(
            where, f"{key}: {what[:1].lower() + what[1:]}{shown}", _remedy(what, found, spelled, type_, where[len(top) :])
        ) from None


def _where(path: str, value: Any, wanted: type) -> Where:
    """msgspec's path as keys; where it writes ``[...]`` for some key of a mapping, the first whose value is not ``wanted``."""
    found: list[str | int] = []
    for name, index in re.findall(r"\.([^.\[]+)|\[(\d+|\.\.\.)\]", path):
        key: str | int = name or (index if index == "..." else int(index))
        if key == "...":
            key = next((key for key, item in value.items() if not isinstance(item, wanted)), next(iter(value)))
        found.append(key)
        value = value[key]
    return tuple(found)


def _struct(type_: Any, where: Where) -> Any:
    """The Struct at a place inside another."""
    for key in where:
        type_ = {field.encode_name: field.type for field in msgspec.structs.fields(type_)}.get(str(key), type_)
    return type_


def _closest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, 1, 0.6)
    return f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"


def _remedy(what: str, found: Any, spelled: str, type_: Any, where: Where) -> str:
    if "Expected `str`" in what and isinstance(found, (int, float)):
        return f'quote it: "{spelled}"'
    if "matching regex" in what:
        return "write a duration like 90s, 15m, 1h or a size like 256MiB, 4GiB"
    if "Expected `array`" in what:
        return "write a list: [...]"
    if "Expected `object`" in what and found is None:
        return "write {} for the defaults"
    if "Expected `object`" in what and found == "off":
        return "write {off: true, because: WHY}"
    if "Invalid enum value" in what and where:
        for field in msgspec.structs.fields(_struct(type_, where[:-1])):
            if field.encode_name == where[-1]:
                return f"choose from {', '.join(map(str, get_args(field.type)))}"
    return "see probatum explain policy"


def _check_options(name: str, given: Mapping[str, Any], options: Mapping[str, type], lines: Lines) -> None:
    if name not in options:
        raise lines.error(("checks", name), f"the check {name!r} is not installed", _closest(name, sorted(options)))
    where: Where = ("checks", name)
    rest = {key: item for key, item in given.items() if key not in ("off", "because")}
    if not isinstance(given.get("off", False), bool):
        raise lines.error((*where, "off"), f"checks.{name}.off is {given['off']!r}", "write true or false")
    if given.get("off"):
        because = given.get("because")
        if not isinstance(because, str) or not because.strip():
            raise lines.error(where, f"the check {name!r} is off without a reason", "write because: WHY beside it")
        if rest:
            raise lines.error((*where, next(iter(rest))), f"the check {name!r} is off and has options", "take them out")
    elif "because" in given:
        raise lines.error(
            (*where, "because"), f"the check {name!r} is on: there is nothing to give a reason for", "take it out"
        )
    _convert(rest, options[name], where, lines)


def _check_globs(policy: Policy, lines: Lines) -> None:
    for field in msgspec.structs.fields(Paths):
        for at, glob in enumerate(getattr(policy.paths, field.name)):
            why = globs.wrong(glob)
            if why:
                raise lines.error(("paths", field.name, at), f"the glob {glob!r} {why}")
    for name in ("product", "sealed"):
        if not getattr(policy.paths, name):
            raise lines.error(("paths", name), f"paths.{name} is empty", "name at least one glob")


def _check_rest(policy: Policy, lines: Lines) -> None:
    for name in ("pythonpath", "writable"):
        for at, path in enumerate(getattr(policy, name)):
            parts = path.split("/")
            if path.startswith("/") or ".." in parts or "" in parts or "\0" in path or (name == "writable" and path == "."):
                raise lines.error(
                    (name, at), f"{name}: {path!r} is no folder of the tree", "write it relative to the top, like src"
                )
    for key, value in policy.env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) or "\0" in value:
            raise lines.error(("env", key), f"env: {key!r} is no name of a variable", "use letters, digits and _")
    chosen = [name for name in ("lock", "packages", "image") if getattr(policy.environment, name)]
    if len(chosen) > 1:
        raise lines.error(("environment", chosen[1]), f"environment names {' and '.join(chosen)}", "keep one of them")
    image, archive = policy.environment.image, policy.environment.archive
    if image and images.wrong(image):
        raise lines.error(("environment", "image"), images.wrong(image), images.REMEDY)
    if archive and (not image or archive.startswith("/") or ".." in archive.split("/") or "\0" in archive):
        what = f"environment.archive: {archive!r} is no file below the folder of images, or there is no image"
        raise lines.error(("environment", "archive"), what, "write it relative to --images, beside image")
