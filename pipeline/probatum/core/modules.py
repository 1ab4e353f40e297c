"""Sealed source files as values: what each binds, what its imports mean. Files are parsed, never imported."""

from __future__ import annotations

import ast
import functools
import posixpath
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping

from ..errors import UsageError
from .canonical import escape
from .stage import Blob

Function = (ast.FunctionDef, ast.AsyncFunctionDef)
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class Unresolved(UsageError):
    """A test that is not in the sealed files, or a file that does not parse."""


class Module:
    """One parsed file: top-level statements by the names they bind, star imports, and statements that act when imported."""

    def __init__(self, path: bytes, tree: ast.Module) -> None:
        self.path = path
        self.tree = tree
        self.bindings: dict[str, list[ast.stmt]] = {}
        self.stars: list[ast.ImportFrom] = []
        self.effects: list[ast.stmt] = []
        self.futures: list[str] = []
        self.imports: dict[str, list[tuple[ast.Import | ast.ImportFrom, ast.alias]]] = {}
        for statement in tree.body:
            for star in stars_of(statement):
                self.stars.append(star)
            if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
                self.futures += [alias.name for alias in statement.names]
            for node in () if isinstance(statement, (*Function, ast.ClassDef)) else ast.walk(statement):
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    for alias in node.names:
                        top = alias.name.partition(".")[0] if isinstance(node, ast.Import) else alias.name
                        self.imports.setdefault(alias.asname or top, []).append((node, alias))
            for name in dict.fromkeys(bound_by(statement)):
                self.bindings.setdefault(name, []).append(statement)
            if acts(statement):
                self.effects.append(statement)

    @property
    def directory(self) -> bytes:
        return posixpath.dirname(self.path)

    @functools.cached_property
    def definitions(self) -> dict[str, ast.stmt]:
        """Name to the last function or class of that name at the top level, compound statements searched."""
        found = ((name, last_definition(statements, name)) for name, statements in self.bindings.items())
        return {name: node for name, node in found if node is not None}


