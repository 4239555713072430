"""Kinds of elements: what a number looks like in a record, and several of them in a batch.

The reference computes with whole numbers. A kind says, in plain Python and NumPy, which element
stands for a number, and which batch for several. Imports numpy only, so that workers start quickly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

__all__ = ["KINDS", "Kind", "as_objects", "kind_of", "same", "total"]


class Kind:
    """How numbers are written; `decode` undoes `encode`.

    Attributes:
      stacks: whether a batch is made leaf by leaf; otherwise it is an array of objects.
    """

    stacks = True

    def one(self, number: int) -> Any:
        """The element that stands for a number."""
        raise NotImplementedError

    def many(self, numbers: Sequence[int]) -> Any:
        """The batch that `np.stack` for every leaf makes of the elements."""
        raise NotImplementedError

    def numbers(self, element: Any) -> Any:
        """The number, or an array of the numbers, in an element or a batch of them."""
        raise NotImplementedError

    def encode(self, value: Any) -> Any:
        """The element for a number, the batch for a list of numbers or of lists."""
        if isinstance(value, int):
            return self.one(value)
        if self.stacks and all(isinstance(number, int) for number in value):
            return self.many(value)
        return as_objects([self.encode(part) for part in value])

    def decode(self, element: Any) -> Any:
        """The number or the nested list of numbers that `encode` was given."""
        if type(element) is np.ndarray and element.dtype == object:
            return [self.decode(part) for part in element]
        found = self.numbers(element)
        return [int(n) for n in found] if np.ndim(found) else int(found)


def as_objects(elements: Sequence[Any]) -> np.ndarray[Any, Any]:
    """Elements as they are, in an array."""
    out = np.empty(len(elements), object)
    for row, element in enumerate(elements):
        out[row] = element
    return out


def total(value: Any) -> int:
    """The sum over a value that may be a batch."""
    return sum(map(total, value)) if isinstance(value, list) else value


class Number(Kind):
    """Python's int."""

    def one(self, number: int) -> Any:
        return number

    def many(self, numbers: Sequence[int]) -> Any:
        return np.array(numbers, np.int64)

    def numbers(self, element: Any) -> Any:
        return element


class Scalar(Number):
    """A scalar of NumPy."""

    def one(self, number: int) -> Any:
        return np.int32(number)

    def many(self, numbers: Sequence[int]) -> Any:
        return np.array(numbers, np.int32)


class Row(Kind):
    """A row of a matrix."""

    def one(self, number: int) -> Any:
        return np.array([number, -number, 7], np.int64)

    def many(self, numbers: Sequence[int]) -> Any:
        return np.array([[n, -n, 7] for n in numbers], np.int64)

    def numbers(self, element: Any) -> Any:
        return element[..., 0]


class Arrays(Kind):
    """A dict of arrays and scalars."""

    def one(self, number: int) -> Any:
        return {
            "x": np.array([number, number + 1], np.int32),
            "half": np.float32(number / 2),
            "odd": np.bool_(number % 2),
        }

    def many(self, numbers: Sequence[int]) -> Any:
        return {
            "x": np.array([[n, n + 1] for n in numbers], np.int32),
            "half": np.array([n / 2 for n in numbers], np.float32),
            "odd": np.array([n % 2 for n in numbers], np.bool_),
        }

    def numbers(self, element: Any) -> Any:
        return element["x"][..., 0]


class Columns(Kind):
    """A row of a table."""

    def one(self, number: int) -> Any:
        return {"a": np.int64(number), "f": np.float64(number / 4)}

    def many(self, numbers: Sequence[int]) -> Any:
        return {
            "a": np.array(numbers, np.int64),
            "f": np.array([n / 4 for n in numbers], np.float64),
        }

    def numbers(self, element: Any) -> Any:
        return element["a"]


class Dates(Kind):
    """Leaves of types that few have: dates, and an extension type of JAX's."""

    def one(self, number: int) -> Any:
        return {
            "n": np.int64(number),
            "at": np.datetime64(number, "s"),
            "small": np.array([number % 64], ml_dtypes.bfloat16),
        }

    def many(self, numbers: Sequence[int]) -> Any:
        return {
            "n": np.array(numbers, np.int64),
            "at": np.array(numbers, "M8[s]"),
            "small": np.array([[n % 64] for n in numbers], ml_dtypes.bfloat16),
        }

    def numbers(self, element: Any) -> Any:
        return element["n"]


