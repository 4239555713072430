"""The names of Grain that are not here are those that docs/differences.md lists."""

from __future__ import annotations

import importlib
import re
from abc import ABC
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parents[2] / "docs" / "differences.md"

MODULES = (
    "",
    "checkpoint",
    "constants",
    "experimental",
    "multiprocessing",
    "python",
    "samplers",
    "sharding",
    "sources",
    "transforms",
)
# What every class has, `register` of abstract ones too.
USUAL = {*dir(type), *dir(type(ABC))}


def names_of(value: Any) -> set[str]:
    """The public names of a module or class, with those of a class's own class."""
    names = {*dir(value), *(dir(type(value)) if isinstance(value, type) else ())}
    return {name for name in names if not name.startswith("_")} - USUAL


def missing(theirs: str) -> set[str]:
    """What Grain has and grain_jax has not, by its path from the package."""
    found = set()
    for module in MODULES:
        path = f".{module}" if module else ""
        grain = importlib.import_module(theirs + path)
        ours = importlib.import_module(f"grain_jax{path}")
        for name in names_of(grain):
            place = f"{module}.{name}".lstrip(".")
            if not hasattr(ours, name):
                found.add(place)
                continue
            one, other = getattr(grain, name), getattr(ours, name)
            if isinstance(one, type) and one.__module__.startswith(f"{theirs}."):
                inside = {part for part in names_of(one) if not hasattr(other, part)}
                found |= {f"{place}.{part}" for part in inside}
    return found


def listed() -> set[str]:
    section = DOCS.read_text().partition("## Names that are not here\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `grain\.?([\w.]*)` \| (.*) \|$", section, re.MULTILINE)
    return {
        f"{place}.{name}".lstrip(".")
        for place, names in rows
        for name in re.findall(r"`(\w+)`", names)
    }


def test_the_names_that_are_not_here_are_listed(reference_grain: ModuleType) -> None:
    assert listed() == missing(reference_grain.__name__)
