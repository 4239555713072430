"""Imports go down only, and floors 0 to 2 stay light enough for a worker."""

from __future__ import annotations

import re

import pytest

from tools.source_graph import PACKAGE, Import, imports, modules

FLOORS = ["_values", "_algebra", "_datasets", "_execution", "_product"]
FACADE = len(FLOORS)

ENGINE = f"{PACKAGE}._execution.engine"

HEAVY = {"array_record", "jax", "orbax", "tensorflow", "tensorflow_datasets"}


def floor(module: str) -> int:
    """The floor of one of our modules; `_lazy` is what facades stand on, so it is at the bottom."""
    parts = module.split(".")
    if parts[1:2] == ["_lazy"]:
        return 0
    return FLOORS.index(parts[1]) if len(parts) > 1 and parts[1] in FLOORS else FACADE


def runs_in_workers() -> list[str]:
    """Floors 0 to 2, and all that the worker's own module reaches."""
    found = {module for module in modules() if floor(module) <= FLOORS.index("_datasets")}
    todo = {f"{ENGINE}.worker"} & modules().keys()
    while todo:
        module = todo.pop()
        found.add(module)
        todo |= {at.name for at in imports(modules()[module]) if ours(at)} - found
    return sorted(found)


def ours(found: Import) -> bool:
    return found.name.split(".")[0] == PACKAGE and not found.for_type_checkers


@pytest.mark.parametrize("module", modules())
def test_imports_go_down_only(module: str) -> None:
    here = floor(module)
    for found in imports(modules()[module]):
        if not ours(found):
            continue
        assert floor(found.name) <= here, (
            f"{module}:{found.line} (floor {here}) imports {found.name} (floor {floor(found.name)})"
        )


def test_no_module_imports_itself_through_others() -> None:
    graph = {
        module: {found.name for found in imports(path) if ours(found)} - {module}
        for module, path in modules().items()
    }
    done: set[str] = set()

    def walk(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for target in graph.get(module, ()):
                walk(target, (*trail, module))
            done.add(module)

    for module in graph:
        walk(module, ())


@pytest.mark.parametrize("module", runs_in_workers())
def test_heavy_packages_are_imported_at_first_use(module: str) -> None:
    for found in imports(modules()[module]):
        assert not (
            found.at_module_level
            and not found.for_type_checkers
            and found.name.split(".")[0] in HEAVY
        ), f"{module}:{found.line} imports {found.name} at module level"


@pytest.mark.parametrize("module", runs_in_workers())
def test_workers_load_floors_0_to_2_and_the_engine_only(module: str) -> None:
    in_engine = module == ENGINE or module.startswith(f"{ENGINE}.")
    assert floor(module) <= FLOORS.index("_datasets") or in_engine


@pytest.mark.parametrize("module", modules())
def test_grain_itself_is_never_imported(module: str) -> None:
    assert not [
        found for found in imports(modules()[module]) if found.name.split(".")[0] == "grain"
    ]


@pytest.mark.parametrize("module", modules())
def test_every_module_lists_its_names(module: str) -> None:
    path = modules()[module]
    source = path.read_text()
    if path.name == "__init__.py" and not re.search(r"^(from|import) ", source, re.M):
        return  # a folder's docstring
    listed = r"^__all__(: list\[str\])? = \["
    read = r"^    __getattr__, __dir__, __all__ = _lazy\.facade\("
    assert re.search(f"{listed}|{read}", source, re.M), f"{module} has no __all__"
