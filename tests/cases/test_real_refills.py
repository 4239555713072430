"""Readers that write each record into the memory of the one before give the plain loop's stream."""

from __future__ import annotations

import array
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import grain_jax as grain

COUNT = 60


class File:
    """Reads each row of a file into one buffer."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.buffer = bytearray(16)
        self.file: Any = None

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = open(self.path, "rb")  # noqa: SIM115
        self.file.seek(16 * index)
        self.file.readinto(self.buffer)
        return self.record()

    def record(self) -> Any:
        return np.frombuffer(self.buffer, "<i4")

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def __reduce__(self) -> Any:
        return type(self), (self.path,)


class Views(File):
    def record(self) -> Any:
        return memoryview(self.buffer).cast("i")


class Rows:
    """Makes rows in memory of its own, in one of several ways."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.row = np.zeros(4, np.int32)
        self.ring = np.zeros((4, 4), np.int32)
        self.turn = 0
        self.record: dict[str, Any] = {}
        self.items: list[Any] = []
        self.array = array.array("i", [0] * 4)
        self.bytes = bytearray(16)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        found = row(index)
        if self.kind == "array":
            np.copyto(self.row, found)
            return self.row
        if self.kind == "part":
            self.row[:] = found
            return {"x": self.row[:3], "y": index}
        if self.kind == "ring":
            self.turn = (self.turn + 1) % 4
            self.ring[self.turn] = found
            return {"x": self.ring[self.turn]}
        if self.kind == "dict":
            self.record.update(x=found, y=index)
            return self.record
        if self.kind == "list":
            self.items[:] = found.tolist()
            return self.items
        if self.kind == "array.array":
            self.array[:] = array.array("i", found.tolist())
            return self.array
        self.bytes[:] = found.tobytes()
        return self.bytes


class Hdf5:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None
        self.row = np.zeros(4, np.int32)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = h5py.File(self.path)
        self.file["rows"].read_direct(self.row, np.s_[index])
        return self.row

    def close(self) -> None:
        if self.file is not None:
            self.file.close()

    def __reduce__(self) -> Any:
        return type(self), (self.path,)


class Many(Rows):
    """Answers for several records in one call, in one array."""

    def __getitems__(self, indices: list[int]) -> Any:
        for place, index in enumerate(indices):
            self.space[place] = row(index)
        return list(self.space[: len(indices)])

    def __getbatch__(self, indices: Any) -> Any:
        self.__getitems__(indices.tolist())
        return self.space[: len(indices)]

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.space = np.zeros((COUNT, 4), np.int32)


