"""Files of records give what Grain gives."""

from __future__ import annotations

import datetime
import gc
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import grain_jax
from tests.compat.pairs import plain_list
from tests.datasets import record_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def grains_records(grain: ModuleType, name: str) -> list[bytes]:
    """What Grain reads of a TFRecord file, which it leaves open."""
    records = list(grain.experimental.TFRecordIterDataset(name))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return records


def table(first: int, rows: int) -> object:
    numbers = range(first, first + rows)
    return pa.table(
        {
            "n": pa.array(numbers, pa.int32()),
            "x": [float(n) / 4 for n in numbers],
            "text": [f"t{n}" for n in numbers],
            "raw": [b"%d" % n for n in numbers],
            "ids": [list(range(n % 3)) for n in numbers],
            "parts": [{"a": n, "b": "b"} for n in numbers],
            "when": np.arange(first, first + rows).astype("datetime64[us]"),
            "flag": [n % 2 == 0 for n in numbers],
        }
    )


@pytest.mark.parametrize("counts", [[7], [7, 0, 3, 12], [2] * 20, [5, 1, *[3] * 18]])
def test_parquet(reference_grain: ModuleType, tmp_path: Path, counts: list[int]) -> None:
    names = []
    for number, count in enumerate(counts):
        names.append(str(tmp_path / f"{number:02}.parquet"))
        pq.write_table(table(100 * number, count), names[-1], row_group_size=4)
    given = names if len(names) > 1 else names[0]
    ours = list(grain_jax.experimental.ParquetIterDataset(given))
    theirs = list(reference_grain.experimental.ParquetIterDataset(given))
    assert plain_list(ours) == plain_list(theirs)
    assert {type(value) for value in ours[0].values()} == {type(v) for v in theirs[0].values()}


def test_options_of_pyarrow(reference_grain: ModuleType, tmp_path: Path) -> None:
    name = str(tmp_path / "a.parquet")
    pq.write_table(table(0, 5), name)
    for library in (grain_jax, reference_grain):
        rows = library.experimental.ParquetIterDataset(name, memory_map=True, buffer_size=1 << 16)
        assert [row["n"] for row in rows] == [0, 1, 2, 3, 4]


def test_lists_and_times(reference_grain: ModuleType, tmp_path: Path) -> None:
    name = str(tmp_path / "a.parquet")
    when = [datetime.datetime(2020, 1, hour, tzinfo=datetime.UTC) for hour in range(1, 7)]
    whole = pa.table(
        {
            "ids": [[1, 2], [], [3], None, [4], [5, 6]],
            "words": [["a", "b"], [], ["c"], None, ["d"], [b"e".decode()]],
            "nested": [[[1], [2, 3]], [], [[]], None, [[4]], [[5], []]],
            "pair": pa.array([[n / 2, 1.0] for n in range(6)], pa.list_(pa.float32(), 2)),
            "zoned": pa.array(when, pa.timestamp("us", tz="Europe/Berlin")),
            "kind": pa.array(list("aabbcc")).dictionary_encode(),
            "small": pa.array(range(6), pa.uint8()),
        }
    )
    pq.write_table(whole, name, row_group_size=2)
    ours = list(grain_jax.experimental.ParquetIterDataset(name))
    theirs = list(reference_grain.experimental.ParquetIterDataset(name))
    for one, other in zip(ours, theirs, strict=True):
        assert {key: repr(value) for key, value in one.items()} == {
            key: repr(value) for key, value in other.items()
        }


def test_missing_numbers_in_lists_change_no_other_row(tmp_path: Path) -> None:
    name = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"ids": [[1, 2], [3, None], None, [2**60 + 1]]}), name)
    found = [row["ids"] for row in grain_jax.experimental.ParquetIterDataset(name)]
    assert [None if one is None else one.tolist() for one in found] == [
        [1, 2],
        [3, None],
        None,
        [2**60 + 1],
    ]
    assert [None if one is None else one.dtype for one in found] == [
        np.int64,
        object,
        None,
        np.int64,
    ]


def test_slices_of_files(reference_grain: ModuleType, tmp_path: Path) -> None:
    names = [str(tmp_path / f"{number}.parquet") for number in range(5)]
    for number, name in enumerate(names):
        pq.write_table(table(100 * number, 3), name)
    for part in (slice(1, None, 2), slice(2), slice(3, 0, -1)):
        found = []
        for library in (grain_jax, reference_grain):
            rows = library.experimental.ParquetIterDataset(names)
            rows.set_slice(part)
            found.append([int(row["n"]) for row in rows])
        assert found[0] == found[1]
    rows = grain_jax.experimental.ParquetIterDataset(names)
    with pytest.raises(ValueError, match=r"leaves none of 5 files. Write ds.shard\("):
        rows.set_slice(slice(7, None))


def test_tfrecord(reference_grain: ModuleType, tmp_path: Path) -> None:
    records = [b"", b"a", bytes(range(256)) * 40, b"b" * 70_000]
    name = record_files.write(tmp_path / "a.tfrecord", records)
    assert grains_records(reference_grain, name) == records
    assert list(grain_jax.experimental.TFRecordIterDataset(name)) == records


def test_a_missing_number_is_none(reference_grain: ModuleType, tmp_path: Path) -> None:
    name = str(tmp_path / "a.parquet")
    pq.write_table(pa.table({"n": [2**60 + 1, None]}), name)
    first, second = grain_jax.experimental.ParquetIterDataset(name)
    assert (first["n"], type(first["n"]), second["n"]) == (2**60 + 1, np.int64, None)
    first, second = reference_grain.experimental.ParquetIterDataset(name)
    assert first["n"] == 2.0**60
    assert np.isnan(second["n"])


def test_a_record_whose_bytes_were_changed(reference_grain: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    name = record_files.write(path, [b"abc"])
    data = bytearray(path.read_bytes())
    data[12] ^= 1
    path.write_bytes(data)
    assert grains_records(reference_grain, name) == [b"`bc"]
    with pytest.raises(ValueError, match=r"record 0 of the file .*checksum do not agree"):
        list(grain_jax.experimental.TFRecordIterDataset(name))
