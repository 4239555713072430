"""The package as a graph of modules, read from the source without importing it."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "grain_jax"


@dataclasses.dataclass(frozen=True)
class Import:
    """One imported module, and whether importing the importer is enough to load it."""

    name: str
    line: int
    eager: bool


def modules() -> dict[str, Path]:
    """Every module of the package by dotted name."""
    return {module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> list[Import]:
    """What `path` imports, at module level (eager) or inside a function (not eager).

    Imports under `if TYPE_CHECKING:` never happen and are left out. `from package import name`
    counts as `package.name` where that is a module of ours.
    """
    finder = _Finder()
    finder.visit(ast.parse(path.read_text(), str(path)))
    return finder.found


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[Import] = []
        self._depth = 0

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        assert node.level == 0, f"line {node.lineno}: relative imports hide which floor is meant"
        assert node.module is not None
        for alias in node.names:
            dotted = f"{node.module}.{alias.name}"
            self._add(dotted if _is_module(dotted) else node.module, node.lineno)

    def visit_If(self, node: ast.If) -> None:
        if ast.unparse(node.test).endswith("TYPE_CHECKING"):
            for statement in node.orelse:
                self.visit(statement)
        else:
            self.generic_visit(node)

    def _visit_function(self, node: ast.AST) -> None:
        self._depth += 1
        self.generic_visit(node)
        self._depth -= 1

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _visit_function

    def _add(self, name: str, line: int) -> None:
        self.found.append(Import(name, line, eager=self._depth == 0))


def _is_module(dotted: str) -> bool:
    path = ROOT / dotted.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()
