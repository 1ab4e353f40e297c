"""What to install, read from base's files: a lock, requirements, pyproject's tables, or our pins. Nothing is run here."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any

import msgspec

from ..core.policy import Environment
from ..core.stage import Tree
from ..errors import PolicyError
from .env_legacy import with_older_tables

GROUPS = ("test", "tests", "testing", "dev")
"""Extras and dependency groups that a project keeps its test tools in."""

LOCKS = ("uv.lock", "requirements.lock", "pylock.toml", "poetry.lock")
REQUIREMENTS = ("requirements.txt", "requirements-dev.txt", "requirements-test.txt", "requirements-tests.txt",
                "requirements_dev.txt", "requirements_test.txt", "dev-requirements.txt", "test-requirements.txt",
                "requirements/test*.txt", "requirements/dev*.txt")  # fmt: skip
PINNED = {"pytest": "pytest", "hypothesis": "hypothesis", "yaml": "pyyaml"}
"""Import name to the pin file that brings it where nothing of base's names packages."""

_TEST_FILE = re.compile(rb"(^|/)(tests?/.*|test_[^/]*|[^/]*_test|conftest)\.py$")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into an environment. ``files`` are the texts that the installer reads, ``main`` the one to start from.

    ``kind``: ``requirements`` (a requirements file), ``uv`` (a uv.lock to be exported with ``options``), ``pylock``.
    ``pinned``: the text is ours. ``hashed``: every package must match a hash. ``notes``: one line each, for the report.
    ``inputs``: the paths of base that decided it; a change of one of them changes what is installed.
    """

    kind: str
    files: dict[str, bytes]
    main: str
    source: str
    options: tuple[str, ...] = ()
    pinned: bool = False
    hashed: bool = False
    notes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()


_PLAIN = (0o100644, 0o100755)


class Files:
    """Base's plain files by text path; links and submodules are not there."""

    def __init__(self, base: Tree, read: Callable[[str], bytes]) -> None:
        self._base, self._read = {path: blob for path, blob in base.files.items() if blob.mode in _PLAIN}, read
        self.inputs: set[str] = set()

    def __contains__(self, path: str) -> bool:
        return path.encode() in self._base

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._base)

    def bytes(self, path: str | bytes) -> bytes:
        name = path if isinstance(path, bytes) else path.encode()
        blob = self._base.get(name)
        if blob is None:
            raise PolicyError(str(path), "is not a file of base", "correct environment.lock in policy, or add the file")
        return blob.data if blob.data is not None else self._read(blob.oid)

    def text(self, path: str) -> str:
        self.inputs.add(path)
        try:
            return self.bytes(path).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise PolicyError(path, f"is not UTF-8 at byte {error.start}", "save it as UTF-8") from None

    def toml(self, path: str) -> dict[str, Any]:
        import tomllib

        try:
            return tomllib.loads(self.text(path))
        except tomllib.TOMLDecodeError as error:
            raise PolicyError(path, f"is no TOML: {error}", "correct it") from None


def wanted(policy: Environment, files: Files) -> Wanted:
    """What policy names, else the first of base's locks, else its requirements and tables, else our pins."""
    if policy.image:
        raise PolicyError("environment", "image: needs an engine that runs images", "name a lock or packages instead")
    if policy.lock and policy.packages:
        raise PolicyError("environment", "lock and packages exclude each other", "keep one")
    return msgspec.structs.replace(_choose(policy, files), inputs=tuple(sorted(files.inputs)))


def _choose(policy: Environment, files: Files) -> Wanted:
    if policy.packages:
        return _requirements("\n".join(policy.packages) + "\n", "policy's packages", [])
    project = files.toml("pyproject.toml") if "pyproject.toml" in files else {}
    if policy.lock:
        return _lock(policy.lock, policy, project, files)
    for name in LOCKS:
        if name in files:
            return _lock(name, policy, project, files)
    return _loose(policy, project, files) or pins(files)


