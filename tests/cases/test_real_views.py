"""What reads its memory by a view of it gives the plain loop's stream, in workers, too."""

from __future__ import annotations

import array
import collections
import ctypes
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import grain_jax as grain

Fill = Callable[[int], None]
Read = Callable[[], Any]


class Reader:
    """Writes each record into memory of its own, and reads it by something that lies there."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        # What is looked at comes first in half of the kinds, and behind its memory in the others.
        if kind == "reshaped":
            self.buffer: Any = np.zeros(4, np.uint8)
            self.view: Any = self.buffer.reshape(2, 2)
        elif kind == "large":
            self.buffer = np.zeros(1 << 21, np.uint8)
            self.view = self.buffer[1 << 20 :].reshape(-1, 2)
        elif kind == "whole behind part":
            whole = np.zeros((4, 3), np.int64)
            self.view, self.buffer = whole[1:3, ::2], whole
        elif kind == "two parts":
            whole = np.zeros(6, np.float32)
            self.buffer, self.view = whole[:4], whole[2:]
        elif kind == "frozen":
            self.buffer = np.zeros(4)
            self.view = self.buffer[:]
            self.view.flags.writeable = False
        elif kind == "rows":
            self.buffer = np.zeros((3, 3))
            self.view = list(self.buffer)
        elif kind == "field":
            self.buffer = np.zeros(2, [("a", "<i4"), ("b", "<f4")])
            self.view = self.buffer["b"]
        elif kind == "windows":
            self.buffer = np.zeros(6)
            self.view = np.lib.stride_tricks.sliding_window_view(self.buffer, 2)
        elif kind == "swapped":
            self.buffer = np.zeros(4, ">i4")
            self.view = self.buffer[::2]
        elif kind == "matrix":
            self.buffer = np.zeros((2, 2))
            self.view = self.buffer.view(np.matrix)
        elif kind == "memoryview of an array":
            self.buffer = np.zeros((2, 3), np.int16)
            self.view = memoryview(self.buffer)
        elif kind == "strided memoryview":
            self.buffer = bytearray(6)
            self.view = memoryview(self.buffer)[::2]
        else:
            self.buffer = {
                "bytearray": bytearray(4),
                "memoryview": bytearray(4),
                "array.array": array.array("i", [0] * 4),
                "ctypes": (ctypes.c_int * 4)(),
            }[kind]
            self.view = (
                (
                    memoryview(self.buffer)[1:3]
                    if kind == "memoryview"
                    else np.frombuffer(self.buffer)
                )
                if kind != "bytearray"
                else np.frombuffer(self.buffer, np.uint8)[1:]
            )

    def read(self, number: int) -> Any:
        buffer = self.buffer
        if isinstance(buffer, np.ndarray):
            buffer[...] = number
        else:
            for at in range(len(buffer)):
                buffer[at] = number
        return self.seen(), type(self.view).__name__

    def seen(self) -> Any:
        if isinstance(self.view, list):
            return [row.tolist() for row in self.view]
        found = np.asarray(self.view)
        return found[:3].tobytes(), found.shape, found.dtype.str, found.flags.writeable


KINDS = [
    "reshaped", "large", "whole behind part", "two parts", "frozen", "rows", "field", "windows",
    "swapped", "matrix", "memoryview of an array", "strided memoryview", "bytearray", "memoryview",
    "array.array", "ctypes",
]  # fmt: skip


class Step(Reader, grain.transforms.Map):
    def map(self, number: int) -> Any:
        return self.read(number)


class Source(Reader):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return self.read(index + 1)


@pytest.mark.parametrize("workers", [0, 2])
def test_views_stay_views_of_their_memory(workers: int, no_process_left: None) -> None:
    steps, sources = [Step(kind) for kind in KINDS], [Source(kind) for kind in KINDS]
    expected = [
        [(Reader(kind).read(n), Reader(kind).read(n)) for kind in KINDS] for n in (1, 2, 3, 4)
    ]

    class All:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return index + 1, [source[index] for source in sources]

    def both(element: Any) -> Any:
        number, read = element
        return list(zip([step.map(number) for step in steps], read, strict=True))

    dataset = grain.MapDataset.source(All()).map(both).to_iter_dataset()
    options = grain.MultiprocessingOptions(num_workers=workers)
    assert list(dataset.mp_prefetch(options)) == expected


@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
@pytest.mark.parametrize("memory", ["", "file"])
def test_in_each_way_of_starting(
    mode: str, memory: str, monkeypatch: pytest.MonkeyPatch, no_process_left: None
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MODE", mode)
    if memory:
        monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", memory)
    kinds = ["reshaped", "large", "bytearray", "windows"]
    steps = [Step(kind) for kind in kinds]
    dataset = grain.MapDataset.range(1, 5).map(lambda n: [step.map(n) for step in steps])
    stream = dataset.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    expected = [[Reader(kind).read(n) for kind in kinds] for n in (1, 2, 3, 4)]
    assert list(stream) == expected


class Tables:
    """Looks at dicts by views of them, and at a list by its methods."""

    def __init__(self) -> None:
        self.table: dict[int, int] = {}
        self.names, self.values, self.items = (
            self.table.keys(),
            self.table.values(),
            self.table.items(),
        )
        self.ordered: Any = collections.OrderedDict()
        self.first = self.ordered.keys()
        self.todo: list[int] = []
        self.push = self.todo.append

    def __call__(self, number: int) -> Any:
        self.table.clear()
        self.table[number] = self.ordered[0] = -number
        self.push(number)
        views = list(self.names), list(self.values), list(self.items), list(self.first)
        return views, self.todo.pop()


@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_dicts_and_methods_of_lists(workers: int, no_process_left: None) -> None:
    dataset = grain.MapDataset.range(1, 5).map(Tables()).to_iter_dataset()
    expected = [(([n], [-n], [(n, -n)], [0]), n) for n in (1, 2, 3, 4)]
    options = grain.MultiprocessingOptions(num_workers=workers)
    assert list(dataset.mp_prefetch(options)) == expected


def test_views_of_a_dict_that_stays_behind_take_nothing_else_along(no_process_left: None) -> None:
    table = {"a": (n for n in range(3)), "b": 1}  # a generator does not pickle
    names = table.keys()
    dataset = grain.MapDataset.range(2).map(lambda n: [*names][n]).to_iter_dataset()
    stream = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    assert list(stream) == ["a", "b"]


class Stream:
    def __init__(self) -> None:
        self.file = io.BytesIO(bytes(4))
        self.view = self.file.getbuffer()

    def __call__(self, number: int) -> int:
        self.view[0] = number
        return self.file.getvalue()[0]


def test_a_stream_with_a_view_of_its_memory_is_refused(no_process_left: None) -> None:
    dataset = grain.MapDataset.range(1, 5).map(Stream()).to_iter_dataset()
    assert list(dataset) == [1, 2, 3, 4]
    stream = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    with pytest.raises(TypeError, match=r"in the same memory \(BytesIO, memoryview\).*inside the"):
        list(stream)


@pytest.mark.parametrize("workers", [0, 2])
def test_views_by_way_of_something_that_stays_behind(workers: int, no_process_left: None) -> None:
    data = bytearray(4)
    numbers = (ctypes.c_uint8 * 4).from_buffer(data)
    views = np.frombuffer(numbers, np.uint8), np.frombuffer(data, np.uint8)

    def step(number: int) -> int:
        data[0] = number
        return int(views[0][0] + views[1][0])

    dataset = grain.MapDataset.range(1, 5).map(step).to_iter_dataset()
    options = grain.MultiprocessingOptions(num_workers=workers)
    assert list(dataset.mp_prefetch(options)) == [2, 4, 6, 8]


def test_two_objects_of_one_memory_are_refused_if_none_is_a_view(no_process_left: None) -> None:
    data = bytearray(4)
    numbers = (ctypes.c_uint8 * 4).from_buffer(data)
    views = np.frombuffer(numbers, np.uint8), np.frombuffer(data, np.uint8)

    def step(number: int) -> int:
        data[0] = number
        return int(views[0][0] + views[1][0] + numbers[0])

    dataset = grain.MapDataset.range(1, 5).map(step).to_iter_dataset()
    assert list(dataset) == [3, 6, 9, 12]
    stream = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=1))
    with pytest.raises(TypeError, match=r"in the same memory \(bytearray, .*, ndarray\)"):
        list(stream)
