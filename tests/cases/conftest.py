"""Which of the start modes and kinds of memory of the engine a case is run in."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import pytest

# Arguments of these names choose how workers are started and where batches lie, by these values.
ENGINE = {
    "mode": {"", "fork_imported", "fork_first", "fresh"},
    "memory": {"", "memory", "memfd", "file"},
}
HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps one way of the engine of each case, unless `GRAIN_JAX_TEST_MODES` is "all".

    Cases are about what users write, which seldom depends on how workers are started. The cases of
    one function take turns: the first is run in a mode that its name decides, the second in the
    next one. Those with the marker `every_mode` are run in all of them.
    """
    if os.environ.get("GRAIN_JAX_TEST_MODES") == "all":
        return
    functions: dict[str, dict[str, list[pytest.Item]]] = {}
    for item in items:
        if HERE in item.path.parents and _ways(item) and not item.get_closest_marker("every_mode"):
            function = item.nodeid.partition("[")[0]
            functions.setdefault(function, {}).setdefault(_case(item), []).append(item)
    left_out = set()
    for function, cases in functions.items():
        first = zlib.crc32(function.encode())
        for number, ways in enumerate(cases.values()):
            left_out |= {*ways} - {ways[(first + number) % len(ways)]}
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]


def _arguments(item: pytest.Item) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


def _ways(item: pytest.Item) -> set[str]:
    """The names of the arguments that choose a way of the engine."""
    return {name for name, value in _arguments(item).items() if value in ENGINE.get(name, ())}


def _case(item: pytest.Item) -> str:
    """What is the same in every way."""
    ways = _ways(item)
    return repr({name: value for name, value in _arguments(item).items() if name not in ways})