def pins(files: Files | None = None) -> Wanted:
    """Our own pinned, hashed pytest; hypothesis and yaml too where base's tests import them."""
    names = ["pytest"]
    if files is not None:
        tests = [files.bytes(path) for path in files if _TEST_FILE.search(path)]
        for module in ("hypothesis", "yaml"):
            if any(re.search(rb"^\s*(import|from)\s+%b\b" % module.encode(), text, re.MULTILINE) for text in tests):
                names.append(PINNED[module])
    folder = resources.files(__package__).joinpath("pins")
    blocks = dict.fromkeys(block for name in names for block in _blocks(folder.joinpath(f"{name}.txt").read_text()))
    return Wanted(
        kind="requirements", files={"requirements.txt": ("\n".join(blocks) + "\n").encode()}, main="requirements.txt",
        source="pins", pinned=True, hashed=True,
        notes=(f"base names no packages: pinned {', '.join(names)}",),
    )  # fmt: skip


def _lock(name: str, policy: Environment, project: Mapping[str, Any], files: Files) -> Wanted:
    base = posixpath.basename(name)
    if base == "uv.lock":
        return _uv(name, policy, project, files)
    if base.startswith("pylock") and base.endswith(".toml"):
        files.inputs.add(name)
        return Wanted(kind="pylock", files={"pylock.toml": files.bytes(name)}, main="pylock.toml", source=name, hashed=True)
    if base == "poetry.lock":
        return _poetry(name, policy, files)
    notes: list[str] = []
    text, selves = flatten(name, files, notes)
    lines = [text, *_own(project, [*policy.extras, *selves], policy.groups, notes, dependencies=bool(selves))]
    return _requirements("\n".join(lines) + "\n", name, notes)


def _loose(policy: Environment, project: Mapping[str, Any], files: Files) -> Wanted | None:
    """Requirements files and pyproject's tables together; None where base has neither."""
    notes: list[str] = []
    sources: list[str] = []
    lines: list[str] = []
    extras = list(policy.extras)
    for pattern in REQUIREMENTS:
        for path in sorted(path for path in files if fnmatchcase(path.decode("utf-8", "replace"), pattern)):
            if path.count(b"/") == pattern.count("/"):
                text, selves = flatten(path.decode(), files, notes)
                lines.append(text)
                extras += selves
                sources.append(path.decode())
    project = with_older_tables(project, files)
    offered = project.get("project", {}).get("optional-dependencies", {})
    grouped = project.get("dependency-groups", {})
    extras += [name for name in offered if not policy.extras and _normal(name) in GROUPS]
    groups = policy.groups or [name for name in grouped if _normal(name) in GROUPS]
    tables = _own(project, extras, groups, notes, dependencies=True)
    if tables:
        sources.append("the project's own tables")
    lines += tables
    if not any(line.strip() for text in lines for line in text.splitlines()):
        return None
    return _requirements("\n".join(lines) + "\n", " + ".join(sources), notes)


def _requirements(text: str, source: str, notes: list[str]) -> Wanted:
    return Wanted(
        kind="requirements", files={"requirements.txt": text.encode()}, main="requirements.txt",
        source=source, hashed="--hash=" in text, notes=tuple(notes),
    )  # fmt: skip


def _uv(name: str, policy: Environment, project: Mapping[str, Any], files: Files) -> Wanted:
    """uv exports from its lock and every pyproject.toml beside or below it: workspace members are named there."""
    folder = posixpath.dirname(name)
    prefix = f"{folder}/" if folder else ""
    members = [p.decode() for p in files if posixpath.basename(p) == b"pyproject.toml" and p.startswith(prefix.encode())]
    if f"{prefix}pyproject.toml" not in members:
        raise PolicyError(name, "has no pyproject.toml beside it", "add it, or name another lock")
    if folder:
        project = files.toml(f"{prefix}pyproject.toml")
    offered = project.get("project", {}).get("optional-dependencies", {})
    grouped = project.get("dependency-groups", {})
    extras = policy.extras or tuple(extra for extra in offered if _normal(extra) in GROUPS)
    groups = policy.groups or tuple(group for group in grouped if _normal(group) in GROUPS)
    options = [*(f"--extra={extra}" for extra in extras), *(f"--group={group}" for group in groups)]
    copies = {path.removeprefix(prefix): files.bytes(path) for path in members}
    copies["uv.lock"] = files.bytes(name)
    files.inputs |= {name, *members}
    return Wanted(kind="uv", files=copies, main="uv.lock", source=name, options=tuple(options), hashed=True)


