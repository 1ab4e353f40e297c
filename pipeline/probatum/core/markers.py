"""Which expressions are skip or xfail markers, aliases and sealed imports followed."""

from __future__ import annotations

import ast

from .modules import Library, Module, dotted

KINDS = {
    "pytest.mark.skip": "skip",
    "pytest.mark.skipif": "skipif",
    "pytest.mark.xfail": "xfail",
    "unittest.skip": "unittest.skip",
    "unittest.skipIf": "unittest.skipIf",
    "unittest.skipUnless": "unittest.skipUnless",
    "unittest.expectedFailure": "unittest.expectedFailure",
}
CALLS = {
    "pytest.skip": "pytest.skip()",
    "pytest.xfail": "pytest.xfail()",
    "pytest.importorskip": "pytest.importorskip()",
    "_pytest.outcomes.skip": "pytest.skip()",
    "_pytest.outcomes.xfail": "pytest.xfail()",
    "_pytest.outcomes.importorskip": "pytest.importorskip()",
}
RAISED = {
    "unittest.SkipTest": "raise SkipTest",
    "pytest.skip.Exception": "raise Skipped",
    "pytest.xfail.Exception": "raise XFailed",
    "_pytest.outcomes.Skipped": "raise Skipped",
    "_pytest.outcomes.XFailed": "raise XFailed",
}
_DEPTH = 12


def meaning(node: ast.expr, module: Module, library: Library, depth: int = 0) -> tuple[str, list[ast.Call]]:
    """What an expression names, as an absolute dotted name ("" unknown), and the calls on the way, outermost first.

    ``pending`` after ``pending = pytest.mark.skip(reason="x")`` means ``pytest.mark.skip`` with that call.
    """
    if depth > _DEPTH:
        return "", []
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "getattr" and len(node.args) >= 2:
            attribute = constant_text(node.args[1])
            base, calls = meaning(node.args[0], module, library, depth + 1)
            return (f"{base}.{attribute}", calls) if base and attribute else ("", [])
        base, calls = meaning(node.func, module, library, depth + 1)
        return base, [node, *calls]
    if isinstance(node, ast.Attribute):
        chain = dotted(node)
        if chain:
            target = _through_import(chain, module, library, depth)
            if target is not None:
                return target
        base, calls = meaning(node.value, module, library, depth + 1)
        return (_plain(f"{base}.{node.attr}"), calls) if base else ("", [])
    if isinstance(node, ast.Name):
        return _name(node.id, module, library, depth)
    return "", []


def kind_of(node: ast.expr, module: Module, library: Library) -> tuple[str, ast.Call | None]:
    """The kind of a skip or xfail marker ("" for anything else) and the call that carries its arguments."""
    name, calls = meaning(node, module, library)
    kind = KINDS.get(name, "")
    if not kind and name.rpartition(".mark.")[1]:
        kind = KINDS.get("pytest.mark." + name.rpartition(".mark.")[2], "")
    return kind, next((call for call in calls if call.args or call.keywords), None)


def constant_text(node: ast.expr) -> str:
    """A string constant, ``"a" + "b"`` folded; "" for anything else."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = constant_text(node.left), constant_text(node.right)
        return left + right if left and right else ""
    return ""


class Strip(ast.NodeTransformer):
    """Takes skip and xfail markers away from decorators, ``pytestmark`` and ``marks=``; the rest of a tree stays."""

    def __init__(self, module: Module, library: Library) -> None:
        self.module, self.library = module, library

    def is_marker(self, node: ast.expr) -> bool:
        return bool(kind_of(node, self.module, self.library)[0])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        return self._decorated(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return self._decorated(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._decorated(node)

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> ast.AST:
        node.decorator_list = [item for item in node.decorator_list if not self.is_marker(item)]
        return self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> ast.AST | None:
        if any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets):
            if self.is_marker(node.value):
                return None
            if isinstance(node.value, (ast.List, ast.Tuple)) and node.value.elts:
                node.value.elts = [item for item in node.value.elts if not self.is_marker(item)]
                if not node.value.elts:
                    return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        kept = []
        for keyword in node.keywords:
            if keyword.arg == "marks":
                if self.is_marker(keyword.value):
                    continue
                if isinstance(keyword.value, (ast.List, ast.Tuple)) and keyword.value.elts:
                    keyword.value.elts = [item for item in keyword.value.elts if not self.is_marker(item)]
                    if not keyword.value.elts:
                        continue
            kept.append(keyword)
        node.keywords = kept
        return self.generic_visit(node)


def _plain(name: str) -> str:
    return "unittest." + name.removeprefix("unittest.case.") if name.startswith("unittest.case.") else name


def _name(name: str, module: Module, library: Library, depth: int) -> tuple[str, list[ast.Call]]:
    statements = module.bindings.get(name, [])
    if not statements:
        for star in module.stars:
            source = library.absolute(star, module)
            path = library.find(source, module)
            if path is None:
                return _plain(f"{source}.{name}"), []
            found = _name(name, library.module(path), library, depth + 1) if depth < _DEPTH else ("", [])
            if found[0]:
                return found
        return "", []
    statement = statements[-1]
    for node, alias in module.imports.get(name, ()):
        if isinstance(node, ast.Import):
            return (alias.name if alias.asname else name), []
        source = library.absolute(node, module)
        path = library.find(source, module)
        if path is not None and depth < _DEPTH:
            inner = library.module(path)
            if alias.name in inner.bindings or inner.stars:
                return _name(alias.name, inner, library, depth + 1)
        return _plain(f"{source}.{alias.name}"), []
    for part in ast.walk(statement) if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.If, ast.Try, ast.With)) else ():
        if isinstance(part, (ast.Assign, ast.AnnAssign)) and part.value is not None:
            targets = part.targets if isinstance(part, ast.Assign) else [part.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return meaning(part.value, module, library, depth + 1)
    return "", []


def _through_import(chain: list[str], module: Module, library: Library, depth: int) -> tuple[str, list[ast.Call]] | None:
    """``helpers.pending`` where ``helpers`` is a sealed module."""
    base, calls = _name(chain[0], module, library, depth)
    if not base or calls or depth >= _DEPTH:
        return None
    parts = [*base.split("."), *chain[1:]]
    for cut in range(len(parts) - 1, 0, -1):
        path = library.find(".".join(parts[:cut]), module)
        if path is not None:
            inner = library.module(path)
            if cut == len(parts) - 1 and (parts[-1] in inner.bindings or inner.stars):
                return _name(parts[-1], inner, library, depth + 1)
            return None
    return None
