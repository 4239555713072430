"""Equal values have equal descriptions in any process, and different ones differ where they do."""

from __future__ import annotations

import collections
import copy
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import pathlib
import pickle
import re
import subprocess
import sys
import threading
import types
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from grain_jax._execution.engine.describer import Describer
from grain_jax._execution.engine.likeness import Description, difference


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Word(str):
    """A class of the user's."""


@dataclasses.dataclass
class Config:
    scale: int = 1
    unnamed: int = 1


@dataclasses.dataclass(slots=True)
class Slots:
    scale: int = 1


class Point(collections.namedtuple("Point", "x y")):
    pass


def by_default(x: Any, scale: int = 1, memory: dict[str, int] = {}) -> Any:  # noqa: B006
    return x * scale


def compiled(text: str) -> Any:
    scope: dict[str, Any] = {"__name__": "mine"}
    exec(text, scope)
    return scope["f"]


def times(scale: int) -> Callable[[Any], Any]:
    made: Callable[[Any], Any] = compiled("def f(scale):\n    return lambda x: x * scale")(scale)
    return made


def plus_one(x: Any) -> Any:
    return x + 1


def plus_two(x: Any) -> Any:
    return x + 2


def described(value: Any) -> Description:
    found = Describer(frozenset({"scale", "inner"})).describe(value)
    assert pickle.loads(pickle.dumps(found)) == found
    return found


# Pairs of values that differ.
DIFFERENT = {
    "int": (1, 7),
    "large int": (10**90, 10**90 + 1),
    "huge int": (1 << 100_000, 1 + (1 << 100_000)),
    "int and bool": (1, True),
    "int and float": (1, 1.0),
    "float": (1.5, float("nan")),
    "zeros": (0.0, -0.0),
    "complex": (1j, 2j),
    "None": (None, 0),
    "str": ("a", "b"),
    "long str": ("a" * 1000 + "b", "a" * 1000 + "c"),
    "surrogate": ("\ud800", "\ud801"),
    "bytes": (b"a", b"b"),
    "bytearray": (bytearray(b"a"), bytearray(b"b")),
    "str subclass": (Word("a"), "a"),
    "tuple": ((1, 2), (1, 3)),
    "tuple and list": ((1, 2), [1, 2]),
    "lengths": ([1, 2], [1, 2, 3]),
    "nested": ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}),
    "keys": ({"a": 1}, {"b": 1}),
    "kinds of keys": ({1: 1}, {"1": 1}),
    "order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
    "set": ({1, 2}, {1, 3}),
    "set of text": ({"a", "b"}, {"a", "c"}),
    "frozenset": (frozenset({1}), {1}),
    "named tuple": (Point(1, 2), Point(1, 3)),
    "deque": (collections.deque([1]), collections.deque([2])),
    "counter": (collections.Counter("aab"), collections.Counter("ab")),
    "proxy": (types.MappingProxyType({"a": 1}), types.MappingProxyType({"a": 2})),
    "array": (np.array([1, 2]), np.array([1, 3])),
    "dtype": (np.array([1, 2]), np.array([1, 2], np.int32)),
    "shape": (np.zeros((2, 3)), np.zeros((3, 2))),
    "strides": (np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3, order="F")),
    "large array": (np.zeros(1000, "u1"), np.r_[np.zeros(999, "u1"), [1]].astype("u1")),
    "numpy scalar": (np.float32(1.5), np.float32(2.5)),
    "numpy and python": (np.float64(1.5), 1.5),
    "0-d": (np.array(1), np.array(2)),
    "datetime64": (np.datetime64("2020-01-01"), np.datetime64("2020-01-02")),
    "enum": (Color.RED, Color.BLUE),
    "path": (pathlib.Path("/a"), pathlib.Path("/b")),
    "pattern": (re.compile("a"), re.compile("a", re.I)),
    "date": (datetime.date(2020, 1, 1), datetime.date(2020, 1, 2)),
    "timedelta": (datetime.timedelta(1), datetime.timedelta(2)),
    "decimal": (decimal.Decimal("1.0"), decimal.Decimal("1.00")),
    "fraction": (fractions.Fraction(1, 2), fractions.Fraction(1, 3)),
    "uuid": (uuid.UUID(int=1), uuid.UUID(int=2)),
    "range": (range(3), range(4)),
    "slice": (slice(3), slice(4)),
    "dtype itself": (np.dtype("i4"), np.dtype("i8")),
    "dataclass": (Config(1), Config(2)),
    "slots": (Slots(1), Slots(2)),
    "namespace": (types.SimpleNamespace(scale=1), types.SimpleNamespace(scale=2)),
    "inside an object": ([Config(Config(1))], [Config(Config(2))]),
    "function": (plus_one, plus_two),
    "class": (Config, Slots),
    "module": (np, re),
    "ufunc": (np.add, np.multiply),
    "builtin": (len, max),
    "default": (by_default, functools.partial(by_default, scale=2)),
    "closure": (times(2), times(3)),
    "partial": (functools.partial(plus_one, 1), functools.partial(plus_one, 2)),
    "method": (Config(1).__repr__, Config(2).__repr__),
    "cache": (functools.cache(plus_one), functools.cache(plus_two)),
    "many": (list(range(5_000)), [*range(4_999), 0]),
    "many words": ([f"w{n}" for n in range(5_000)], [f"w{n}" for n in range(4_999)] + ["x"]),
    "many in a set": ({*range(5_000)}, {*range(1, 5_001)}),
    "many in a dict": (dict.fromkeys(range(500), "a"), dict.fromkeys(range(499), "a") | {499: "b"}),
    "many lists": ([[n] for n in range(900)], [[n] for n in range(899)] + [[0]]),
    "replaced by an object": (Config(1), plus_one),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_values_differ_and_equal_ones_do_not(name: str) -> None:
    for one in DIFFERENT[name]:
        try:
            other = copy.deepcopy(one)
        except TypeError:
            other = one
        assert difference(described(one), described(other)) is None
    first, second = map(described, DIFFERENT[name])
    for here, there in ((first, second), (second, first)):
        found = difference(here, there)
        assert found is not None
        where, mine, other_text = found
        assert mine != other_text
        assert len(where) < 200
        assert len(mine) < 200