def _poetry(name: str, policy: Environment, files: Files) -> Wanted:
    """poetry.lock lists every package with version, marker and hashes; groups are named from format 2.1 on."""
    groups = {"main", *(policy.groups or GROUPS)}
    lines, notes = [], []
    for package in files.toml(name).get("package", []):
        title, version = str(package["name"]), str(package["version"])
        if package.get("source", {}).get("type") in ("git", "directory", "file", "url"):
            notes.append(f"{name}: {title} has no index; left out")
            continue
        if package.get("groups") and not groups & set(package["groups"]):
            continue
        if package.get("optional") and not policy.extras:
            continue
        marker = package.get("markers", "")
        if isinstance(marker, dict):
            marker = next((text for group, text in marker.items() if group in groups), "")
        line = f"{title}=={version}" + (f" ; {marker}" if marker else "")
        lines.append(line + "".join(f" --hash={file['hash']}" for file in package.get("files", [])))
    return _requirements("\n".join(lines) + "\n", name, notes)


def flatten(name: str, files: Files, notes: list[str], seen: tuple[str, ...] = ()) -> tuple[str, list[str]]:
    """A requirements file with ``-r`` put in place and the project itself taken out.

    Returns the text and the extras that the file asked of the project (``-e .[test]``; the empty extra is the project
    bare). Other folders of the repository are left out, with a note: installing them would run base's own build code.
    """
    if name in seen:
        return "", []
    lines: list[str] = []
    selves: list[str] = []
    for line in _logical(files.text(name)):
        option = re.match(r"(-r|--requirement|-c|--constraint)[ =]?\s*(\S+)", line)
        if option:
            path = posixpath.normpath(posixpath.join(posixpath.dirname(name), option[2]))
            if option[1] in ("-r", "--requirement"):
                text, more = flatten(path, files, notes, (*seen, name))
                lines.append(text)
                selves += more
            else:
                notes.append(f"{name}: constraints of {path} are not applied")
            continue
        target = re.sub(r"^(-e|--editable)[ =]?\s*", "", line)
        local = re.match(r"(?:file:)?(\.{1,2}(?:/[^\[\s;]*)?|/[^\[\s;]*)(?:\[([^\]]*)\])?", target)
        if local and posixpath.normpath(local[1]) == ".":
            selves += ["", *(part.strip() for part in (local[2] or "").split(",") if part.strip())]
        elif local or target != line:
            notes.append(f"{name}: {line} is a folder of the repository or editable; left out")
        else:
            lines.append(line)
    return "\n".join(lines), selves


def _own(project: Mapping[str, Any], extras: list[str], groups: Any, notes: list[str], *, dependencies: bool) -> list[str]:
    """Requirement lines of pyproject: dependencies, the extras and groups named, extras of extras and included groups too."""
    table = project.get("project", {})
    name = _normal(str(table.get("name", "")))
    offered = {_normal(key): value for key, value in table.get("optional-dependencies", {}).items()}
    grouped = {_normal(key): value for key, value in project.get("dependency-groups", {}).items()}
    found: list[str] = list(table.get("dependencies", [])) if dependencies else []
    pending = [("extra", _normal(extra)) for extra in extras if extra] + [("group", _normal(group)) for group in groups]
    done: set[tuple[str, str]] = set()
    while pending:
        item = pending.pop(0)
        if item in done:
            continue
        done.add(item)
        kind, key = item
        lines = (offered if kind == "extra" else grouped).get(key)
        if lines is None:
            notes.append(f"pyproject.toml has no {kind} {key!r}")
            continue
        for line in lines:
            if isinstance(line, dict):
                pending.append(("group", _normal(str(line.get("include-group", "")))))
                continue
            own = re.match(r"([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", line)
            if own and _normal(own[1]) == name:
                pending += [("extra", _normal(part.strip())) for part in (own[2] or "").split(",") if part.strip()]
            else:
                found.append(line)
    return list(dict.fromkeys(found))


def _logical(text: str) -> Iterator[str]:
    """Lines of a requirements file: continuations joined, comments and blanks dropped."""
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        bare = re.sub(r"(^|\s)#.*$", "", line).strip()
        if bare:
            yield bare


def _blocks(text: str) -> Iterator[str]:
    """One requirement with its hashes each."""
    return (re.sub(r"\s*\\\n\s*", " ", block) for block in re.split(r"\n(?=\S)", text.strip()))


def _normal(name: str) -> str:
    """A distribution's or extra's normalised name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
