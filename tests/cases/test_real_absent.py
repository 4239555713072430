"""Records that are None, which are absent, and sources whose entries have names."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pytest
import zarr

import grain_jax as grain

VALUES = [1, None, 3, 4, None, 6, 7]
PRESENT = [1, 3, 4, 6, 7]

SOURCES: dict[str, Callable[[], Any]] = {
    "list": lambda: VALUES,
    "tuple": lambda: tuple(VALUES),
    "deque": lambda: collections.deque(VALUES),
    "numbered": lambda: dict(enumerate(VALUES)),
    "objects": lambda: np.array(VALUES, object),
    "pyarrow": lambda: pa.table({"x": VALUES})["x"],
    "polars": lambda: polars.Series(VALUES),
    "pandas": lambda: pd.Series(VALUES, dtype="Int64"),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", SOURCES)
def test_a_stream_has_no_length_where_records_are_absent(
    kind: str, workers: int, no_process_left: None
) -> None:
    loader = grain.load(SOURCES[kind](), num_epochs=1, worker_count=workers)
    with pytest.raises(TypeError, match="a record None of the source"):
        len(loader)
    assert list(loader) == PRESENT
    loader = grain.load(SOURCES[kind](), num_epochs=2, batch_size=4, worker_count=workers)
    batches = [batch.tolist() for batch in loader]
    assert batches == [[1, 3, 4, 6], [7, 1, 3, 4], [6, 7]]


@pytest.mark.parametrize("kind", SOURCES)
def test_absent_records_are_those_of_a_map_dataset(kind: str) -> None:
    dataset = grain.MapDataset.source(SOURCES[kind]())
    assert (len(dataset), dataset[1], dataset[2]) == (7, None, 3)
    assert list(dataset) == list(dataset.to_iter_dataset()) == PRESENT
    assert list(dataset.to_iter_dataset(allow_nones=True)) == VALUES
    with pytest.raises(ValueError, match=r"records None of its source.*to_iter_dataset\(\)\.batch"):
        dataset.batch(2)


def test_a_column_without_gaps_has_its_length() -> None:
    for source in ([1, 2, 3], pa.table({"x": [1, 2, 3]})["x"], [(None,), {"x": None}, [None]]):
        assert len(grain.load(source, num_epochs=1)) == 3


def test_shards_of_a_list_with_gaps_take_equal_steps() -> None:
    shards = [
        grain.load(
            VALUES,
            num_epochs=1,
            batch_size=2,
            drop_remainder=True,
            shard_options=grain.sharding.ShardOptions(index, 2),
        )
        for index in range(2)
    ]
    # Of positions 0, 2, 4, 6 and 1, 3, 5.
    assert [[batch.tolist() for batch in shard] for shard in shards] == [[[1, 3]], [[4, 6]]]


def test_an_edit_shows_in_the_length_of_the_next_iteration() -> None:
    values = [1, 2, 3]
    loader = grain.load(values, num_epochs=1, batch_size=2)
    assert [batch.tolist() for batch in loader] == [[1, 2], [3]]
    values[1] = None  # type: ignore[call-overload]
    assert [batch.tolist() for batch in loader] == [[1, 3]]


class Named(Mapping[str, Any]):
    def __getitem__(self, name: str) -> Any:
        return {"a": np.arange(3)}[name]

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


def entries(kind: str, folder: Path) -> Any:
    arrays = {"x": np.arange(8.0).reshape(4, 2), "y": np.arange(4)}
    if kind == "npz":
        np.savez(folder / "arrays.npz", **arrays)
        return np.load(folder / "arrays.npz")
    if kind == "zarr":
        group = zarr.open_group(str(folder / "group.zarr"), mode="w")
        for name, array in arrays.items():
            group[name] = array
        return group
    with h5py.File(folder / "file.h5", "w") as file:
        for name, array in arrays.items():
            file[name] = file[f"deep/{name}"] = array
        del file["deep/y"]
    return (
        h5py.File(folder / "file.h5")["deep"] if kind == "group" else h5py.File(folder / "file.h5")
    )


@pytest.mark.parametrize("kind", ["npz", "hdf5", "group", "zarr", "named"])
def test_entries_by_name_are_refused_with_what_to_write(kind: str, tmp_path: Path) -> None:
    source = Named() if kind == "named" else entries(kind, tmp_path)
    name = min(source.keys())
    text = f"entries by names.*'{name}'.*write dict\\(source\\).*source\\['{name}'\\]"
    for make in (lambda: grain.load(source), lambda: grain.MapDataset.source(source)):
        with pytest.raises(TypeError, match=re.compile(text, re.DOTALL)):
            make()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["npz", "group", "zarr"])
def test_what_the_refusal_says_works(
    kind: str, workers: int, tmp_path: Path, no_process_left: None
) -> None:
    loader = grain.load(
        dict(entries(kind, tmp_path)), num_epochs=1, batch_size=4, worker_count=workers
    )
    (batch,) = loader
    assert batch["x"].tolist() == np.arange(8.0).reshape(4, 2).tolist()
    assert "deep" not in batch