@pytest.mark.parametrize(
    ("here", "there", "told"),
    [
        (7, 1, ("", "7", "1")),
        ({"a": {"b": 7}}, {"a": {"b": 1}}, ("['a']['b']", "7", "1")),
        ([1, 2], [1, 3], ("[1]", "2", "3")),
        ([1], [1, 3], ("[1]", "missing", "3")),
        (Config(7), Config(1), (".scale", "7", "1")),
        ((1,), [1], ("", "(1,)", "[1]")),
        ({"a": 1, "b": 2}, None, ("", "{'a': 1, 'b': 2}", "None")),
        ({1}, set(), ("", "{1}", "set()")),
        (Config(7), None, ("", "Config(scale=7)", "None")),
        ([0] * 99, None, ("", "[" + "0, " * 26 + "…", "None")),
        (
            plus_one,
            plus_two,
            ("", f"function {__name__}.plus_one", f"function {__name__}.plus_two"),
        ),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, ("", "in the order ['a'], ['b']", None)),
    ],
)
def test_what_is_told(here: Any, there: Any, told: tuple[str, str, str | None]) -> None:
    found = difference(described(here), described(there))
    assert found is not None
    where, mine, other = told
    assert (found[0], found[1][:80]) == (where, mine)
    assert other is None or found[2] == other