class Indexed(grain.MapDataset[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.row = np.zeros(4, np.int32)

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        self.row[:] = row(index % COUNT)
        return self.row


class Stream(grain.IterDataset[Any]):
    def __iter__(self) -> Any:
        return Stepping()


class Stepping(grain.DatasetIterator[Any]):
    def __init__(self) -> None:
        super().__init__()
        self.row = np.zeros(4, np.int32)
        self.place = 0

    def __next__(self) -> Any:
        if self.place == COUNT:
            raise StopIteration
        self.row[:] = row(self.place)
        self.place += 1
        return self.row

    def get_state(self) -> dict[str, Any]:
        return {"place": self.place}

    def set_state(self, state: dict[str, Any]) -> None:
        self.place = state["place"]


def row(index: int) -> Any:
    return np.arange(4, dtype=np.int32) + 10 * index


def plain(record: Any) -> Any:
    if isinstance(record, dict):
        return {key: plain(value) for key, value in record.items()}
    if isinstance(record, bytearray):
        return np.frombuffer(record, np.int32).tolist()
    return np.asarray(record).tolist()


def elements(make: Callable[[], Any], workers: int, **settings: Any) -> list[Any]:
    """The elements, looked at when all of them are there."""
    source = make()
    with grain.load(source, num_epochs=1, worker_count=workers, **settings) as loader:
        return list(map(plain, list(loader)))


@pytest.fixture
def files(tmp_path: Path) -> Path:
    rows = np.stack([row(index) for index in range(COUNT)])
    (tmp_path / "rows.bin").write_bytes(rows.tobytes())
    with h5py.File(tmp_path / "rows.h5", "w") as file:
        file["rows"] = rows
    return tmp_path


MEMORY = ["array", "part", "ring", "dict", "list", "array.array", "bytes"]
READERS = [*MEMORY, "file", "views", "hdf5", "many"]


def maker(kind: str, files: Path) -> Callable[[], Any]:
    if kind in MEMORY:
        return lambda: Rows(kind)
    if kind == "many":
        return lambda: Many("array")
    made: Any = {"file": File, "views": Views, "hdf5": Hdf5}[kind]
    return lambda: made(files / ("rows.h5" if kind == "hdf5" else "rows.bin"))


def wanted(kind: str) -> list[Any]:
    rows = [row(index).tolist() for index in range(COUNT)]
    if kind == "part":
        return [{"x": one[:3], "y": index} for index, one in enumerate(rows)]
    if kind == "dict":
        return [{"x": one, "y": index} for index, one in enumerate(rows)]
    return [{"x": one} for one in rows] if kind == "ring" else rows


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", READERS)
def test_single_records(kind: str, workers: int, files: Path, no_process_left: None) -> None:
    assert elements(maker(kind, files), workers) == wanted(kind)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [k for k in READERS if k not in ("list", "array.array", "bytes")])
def test_batches(kind: str, workers: int, files: Path, no_process_left: None) -> None:
    got = elements(maker(kind, files), workers, batch_size=4)
    if kind in ("part", "dict", "ring"):
        keys = got[0].keys()
        got = [{key: batch[key][i] for key in keys} for batch in got for i in range(4)]
    else:
        got = [one for batch in got for one in batch]
    assert got == wanted(kind)


def rows_of(dataset: grain.IterDataset[Any]) -> Any:
    """The rows of all elements, looked at when all of them are there."""
    with iter(dataset) as iterator:
        return np.stack(list(iterator)).reshape(-1, 4).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_own_indexed_datasets(workers: int, no_process_left: None) -> None:
    options = grain.MultiprocessingOptions(num_workers=workers)
    for dataset in (Indexed().to_iter_dataset(), Indexed().to_iter_dataset().batch(4)):
        assert rows_of(dataset.mp_prefetch(options)) == wanted("array")


def test_own_streams() -> None:
    for dataset in (Stream().map(lambda x: x + 0), Stream().batch(4)):
        assert rows_of(dataset) == wanted("array")


def test_behind_the_device_stage(files: Path) -> None:
    with (
        grain.load(File(files / "rows.bin"), num_epochs=1, batch_size=4) as loader,
        grain.prefetch_to_device(loader) as batches,
    ):
        got = [one for batch in list(batches) for one in np.asarray(batch).tolist()]
    assert got == wanted("file")


class Shared:
    """Hands out what it keeps, and never changes it."""

    def __init__(self) -> None:
        self.rows = np.stack([row(index) for index in range(COUNT)])
        self.scale = np.ones(3)
        self.read: list[int] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return {"x": self.rows[index], "scale": self.scale, "n": index}


def test_what_records_share_and_nobody_changes_is_no_refill() -> None:
    source = Shared()
    got = list(grain.load(source, num_epochs=1, batch_size=4))
    assert [one for batch in got for one in batch["x"].tolist()] == source.rows.tolist()
    # Records of a block share `scale`: they are compared once, and rows are never copied.
    assert source.read.count(0) <= 3
    single = next(iter(grain.load(source, num_epochs=1)))
    assert np.shares_memory(single["x"], source.rows)


class Afresh(Shared):
    def __getitem__(self, index: int) -> Any:
        self.read.append(index)
        return {"x": self.rows[index] + 0, "n": index}


@pytest.mark.parametrize("settings", [{}, {"batch_size": 4}])
def test_a_source_that_makes_its_records_is_asked_once(settings: dict[str, int]) -> None:
    source = Afresh()
    for _ in grain.load(source, num_epochs=1, **settings):
        pass
    assert source.read == list(range(COUNT))


class Locked:
    """An object that nobody can copy, filled anew for each record."""

    def __init__(self) -> None:
        self.place = 0
        self.module = sys

    def __iter__(self) -> Iterator[int]:
        return iter([self.place])


class Objects:
    def __init__(self) -> None:
        self.one = {"row": np.zeros(2), "with": Locked()}

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.one["row"][:] = index
        return self.one


def test_records_that_cannot_be_copied_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="Objects of length 60 writes its records into the same"):
        list(grain.load(Objects(), num_epochs=1, batch_size=4, transformations=[Row()]))


class Row(grain.transforms.Map):
    def map(self, record: Any) -> Any:
        return record["row"]


def test_a_memoryview_is_one_for_every_number_of_workers(no_process_left: None) -> None:
    class Packets:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return {"a": memoryview(array.array("d", [index, index + 0.5])), "b": index}

    for source in (Packets(), [Packets()[index] for index in range(3)]):
        for workers in (0, 1):
            with grain.load(source, num_epochs=1, worker_count=workers) as loader:
                got = [record["a"] for record in loader]
            assert [type(view) for view in got] == [memoryview] * 3
            assert [(view.format, view.tolist()) for view in got] == [
                ("d", [index, index + 0.5]) for index in range(3)
            ]
