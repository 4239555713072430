"""What objects hold is told without their own code, and whose a module is by where it lies."""

from __future__ import annotations

import collections
import enum
import functools
import importlib
import json
import operator
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grain_jax._algebra import insides


class Loud:
    """Whose code must not run: all of it raises."""

    def __init__(self) -> None:
        object.__setattr__(self, "x", 1)

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(name)

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise AssertionError("__class__")


class Slotted:
    __slots__ = ("__dict__", "given", "missing")

    def __init__(self) -> None:
        self.given, self.other = 1, 2


class Named(str):
    __slots__ = ()


@pytest.mark.parametrize(
    ("name", "file", "ours"),
    [
        ("numpy", None, False),
        ("json", None, False),
        ("grain_jax._algebra.reach", None, False),
        (__name__, None, True),
        ("made_by_hand", None, True),
        ("__main__", "/home/user/train.py", True),
        ("__main__", "/usr/lib/python3/dist-packages/tool.py", False),
    ],
)
def test_whose_a_module_is(name: str, file: str | None, ours: bool) -> None:
    assert insides.is_users(name, file) is ours


def test_the_type_counts_and_no_code_of_the_value_runs() -> None:
    assert insides.is_a(True, int)
    assert insides.is_a(Named("x"), (int, str))
    assert not insides.is_a("x", int)
    assert insides.is_a(Loud(), Loud)
    assert not insides.is_a(Loud(), dict)
    with pytest.raises(AssertionError, match="__class__"):
        isinstance(Loud(), dict)


def test_what_a_variable_of_an_enclosing_function_holds() -> None:
    def outer(is_bound: bool) -> tuple[types.CellType, ...]:
        if is_bound:
            x = 5
        return (lambda: x).__closure__ or ()

    assert [insides.content(cell) for cell in outer(True)] == [5]
    assert [insides.content(cell) for cell in outer(False)] == [None]


def first(x: Any) -> Any:
    return x


def second(x: Any, y: Any) -> None:
    pass


@pytest.mark.parametrize(
    ("value", "functions"),
    [
        (staticmethod(first), [first]),
        (classmethod(first), [first]),
        (property(first, second), [first, second]),
        (property(first), [first]),
        (functools.cached_property(first), [first]),
        (first, [first]),
        (3, [3]),
    ],
)
def test_functions_of_a_descriptor(value: Any, functions: list[Any]) -> None:
    assert insides.functions_of(value) == functions


def test_attributes_are_those_of_slots_and_of_the_dict() -> None:
    held = insides.attributes(Slotted())
    assert {name: held[name] for name in ("given", "other")} == {"given": 1, "other": 2}
    assert "missing" not in held
    assert insides.attributes(Loud()) == {"x": 1}
    assert insides.attributes(3) == {}
    made = insides.attributes(functools.partial(first, 1, y=2))
    expected = {"func": first, "args": (1,), "keywords": {"y": 2}}
    assert {name: made[name] for name in expected} == expected


def test_attributes_of_a_thread_are_its_own() -> None:
    local = threading.local()
    local.x = 1
    found: list[dict[str, Any]] = []
    thread = threading.Thread(target=lambda: found.append(insides.attributes(local)))
    thread.start()
    thread.join()
    assert insides.attributes(local) == {"x": 1}
    assert found == [{}]


class OfLibrary(json.JSONEncoder):
    pass


class Colour(enum.Enum):
    RED = 1


class Mapping(collections.abc.Mapping):  # type: ignore[type-arg]
    pass


class Child(OfLibrary):
    pass


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (OfLibrary, True),
        (Child, True),
        (collections.OrderedDict, True),
        (Slotted, False),
        (Named, False),
        (Colour, False),
        (Mapping, False),
    ],
)
def test_bases_that_a_library_may_call_through(kind: type, expected: bool) -> None:
    assert insides.has_library_base(kind) is expected


@pytest.mark.parametrize(
    ("value", "names"),
    [
        (operator.attrgetter("a.b", "c"), ["a", "b", "c"]),
        (operator.methodcaller("go", 1, "x"), ["go", "x"]),
        (operator.methodcaller("go", by="y"), ["go"]),
        (functools.partial(getattr, Slotted, "given"), ["given"]),
        (functools.partial(importlib.import_module, "json.decoder"), ["json", "decoder"]),
        (functools.partial(first, "x"), []),
        (operator.itemgetter("x"), []),
    ],
)
def test_names_that_an_object_in_c_looks_up(value: Any, names: list[str]) -> None:
    assert insides.names_for(value) == names


@pytest.mark.parametrize(
    "make",
    [
        lambda f: np.frompyfunc(f, 1, 1),
        lambda f: functools.cmp_to_key(f),
        lambda f: map(f, []),
    ],
    ids=["frompyfunc", "cmp_to_key", "map"],
)
def test_functions_that_an_object_in_c_holds(make: Callable[[Any], Any]) -> None:
    assert first in insides.held_in_c(make(first))


@pytest.mark.parametrize("value", [[first], {"f": first}, {first}, np.array([first]), Slotted()])
def test_what_is_looked_into_elsewhere_holds_nothing_in_c(value: Any) -> None:
    assert insides.held_in_c(value) == []


class Part:
    pass


def test_weak_containers_lead_to_what_is_alive() -> None:
    part, gone = Part(), Part()
    values = weakref.WeakValueDictionary({"a": part, "b": gone})
    keys = weakref.WeakKeyDictionary({part: 1, gone: 2})
    both = weakref.WeakSet([part, gone])
    ref = weakref.ref(part)
    del gone
    assert insides.unweak(values) == {"a": part}
    assert insides.unweak(keys) == {part: 1}
    assert insides.unweak(both) == {part}
    assert insides.unweak(ref) == (part,)
    assert insides.held_in_c(both) == [{part}]
    assert insides.unweak({"a": part}) is None
