"""What a source keeps of a record is copied; what it has just made is handed on as it is."""

from __future__ import annotations

import collections
from typing import Any, NamedTuple

import numpy as np
import pytest

from grain_jax._algebra.held import detach, separated


class Pair(NamedTuple):
    a: Any
    b: Any


FRESH = {
    "array": lambda: np.zeros(3),
    "list": lambda: [1, [2]],
    "dict": lambda: {"a": [1], "b": {"c": np.ones(2)}},
    "tuple": lambda: ([1], (2, [3])),
    "named tuple": lambda: Pair([1], np.ones(2)),
    "set": lambda: {1, 2},
    "bytearray": lambda: bytearray(b"x"),
    "ordered": lambda: collections.OrderedDict(a=[1]),
    "reshaped": lambda: np.arange(6).reshape(2, 3),
    "over a bytearray": lambda: np.frombuffer(bytearray(8), np.uint8),
    "over a bytearray, reshaped": lambda: {"a": np.frombuffer(bytearray(8), "u1").reshape(2, 4)},
    "matrix": lambda: np.zeros((2, 2)).view(np.matrix),
    "rows of one array": lambda: {"a": np.arange(6).reshape(2, 3)[1]},
}


def parts(value: Any) -> list[Any]:
    """All containers and arrays of a record."""
    if isinstance(value, dict):
        return [value, *(p for v in value.values() for p in parts(v))]
    if isinstance(value, list | tuple):
        inside = [p for v in value for p in parts(v)]
        return inside if isinstance(value, tuple) else [value, *inside]
    return [value] if isinstance(value, np.ndarray | set | bytearray) else []


def _address(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def memory(value: Any) -> list[int]:
    return [_address(p) if isinstance(p, np.ndarray) else id(p) for p in parts(value)]


@pytest.mark.parametrize("kind", FRESH)
def test_what_was_just_made_is_handed_on(kind: str) -> None:
    records = [FRESH[kind]()]
    before = memory(records[0])
    (record,) = separated(records)
    assert memory(record) == before


def test_arrays_over_bytes_are_handed_on() -> None:
    data = bytes(8)
    kept = np.frombuffer(data, np.uint8)
    for look in (separated, lambda elements: detach(elements, 0)):
        elements = [kept, {"a": kept[2:]}]
        look(elements)
        assert memory(elements[0]) == memory(kept)
        assert memory(elements[1]["a"]) == memory(kept[2:])


@pytest.mark.parametrize("kind", FRESH)
def test_what_a_step_just_made_is_handed_on(kind: str) -> None:
    elements = [FRESH[kind]()]
    before = memory(elements[0])
    detach(elements, 0)
    assert memory(elements[0]) == before


@pytest.mark.parametrize("kind", FRESH)
@pytest.mark.parametrize("inside", [False, True])
def test_what_is_kept_is_copied(kind: str, inside: bool) -> None:
    kept = FRESH[kind]()
    (record,) = separated([{"x": 1, "kept": kept} if inside else kept])
    record = record["kept"] if inside else record
    assert type(record) is type(kept)
    assert repr(record) == repr(kept)
    shared = set(memory(record)) & set(memory(kept))
    arrays = [part for part in parts(record) if isinstance(part, np.ndarray)]
    assert not any(array.flags.writeable for array in arrays)
    assert shared == set(map(_address, arrays))


def test_rows_of_an_array_that_is_kept_are_read_only() -> None:
    kept = np.arange(12).reshape(3, 4)
    first, second, third = separated([{"x": kept[1]}, (kept[1:], 3), Pair(kept[0], [kept])])
    for array in (first["x"], second[0], third.a, third.b[0]):
        assert not array.flags.writeable
    assert kept.flags.writeable


def test_rows_of_an_array_that_nobody_keeps_stay_writable() -> None:
    made = np.arange(12).reshape(3, 4)
    records: list[Any] = [{"x": made[0]}, (made[1], 3), Pair(made[2], [])]
    del made
    first, second, third = separated(records)
    for number, array in enumerate((first["x"], second[0], third.a)):
        array += 100
        assert array.tolist() == (np.arange(4) + 4 * number + 100).tolist()


def test_a_record_that_comes_twice_is_two() -> None:
    once = {"a": [1]}
    records = separated([once, once])
    del once
    records[0]["a"].append(2)
    assert records[1] == {"a": [1]}


def test_numbers_and_objects_stay_themselves() -> None:
    thing = object()
    assert separated([1, "a", None, thing]) == [1, "a", None, thing]


def detached(elements: list[Any], row: int = 0) -> Any:
    detach(elements, row)
    return elements[row]


@pytest.mark.parametrize("kind", FRESH)
def test_what_an_operation_has_just_made_is_handed_on(kind: str) -> None:
    elements = [FRESH[kind]()]
    before = memory(elements[0])
    assert memory(detached(elements)) == before


@pytest.mark.parametrize("kind", FRESH)
@pytest.mark.parametrize("inside", [False, True])
def test_what_an_operation_keeps_is_copied(kind: str, inside: bool) -> None:
    kept = FRESH[kind]()
    element = detached([{"x": 1, "kept": kept} if inside else kept])
    element = element["kept"] if inside else element
    assert type(element) is type(kept)
    assert repr(element) == repr(kept)
    assert not set(memory(element)) & set(memory(kept))


def test_rows_of_an_array_that_an_operation_keeps_are_copied() -> None:
    kept = np.arange(12).reshape(3, 4)
    element = detached([{"x": kept[1], "y": (kept[1:], 3)}])
    kept[:] = -7
    assert element["x"].tolist() == [4, 5, 6, 7]
    assert element["y"][0].tolist() == [[4, 5, 6, 7], [8, 9, 10, 11]]


def test_two_elements_never_share_what_is_in_them() -> None:
    array, inner = np.zeros(2), {"a": [1]}
    elements: list[Any] = [{"x": array, "y": inner}, {"x": array, "y": inner}, array]
    del array, inner
    for row in range(3):
        detach(elements, row)
    elements[0]["x"] += 1
    elements[0]["y"]["a"].append(2)
    assert elements[1]["x"].tolist() == elements[2].tolist() == [0, 0]
    assert elements[1]["y"] == {"a": [1]}


def test_arrays_that_nobody_may_write_to_are_not_copied() -> None:
    kept = np.arange(4)
    kept.flags.writeable = False
    assert _address(detached([{"x": kept[1:]}])["x"]) == _address(kept[1:])