def test_what_cannot_be_compared_counts_as_equal() -> None:
    first, second = object(), threading.Lock()
    for here, there in [(first, second), ([first], [second])]:
        assert difference(described(here), described(there)) is None
    for other in (None, 3, plus_one, Config(1)):
        assert difference(described(first), described(other)) is not None
        assert difference(described(other), described(first)) is not None
    assert difference(described(first), described(None)) == ("", "an object of type object", "None")


def test_attributes_that_no_code_mentions_are_not_compared() -> None:
    assert difference(described(Config(1, 2)), described(Config(1, 3))) is None


def test_no_code_of_the_class_is_called() -> None:
    class Loud(dict):  # type: ignore[type-arg]
        def _shout(self, *_: Any) -> Any:
            raise AssertionError

        __getattr__ = __getattribute__ = __iter__ = items = keys = __repr__ = _shout  # type: ignore
        __len__ = __eq__ = __hash__ = __bool__ = __getitem__ = _shout  # type: ignore

    loud = Loud(scale=1)
    assert described(loud).kind == "mapping"
    assert difference(described(loud), described(Loud(scale=2)))
    assert difference(described([loud]), described([Loud(scale=1)])) is None


def test_knots_and_depths_and_lengths_end() -> None:
    knot: list[Any] = [1]
    knot.append(knot)
    assert described(knot).kind == "list"
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert described(deep).kind == "list"
    long = described(range_of := list(range(1_000_000)))
    assert long.kind == "large"
    assert len(pickle.dumps(long)) < 1_000
    range_of[3] = -1
    assert difference(long, described(range_of))


def test_sets_have_no_order() -> None:
    program = (
        "from tests.execution.engine.test_describer import described\n"
        "print(described({str(n) for n in range(50)} | {frozenset('abc'), (1, 'x')}))\n"
        "import hashlib, pickle\n"
        'f = eval(\'lambda x: x in {"a", "b", "c", "d", (1, "e")}\')\n'
        "f.__globals__['__name__'] = 'mine'\n"
        "print(repr(described({*'abcdefgh'})), repr(described(f)))\n"
        "print(repr(described({str(n) for n in range(5000)})))\n"
        "print(repr(described({(str(n),) for n in range(5000)})))"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PATH": "/usr/bin"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(outputs) == 1


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("def f(x): return x", "\n\n\ndef f(x):\n    # a remark\n    return x", True),
        ("def f(x):\n  'old'\n  return x + 1", "def f(x):\n  'new'\n  return x + 1", True),
        ("def f(x): return x + 1", "def f(x): return x + 2", False),
        ("def f(x): return x.a", "def f(x): return x.b", False),
        ("def f(x): return x + 1", "def f(x): return x - 1", False),
        ("def f(x, k=1): return x", "def f(x, k=2): return x", False),
        ("def f(x, *, k=1): return x", "def f(x, *, k=2): return x", False),
        ("def f(x): return [y + 1 for y in x]", "def f(x): return [y + 2 for y in x]", False),
        ("def f(x): return lambda: 1", "def f(x): return lambda: 2", False),
        ("def f(x): return 'a'", "def f(x): return 'b'", False),
        ("def f(x): return 1", "def f(x): return 1.0", False),
        ("def f(a, b): return a", "def f(b, a): return b", False),
        ("def f(x): return x", "def f(x, /): return x", False),
    ],
)
def test_code_is_compared_by_what_it_does(first: str, second: str, same: bool) -> None:
    found = difference(described(compiled(first)), described(compiled(second)))
    assert (found is None) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.array([1, "a"], object), np.array([6, "a"], object)),
        (np.array([[1, None]], object), np.array([[1], [None]], object)),
        (
            datetime.timezone(datetime.timedelta(hours=1)),
            datetime.timezone(datetime.timedelta(hours=2)),
        ),
    ],
)
def test_arrays_of_objects_and_time_zones_are_compared(one: Any, other: Any) -> None:
    describer = Describer(frozenset())
    assert describer.describe(one) == describer.describe(copy.deepcopy(one))
    assert describer.describe(one) != describer.describe(other)
