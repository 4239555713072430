"""What code returns of memory of its own, by whatever way it lies there, is as it was then."""

from __future__ import annotations

import array
import ctypes
import io
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain


def windows(buffer: Any) -> Any:
    return np.lib.stride_tricks.sliding_window_view(buffer, 2)


# What is written to, and what is made of it for each record.
KINDS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "reshaped": (lambda: np.zeros(4, np.uint8), lambda b: b.reshape(2, 2)),
    "bytearray": (lambda: bytearray(4), lambda b: np.frombuffer(b, np.uint8)),
    "bytearray, reshaped": (
        lambda: bytearray(4),
        lambda b: np.frombuffer(b, np.uint8).reshape(2, 2),
    ),
    "by a memoryview": (
        lambda: memoryview(bytearray(4)),
        lambda b: np.asarray(b[1:]).reshape(3, 1),
    ),
    "field": (lambda: np.zeros(4, [("a", "u1"), ("b", "f4")])["a"], lambda b: b[1:]),
    "rows": (lambda: np.zeros((4, 2), np.uint8), list),
    "memoryview": (lambda: bytearray(4), memoryview),
    "read-only memoryview": (lambda: bytearray(4), lambda b: memoryview(b).toreadonly()),
    "memoryview of an array": (lambda: np.zeros(4, np.uint8), memoryview),
    "windows": (lambda: np.zeros(4), windows),
    "one of the windows": (lambda: np.zeros(4), lambda b: windows(b)[1]),
    "array.array": (lambda: array.array("B", bytes(4)), lambda b: b),
    "over an array.array": (lambda: array.array("B", bytes(4)), lambda b: np.frombuffer(b, "u1")),
    "ctypes": (lambda: (ctypes.c_uint8 * 4)(), np.ctypeslib.as_array),
    "ctypes, frombuffer": (lambda: (ctypes.c_uint8 * 4)(), lambda b: np.frombuffer(b, "u1")),
    "mmap": (lambda: mmap.mmap(-1, 4), lambda b: np.frombuffer(b, "u1")),
    "BytesIO": (lambda: io.BytesIO(bytes(4)).getbuffer(), lambda b: np.frombuffer(b, "u1")),
    "matrix": (lambda: np.zeros((2, 2)), lambda b: b.view(np.matrix)),
    "part of a matrix": (lambda: np.zeros((2, 2)).view(np.matrix), lambda b: b[:1]),
}
# A worker cannot have these, which code there makes at its first call.
LAZY = ("mmap", "BytesIO")


class Keeper:
    def __init__(self, kind: str, count: int) -> None:
        self.make, self.look = KINDS[kind]
        self.buffer = None if kind in LAZY else self.make()
        self.count = count

    def read(self, number: int) -> Any:
        if self.buffer is None:
            self.buffer = self.make()
        if isinstance(self.buffer, np.ndarray):
            self.buffer[...] = number
        else:
            for at in range(len(self.buffer)):
                self.buffer[at] = number
        return self.look(self.buffer)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(part) for name, part in value.items()}
    return (
        [plain(part) for part in value] if isinstance(value, list) else np.asarray(value).tolist()
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_step_or_a_source_returns(kind: str, workers: int, no_process_left: None) -> None:
    count = 12
    reader = Keeper(kind, count)
    expected = [plain(reader.read(number)) for number in range(count)]
    keeper = Keeper(kind, count)
    options = grain.MultiprocessingOptions(num_workers=workers)
    for dataset in (
        grain.MapDataset.range(count).map(lambda number: keeper.read(number)),
        grain.MapDataset.source(Keeper(kind, count)),
        grain.MapDataset.range(count).map(lambda number: {"a": keeper.read(number), "b": 1}),
    ):
        found = [plain(value) for value in dataset.to_iter_dataset().mp_prefetch(options)]
        assert [one["a"] if isinstance(one, dict) else one for one in found] == expected
    if kind in ("reshaped", "ctypes", "bytearray, reshaped", "part of a matrix"):
        batches = grain.MapDataset.source(Keeper(kind, count)).to_iter_dataset().batch(5)
        rows = [row.tolist() for batch in batches.mp_prefetch(options) for row in batch]
        assert rows == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("rows", [4, 1 << 15])
def test_rows_of_a_map_are_arrays(
    rows: int, workers: int, tmp_path: Path, no_process_left: None
) -> None:
    path = tmp_path / "rows"
    np.arange(2 * rows, dtype="f4").tofile(path)

    class Rows:
        def __init__(self, mode: Any) -> None:
            self.map = np.memmap(path, "f4", mode, shape=(rows, 2))

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            row = self.map[index]
            return {"row": row, "copy": row.copy(), "both": [row[:1], (row,)]}

    for mode in ("r", "r+"):
        stream = grain.MapDataset.source(Rows(mode)).to_iter_dataset()
        options = grain.MultiprocessingOptions(num_workers=workers)
        for number, element in enumerate(stream.mp_prefetch(options)):
            parts = element["row"], element["copy"], element["both"][0], element["both"][1][0]
            assert {type(part) for part in parts} == {np.ndarray}
            expected = [2.0 * number, 2.0 * number + 1]
            assert [part.tolist() for part in parts] == [expected, expected, expected[:1], expected]


def test_no_step_writes_to_a_file_that_is_mapped_for_writing(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    np.zeros(8).tofile(path)

    class Rows:
        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> Any:
            return np.memmap(path, mode="r+", shape=(4, 16))[index]

    def edit(row: Any) -> Any:
        row[...] = 1
        return row

    with pytest.raises(ValueError, match="read-only"):
        list(grain.MapDataset.source(Rows()).map(edit))
    assert not any(path.read_bytes())