def parse(data: bytes, path: bytes) -> ast.Module:
    """The syntax tree of a file. Raises Unresolved when this interpreter cannot parse it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(data, escape(path))
    except SyntaxError as error:
        where = f"{escape(path)}:{error.lineno or 0}"
        raise Unresolved(where, f"not parsed: {error.msg}", "use the Python that the tests need, or mend the file") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unresolved(escape(path), f"not parsed: {type(error).__name__}: {error}", "mend the file") from None


class Library:
    """The sealed files, by path. ``roots`` are the folders on sys.path ("" is the tree's own)."""

    def __init__(self, files: Mapping[bytes, bytes], roots: Iterable[bytes] = (b"",)) -> None:
        self.files = files
        self.roots = tuple(root.strip(b"/") if root != b"." else b"" for root in roots)
        self._modules: dict[bytes, Module] = {}
        self._folders: set[bytes] | None = None
        self._data: dict[str, list[bytes]] | None = None

    def module(self, path: bytes) -> Module:
        """The parsed file at ``path``. Raises Unresolved."""
        if path not in self._modules:
            if path not in self.files:
                raise Unresolved(escape(path), "is no sealed file", "name a sealed test module")
            self._modules[path] = Module(path, parse(self.files[path], path))
        return self._modules[path]

    def find(self, name: str, importer: Module) -> bytes | None:
        """The sealed file that ``import name`` in ``importer`` means; nearest folder first, then the roots."""
        relative = name.replace(".", "/").encode("utf-8", "surrogatepass")
        for root in self._search(importer.directory):
            stem = posixpath.join(root, relative)
            for candidate in (stem + b"/__init__.py", stem + b".py"):
                if candidate in self.files:
                    return candidate
        return None

    def is_package(self, name: str, importer: Module) -> bool:
        """Whether some sealed file lies below the dotted ``name`` (a package without ``__init__.py`` counts)."""
        relative = name.replace(".", "/").encode("utf-8", "surrogatepass")
        return any(posixpath.join(root, relative) in self.folders for root in self._search(importer.directory))

    @property
    def folders(self) -> set[bytes]:
        if self._folders is None:
            self._folders = set()
            for path in self.files:
                folder = posixpath.dirname(path)
                while folder and folder not in self._folders:
                    self._folders.add(folder)
                    folder = posixpath.dirname(folder)
        return self._folders

    @property
    def data(self) -> dict[str, list[bytes]]:
        """Base name to the sealed files that are not Python."""
        if self._data is None:
            self._data = {}
            for path in sorted(self.files):
                if not path.endswith(b".py"):
                    self._data.setdefault(posixpath.basename(path).decode("utf-8", "surrogateescape"), []).append(path)
        return self._data

    def conftests(self, path: bytes) -> list[bytes]:
        """The sealed conftest files above ``path``, nearest first."""
        found = []
        folder = path
        while folder:
            folder = posixpath.dirname(folder)
            candidate = posixpath.join(folder, b"conftest.py")
            if candidate in self.files and candidate != path:
                found.append(candidate)
        return found

    def absolute(self, node: ast.ImportFrom, importer: Module) -> str:
        """The dotted name of the module that ``from … import`` names, as seen from the tree's root."""
        if not node.level:
            return node.module or ""
        folder = importer.directory
        for _ in range(node.level - 1):
            folder = posixpath.dirname(folder)
        parts = [part.decode("utf-8", "surrogateescape") for part in folder.split(b"/") if part]
        return ".".join([*parts, *([node.module] if node.module else [])])

    def _search(self, directory: bytes) -> Iterator[bytes]:
        folder = directory
        while folder:
            yield folder
            folder = posixpath.dirname(folder)
        yield b""
        for root in self.roots:
            if root:
                yield root


def bound_by(node: ast.AST) -> Iterator[str]:
    """The names that a statement binds in its own scope, inner scopes left out."""
    if isinstance(node, (*Function, ast.ClassDef)):
        yield node.name
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            if alias.name != "*":
                yield alias.asname or alias.name.partition(".")[0]
        return
    if isinstance(node, ast.Name):
        if not isinstance(node.ctx, ast.Load):
            yield node.id
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
        yield node.name
    if isinstance(node, ast.MatchMapping) and node.rest:
        yield node.rest
    for child in ast.iter_child_nodes(node):
        yield from bound_by(child)


def stars_of(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """``from … import *`` anywhere in a top-level statement."""
    if isinstance(node, ast.ImportFrom):
        if any(alias.name == "*" for alias in node.names):
            yield node
    elif not isinstance(node, (*Function, ast.ClassDef)):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.stmt, ast.ExceptHandler)):
                yield from stars_of(child)


def acts(node: ast.AST) -> bool:
    """Whether a top-level statement does something beside binding plain names: a call, a store into an object."""
    if isinstance(node, (*Function, ast.ClassDef, ast.Import, ast.ImportFrom)):
        return False
    if isinstance(node, ast.Expr):
        return not isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return any(isinstance(part, (ast.Attribute, ast.Subscript)) for target in node.targets for part in ast.walk(target))
    if isinstance(node, (ast.AnnAssign, ast.AugAssign)):
        return isinstance(node.target, (ast.Attribute, ast.Subscript))
    if isinstance(node, ast.Delete):
        return any(isinstance(part, (ast.Attribute, ast.Subscript)) for target in node.targets for part in ast.walk(target))
    if isinstance(node, (ast.Assert, ast.Raise)):
        return True
    return any(
        acts(child) for child in ast.iter_child_nodes(node) if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case))
    )


def dotted(node: ast.expr) -> list[str]:
    """``a.b.c`` as its parts; empty when the root is no plain name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return []
    return [node.id, *reversed(parts)]


def last_definition(body: Iterable[ast.AST], name: str) -> ast.stmt | None:
    """The last function or class called ``name`` among statements, compound ones searched."""
    found: ast.stmt | None = None
    for node in body:
        if isinstance(node, (*Function, ast.ClassDef)):
            if node.name == name:
                found = node
        elif isinstance(node, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            inner = last_definition(ast.iter_child_nodes(node), name)
            found = inner or found
    return found


class LazyFiles(Mapping[bytes, bytes]):
    """Files whose bytes are read when a closure comes to them."""

    def __init__(self, files: Mapping[bytes, Blob], read: Callable[[str], bytes]) -> None:
        self._files, self._read = files, read

    def __getitem__(self, path: bytes) -> bytes:
        blob = self._files[path]
        return blob.data if blob.data is not None else self._read(blob.oid)

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, path: object) -> bool:
        return path in self._files
