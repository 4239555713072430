"""What a pipeline's code can reach is found, and what it does not name is not."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grain_jax import transforms
from grain_jax._algebra import reach

SCALE, OTHER = 3, 4
rng = np.random.default_rng(0)
draw = rng.random
unused = random.Random(3)
module = types.ModuleType("made_by_hand")
module.rng = random.Random(4)  # type: ignore[attr-defined]


def helper(x: Any) -> Any:
    return x * SCALE


def plot() -> float:
    return unused.random() + OTHER


class Holder:
    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = random.Random(5)


class Augment(transforms.Map):
    shift = np.random.RandomState(1)

    def __init__(self) -> None:
        self.rng = np.random.default_rng(1)
        self.all = {"a": [random.Random(6)]}
        self.holder = Holder()
        self.order = random.Random(7)
        self.order.random()

    def map(self, element: Any) -> Any:
        return self.go(element) + self.all["a"][0].random() + self.holder.inside.random()

    def go(self, x: Any) -> Any:
        return helper(x) + self.rng.random() + type(self).shift.rand()

    def plot(self) -> Any:
        return plot()


def closes_over(generator: random.Random) -> Callable[[Any], Any]:
    return lambda x: x + generator.random()


def by_default(x: Any, *, r: Any = unused) -> Any:
    return x + r.random()


def imports(x: Any) -> Any:
    from tests.algebra.test_reach import rng as mine

    return x + mine.random()


def paths(*roots: Any, kind: str | None = None) -> set[str]:
    return {found.path for found in reach.reach(roots) if kind in (None, found.kind)}


def values(*roots: Any) -> list[Any]:
    return [found.value for found in reach.reach(roots)]


HERE = __name__


def test_functions_and_variables_that_code_names() -> None:
    found = list(reach.reach([Augment().map]))
    functions = {one.path for one in found if one.kind == reach.FUNCTION}
    assert functions == {f"{HERE}.Augment.map", f"{HERE}.Augment.go", f"{HERE}.helper"}
    variables = [one for one in found if one.kind == reach.VARIABLE]
    assert {(one.module, one.name) for one in variables} == {(HERE, "helper"), (HERE, "SCALE")}
    assert {one.value for one in variables} == {helper, SCALE}


def test_attributes_that_code_names() -> None:
    attributes = paths(Augment().map, kind=reach.ATTRIBUTE)
    assert {"Augment.rng", "Augment.all", "Augment.holder", "Holder.inside"} <= attributes
    assert "Augment.shift" in attributes
    assert not {"Augment.order", "Augment.plot", "Augment.__init__"} & attributes


def test_parts_of_containers() -> None:
    augment = Augment()
    assert augment.all["a"][0] in values(augment.map)
    assert augment.order not in values(augment.map)
    assert unused not in values(augment.map)


@pytest.mark.parametrize(
    ("root", "path"),
    [
        (lambda x: rng.random(), f"{HERE}.rng"),
        (lambda x: module.rng.random(), "made_by_hand.rng"),
        (closes_over(unused), "closes_over.<locals>.<lambda>.generator"),
        (by_default, "by_default.r"),
        (functools.partial(closes_over, unused), "partial.args"),
        (lambda x: vars(module)["rng"], "made_by_hand.rng"),
        (lambda x: module.__dict__["rng"], "made_by_hand.rng"),
        (lambda x: getattr(module, "rng"), "made_by_hand.rng"),  # noqa: B009
        (imports, f"{HERE}.rng"),
        (lambda x: getattr(Augment(), "rng"), f"{HERE}.Augment"),  # noqa: B009
    ],
)
def test_where_things_lie(root: Any, path: str) -> None:
    assert path in paths(root)


def test_the_object_behind_a_method() -> None:
    assert rng in values(lambda x: draw())
    assert rng in values(draw)


def test_a_class_that_code_names_is_made() -> None:
    def makes(x: Any) -> Any:
        return Augment()

    assert f"{HERE}.Augment.__init__" in paths(makes, kind=reach.FUNCTION)


def test_code_of_libraries_is_not_followed() -> None:
    found = paths(lambda x: np.linalg.norm(x), kind=reach.VARIABLE)
    assert found == {"numpy.linalg.norm"}
    assert not paths(np.linalg.norm, kind=reach.FUNCTION)


def test_objects_of_libraries_are_looked_into() -> None:
    held = types.SimpleNamespace(rng=rng)
    assert rng in values(functools.partial(lambda h, x: x, held))


def test_knots_end() -> None:
    first: dict[str, Any] = {}
    first["self"] = first
    knot = types.SimpleNamespace(first=first)
    knot.knot = knot
    assert first in values(lambda x: x, knot)


def chain_of(length: int) -> Callable[[Any], Any]:
    """A function that calls one of a module that calls another, and the last one reads `deep`."""
    deep = types.ModuleType("deep_by_hand")
    lines = [f"def f{i}(x):\n    return f{i + 1}(x)" for i in range(length)]
    exec("\n".join([*lines, f"def f{length}(x):\n    return deep", "deep = 5"]), vars(deep))
    found: Callable[[Any], Any] = deep.f0
    return found


def test_calls_are_followed_however_deep() -> None:
    assert "deep_by_hand.deep" in paths(chain_of(40))


def test_an_attribute_of_a_class_has_its_owner() -> None:
    found = [one for one in reach.reach([Augment().map]) if one.owner is not None]
    assert {one.owner for one in found} == {Augment}


@pytest.mark.parametrize(
    ("line", "read"),
    [
        ("from . import config; return config.SCALE", "package.config.SCALE"),
        ("from .config import SCALE; return SCALE", "package.config.SCALE"),
        ("from .. import config as c; return c.SCALE", "package.config.SCALE"),
        ("from package import config; return config.SCALE", "package.config.SCALE"),
        ("import package.config; return package.config.SCALE", "package.config.SCALE"),
        ("import package.config as c; return c.SCALE", "package.config.SCALE"),
    ],
)
def test_imports_inside_a_function(line: str, read: str, monkeypatch: pytest.MonkeyPatch) -> None:
    package, config = types.ModuleType("package"), types.ModuleType("package.config")
    package.config, config.SCALE = config, 1  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "package", package)
    monkeypatch.setitem(sys.modules, "package.config", config)
    scope: dict[str, Any] = {"__name__": "package.code", "__package__": "package"}
    if ".." in line:
        scope["__package__"] = "package.inner"
    exec(f"def function(x):\n    {line}", scope)
    assert read in paths(scope["function"])