class Pair(NamedTuple):
    """A named tuple, which JAX takes apart."""

    left: Any
    right: Any


class Nested(Kind):
    """Dicts, tuples, named tuples and lists in one another, a None, and text."""

    def one(self, number: int) -> Any:
        return {
            "a": (number, [float(number), {"b": np.array([[number % 9]], np.uint16)}]),
            "name": f"n{number}",
            "none": None,
            "pair": Pair(np.int8(number % 100), ()),
        }

    def many(self, numbers: Sequence[int]) -> Any:
        deep = np.array([[[n % 9]] for n in numbers], np.uint16)
        return {
            "a": (np.array(numbers, np.int64), [np.array(numbers, np.float64), {"b": deep}]),
            "name": as_objects([f"n{n}" for n in numbers]),
            "none": None,
            "pair": Pair(np.array([n % 100 for n in numbers], np.int8), ()),
        }

    def numbers(self, element: Any) -> Any:
        return element["a"][0]


class Text(Kind):
    """Text, of no fixed width."""

    def one(self, number: int) -> Any:
        return f"{number}\0"

    def many(self, numbers: Sequence[int]) -> Any:
        return as_objects([f"{n}\0" for n in numbers])

    def numbers(self, element: Any) -> Any:
        return int(element[:-1])


class NumpyText(Text):
    """Text in scalars of NumPy; a batch has it as Python's."""

    def one(self, number: int) -> Any:
        return np.str_(f"{number}\0")


class Data(Kind):
    """Bytes that end in zeros."""

    def one(self, number: int) -> Any:
        return number.to_bytes(8, "little")

    def many(self, numbers: Sequence[int]) -> Any:
        return as_objects([n.to_bytes(8, "little") for n in numbers])

    def numbers(self, element: Any) -> Any:
        return int.from_bytes(element, "little")


@dataclasses.dataclass
class Thing:
    """An object that nobody knows how to stack."""

    number: int


class Things(Kind):
    """Objects of a class of the user's."""

    stacks = False

    def one(self, number: int) -> Any:
        return Thing(number)

    def numbers(self, element: Any) -> Any:
        return element.number


class Registered(Kind):
    """Objects of a class that is registered with JAX; `module` is imported at first use."""

    def __init__(self, name: str) -> None:
        self.name = name

    def _make(self, x: Any, y: Any) -> Any:
        from tests.property import registered

        return getattr(registered, self.name)(x=x, y=y)

    def one(self, number: int) -> Any:
        return self._make(np.int64(number), np.array([number], np.float32))

    def many(self, numbers: Sequence[int]) -> Any:
        y = np.array([[n] for n in numbers], np.float32)
        return self._make(np.array(numbers, np.int64), y)

    def numbers(self, element: Any) -> Any:
        return element.x


KINDS: dict[str, Kind] = {
    "number": Number(),
    "scalar": Scalar(),
    "row": Row(),
    "arrays": Arrays(),
    "columns": Columns(),
    "dates": Dates(),
    "nested": Nested(),
    "text": Text(),
    "NumPy text": NumpyText(),
    "bytes": Data(),
    "things": Things(),
    "dataclass": Registered("Plain"),
    "struct": Registered("Struct"),
}


def kind_of(name: str) -> Kind:
    """The kind of a name."""
    return KINDS[name]


def same(found: Any, expected: Any) -> bool:
    """Whether two elements are equal in type, dtype, shape and content, all the way down."""
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray | np.generic):
        if found.dtype != expected.dtype or found.shape != expected.shape:
            return False
        if expected.dtype == object:
            return all(map(same, found, expected))
        return bool(np.all(found == expected))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            same(found[key], expected[key]) for key in expected
        )
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if dataclasses.is_dataclass(expected):
        return same(vars(found), vars(expected))
    return bool(found == expected)
