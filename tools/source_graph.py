"""The repository's modules and what they import, read from the source without importing it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

__all__ = ["PACKAGE", "ROOT", "Import", "imports", "module_name", "modules"]

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "grain_jax"


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module, and when the import happens."""

    name: str
    line: int
    at_module_level: bool = True
    for_type_checkers: bool = False


def modules(folder: str = PACKAGE) -> dict[str, Path]:
    """Every module below `folder` by dotted name."""
    return {module_name(path): path for path in sorted((ROOT / folder).rglob("*.py"))}


def module_name(path: Path) -> str:
    """The dotted name of a file in the repository; a package's `__init__` has the package's."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[Import]:
    """What `path` imports, in order.

    `from package import name` counts as `package.name` where that is a module of the repository.
    Imports in the body of `if TYPE_CHECKING:` never happen and are marked so.
    """
    finder = _Finder(path)
    finder.visit(ast.parse(path.read_text(), str(path)))
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self, path: Path) -> None:
        self.found: list[Import] = []
        self._package = path.relative_to(ROOT).parent.parts
        self._in_function = False
        self._for_type_checkers = False

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        if node.level:
            package = self._package[: len(self._package) - node.level + 1]
            module = ".".join([*package, *filter(None, [module])])
        for alias in node.names:
            dotted = f"{module}.{alias.name}"
            self._add(dotted if _is_module(dotted) else module, node.lineno)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test) not in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            self.generic_visit(node)
            return
        self._for_type_checkers = True
        for statement in node.body:
            self.visit(statement)
        self._for_type_checkers = False
        for statement in node.orelse:
            self.visit(statement)

    def _visit_function(self, node: ast.AST) -> None:
        outer, self._in_function = self._in_function, True
        self.generic_visit(node)
        self._in_function = outer

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    def _add(self, name: str, line: int) -> None:
        self.found.append(Import(name, line, not self._in_function, self._for_type_checkers))


def _is_module(dotted: str) -> bool:
    path = ROOT / dotted.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
