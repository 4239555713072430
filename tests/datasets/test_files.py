"""Streams of the records of files: the same with workers and restored anywhere; clear errors."""

from __future__ import annotations

import gzip
import itertools
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax.experimental import (
    ParquetIterDataset,
    ParseExample,
    TextLinesIterDataset,
    TFRecordIterDataset,
)
from tests.datasets import record_files
from tests.datasets.record_files import PACKED, parquet
from tests.property import trees

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
fsspec = pytest.importorskip("fsspec")

pytestmark = pytest.mark.usefixtures("no_process_left")


def taking_turns(files: list[list[Any]]) -> list[Any]:
    """Records of files of which all have a place: one of each in turn."""
    rounds = itertools.zip_longest(*[[(record,) for record in file] for file in files])
    return [found[0] for one in rounds for found in one if found is not None]


# --- one exact order -----------------------------------------------------------------------------


def test_parquet(tmp_path: Path) -> None:
    counts = [9, 0, 4, 14]
    for number, count in enumerate(counts):
        parquet(tmp_path / f"{number}.parquet", 100 * number, count)
    found = trees.check(ParquetIterDataset(str(tmp_path / "*.parquet")), [0, 2], every=3)
    files = [[100 * number + row for row in range(count)] for number, count in enumerate(counts)]
    assert [int(row["n"]) for row in found] == taking_turns(files)
    assert [row["s"] for row in found] == [f"<{n}>" for n in taking_turns(files)]


def test_columns_and_filters_of_rows(tmp_path: Path) -> None:
    names = [parquet(tmp_path / f"{number}.parquet", 0, 30) for number in range(2)]
    rows = [n for n in range(30) for _ in names]
    right = [f"<{n}>" for n in rows if n in (3, 4, 5, 17, 28, 29)]
    one_of = [[("n", ">=", 3), ("n", "<", 6)], [("n", "==", 17)], [("n", ">", 27)]]
    stream = ParquetIterDataset(names, columns=["s"], filters=one_of)
    found = trees.check(stream, workers=[0, 2], every=5)
    assert found == [{"s": text} for text in right]
    expression = pq.filters_to_expression(one_of)
    assert list(ParquetIterDataset(names, columns="s", filters=expression)) == found
    batches = trees.check(stream.map(lambda row: row["s"]).batch(5), workers=[0, 2])
    assert [len(batch) for batch in batches] == [5, 5, 2]


def test_groups_of_rows_in_which_a_filter_keeps_nothing_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet(path, 0, 40, group=10, use_dictionary=False, compression="none")
    data = bytearray(path.read_bytes())
    start = pq.read_metadata(str(path)).row_group(1).column(0).data_page_offset
    data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)
    kept = ParquetIterDataset(str(path), filters=[("n", ">", 25)])
    assert [row["n"] for row in kept] == list(range(26, 40))


@pytest.mark.parametrize("kind", PACKED)
def test_tfrecords(tmp_path: Path, kind: str) -> None:
    files = [[b"%d:%d" % (number, row) for row in range(130 + number)] for number in range(3)]
    for number, records in enumerate(files):
        path = tmp_path / f"{number}.tfrecord"
        record_files.write(path, records)
        path.write_bytes(PACKED[kind](path.read_bytes()))
    stream = TFRecordIterDataset(tmp_path / "*.tfrecord")
    assert trees.check(stream, workers=[0, 2], every=23) == taking_turns(files)
    said = TFRecordIterDataset(tmp_path / "0.tfrecord", compression=kind or None)
    assert list(said) == files[0]


def test_a_zlib_stream(tmp_path: Path) -> None:
    records = [b"%d" % row * 1000 for row in range(300)]
    path = tmp_path / "a.tfrecord"
    record_files.write(path, records)
    path.write_bytes(zlib.compress(path.read_bytes()))
    stream = TFRecordIterDataset(path, compression="zlib")
    assert trees.check(stream, workers=[0], every=37) == records


def test_a_record_whose_length_reads_as_that_of_a_gzip_file(tmp_path: Path) -> None:
    records = [bytes(0x088B1F), b"x"]
    name = record_files.write(tmp_path / "a.tfrecord", records)
    assert (tmp_path / "a.tfrecord").read_bytes()[:3] == gzip.compress(b"")[:3]
    assert list(TFRecordIterDataset(name)) == records


def test_examples(tmp_path: Path) -> None:
    records = [
        record_files.example({"id": [n], "tokens": list(range(n % 5)), "name": [b"n%d" % n]})
        for n in range(1, 20)
    ]
    name = record_files.write(tmp_path / "a.tfrecord", records)
    stream = TFRecordIterDataset(name, features={"id": ((), np.int32), "name": ((), bytes)})
    found = trees.check(stream, workers=[0, 2])
    assert found == [{"id": np.int32(n), "name": b"n%d" % n} for n in range(1, 20)]
    everything = list(TFRecordIterDataset(name, features="all"))
    assert everything[6]["tokens"].tolist() == [0, 1]
    mapped = TFRecordIterDataset(name).map(ParseExample())
    assert trees.same(list(mapped), everything)


@pytest.mark.parametrize("kind", PACKED)
@pytest.mark.parametrize("end", ["", "\n", "\n\n", "\r\n"])
def test_lines(tmp_path: Path, kind: str, end: str) -> None:
    text = "\n".join(f"zeile {n} {'ü' * (n % 7)}" for n in range(700)) + end
    path = tmp_path / "a.txt"
    path.write_bytes(PACKED[kind](text.encode()))
    stream = TextLinesIterDataset(path)
    workers = [0, 2] if end == "\n" else [0]
    assert trees.check(stream, workers=workers, every=97) == text.splitlines()


def test_lines_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    lines = ["a" * 100_000, "", "b" * 2_500_000, "c"] * 3
    (tmp_path / "a.txt").write_text("\n".join(lines))
    assert trees.check(TextLinesIterDataset(tmp_path / "a.txt"), workers=[0]) == lines


def test_files_without_records(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert list(TFRecordIterDataset(tmp_path / "empty")) == []
    assert list(TextLinesIterDataset(tmp_path / "empty")) == []
    assert list(ParquetIterDataset(parquet(tmp_path / "a.parquet", 0, 0))) == []


def test_steps_behind_files_are_those_behind_any_stream(tmp_path: Path) -> None:
    names = [parquet(tmp_path / f"{number}.parquet", 100 * number, 40) for number in range(2)]
    numbers = ParquetIterDataset(names).map(lambda row: int(row["n"])).filter(lambda n: n % 3)
    drawn = numbers.seed(1).random_map(lambda n, rng: n + int(rng.integers(2)) * 1000).batch(4)
    found = trees.check(drawn, workers=[0, 3], every=4)
    kept = [n for pair in zip(range(40), range(100, 140), strict=True) for n in pair if n % 3]
    assert [n % 1000 for batch in found for n in batch.tolist()] == kept
    assert {n // 1000 for batch in found for n in batch.tolist()} == {0, 1}


def test_a_file_twice_side_by_side(tmp_path: Path) -> None:
    rows = ParquetIterDataset(parquet(tmp_path / "a.parquet", 0, 40)).map(lambda row: row["n"])
    late = rows.filter(lambda n: n > 30)
    found = trees.check(
        grain.experimental.ZipIterDataset([rows, late], strict=False), workers=[0], every=5
    )
    assert found == [(np.int64(n), np.int64(31 + n)) for n in range(9)]


def test_as_many_files_are_open_as_take_turns(tmp_path: Path) -> None:
    for number in range(120):
        (tmp_path / f"{number:03}.txt").write_text("a\n" * 40)
    before = len(os.listdir("/proc/self/fd"))
    with iter(TextLinesIterDataset(tmp_path / "*.txt", cycle_length=3)) as iterator:
        most = max(len(os.listdir("/proc/self/fd")) for _ in iterator)
    assert before < most <= before + 12
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_streams_of_single_files_interleaved(tmp_path: Path) -> None:
    names = [parquet(tmp_path / f"{part}.parquet", 100 * part, 5 + part) for part in range(5)]
    one_by_one = [ParquetIterDataset(name) for name in names]
    interleaved = grain.experimental.InterleaveIterDataset(one_by_one, cycle_length=3)
    found = trees.check(interleaved, workers=[0, 2], every=7)
    assert trees.same(found, list(ParquetIterDataset(names, cycle_length=3)))


def test_threads_ahead(tmp_path: Path) -> None:
    name = parquet(tmp_path / "a.parquet", 0, 40)
    rows = ParquetIterDataset(name).map(lambda row: int(row["n"]))
    pair = [grain.experimental.multithread_prefetch(rows, 2, 4) for _ in range(2)]
    assert trees.check(grain.IterDataset.mix(pair), workers=[0], every=9) == [
        n for n in range(40) for _ in pair
    ]


def test_more_epochs(tmp_path: Path) -> None:
    name = record_files.write(tmp_path / "a.tfrecord", [b"a", b"b", b"c"])
    stream = TFRecordIterDataset(name)
    again = grain.experimental.RepeatIterDataset(stream, 3)
    assert trees.check(again, workers=[0, 2]) == [b"a", b"b", b"c"] * 3
    assert list(stream) == list(stream)


def test_the_number_of_files_that_take_turns(tmp_path: Path) -> None:
    names = [tmp_path / f"{number}.txt" for number in range(3)]
    for number, name in enumerate(names):
        name.write_text(f"{number}a\n{number}b\n")
    assert list(TextLinesIterDataset(names, cycle_length=1)) == ["0a", "0b", "1a", "1b", "2a", "2b"]
    assert list(TextLinesIterDataset(names, cycle_length=2)) == ["0a", "1a", "0b", "1b", "2a", "2b"]


# --- other file systems --------------------------------------------------------------------------


@pytest.fixture
def memory() -> Any:
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


def test_files_in_memory(tmp_path: Path, memory: Any) -> None:
    parquet(tmp_path / "a.parquet", 0, 10)
    memory.pipe("/d/a.parquet", (tmp_path / "a.parquet").read_bytes())
    memory.pipe("/d/b.parquet", (tmp_path / "a.parquet").read_bytes())
    memory.pipe("/d/a.txt", gzip.compress(b"x\ny\n"))
    record_files.write(tmp_path / "a.tfrecord", [b"a", b"b"])
    memory.pipe("/d/a.tfrecord", (tmp_path / "a.tfrecord").read_bytes())
    found = trees.check(ParquetIterDataset("memory://d/*.parquet"), workers=[0])
    assert [row["n"] for row in found] == [n for n in range(10) for _ in "ab"]
    kept = ParquetIterDataset("memory://d/a.parquet", filters=[("n", ">", 7)])
    assert [row["n"] for row in kept] == [8, 9]
    assert list(TextLinesIterDataset("memory://d/a.txt")) == ["x", "y"]
    assert list(TFRecordIterDataset(["memory://d/a.tfrecord"] * 2)) == [b"a", b"a", b"b", b"b"]
    with pytest.raises(FileNotFoundError, match="no file fits the pattern 'memory://d/z"):
        TextLinesIterDataset("memory://d/z*")


def test_files_through_fsspec_in_workers(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x\ny\nz")
    stream = TextLinesIterDataset(f"local://{tmp_path}/*.txt")
    assert trees.check(stream, workers=[0, 2]) == ["x", "y", "z"]


def test_a_file_system_that_nobody_knows() -> None:
    with pytest.raises(ImportError, match=r"no\w*://x' cannot be opened.* pip install"):
        TextLinesIterDataset("nofs://x")


# --- what is wrong at the call -------------------------------------------------------------------


@pytest.mark.parametrize("kind", [ParquetIterDataset, TFRecordIterDataset, TextLinesIterDataset])
def test_missing_files(tmp_path: Path, kind: Any) -> None:
    (tmp_path / "there").write_bytes(b"")
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*gone'"):
        kind([str(tmp_path / "there"), str(tmp_path / "gone")])
    with pytest.raises(FileNotFoundError, match=r"no file fits the pattern '.*\*\.gone'"):
        kind(tmp_path / "*.gone")
    with pytest.raises(ValueError, match=r"is a folder; write a pattern for its files: '.*\*'"):
        kind(tmp_path)
    with pytest.raises(ValueError, match="the sequence of paths is empty"):
        kind([])
    with pytest.raises(TypeError, match=r"a path is text, an os.PathLike or a sequence"):
        kind(3)
    with pytest.raises(ValueError, match="cycle_length"):
        kind(tmp_path / "there", cycle_length=0)


def test_a_file_whose_name_looks_like_a_pattern(tmp_path: Path) -> None:
    (tmp_path / "a[1].txt").write_text("yes")
    (tmp_path / "a1.txt").write_text("no")
    assert list(TextLinesIterDataset(tmp_path / "a[1].txt")) == ["yes"]


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    name = parquet(tmp_path / "a.parquet", 0, 3)
    with pytest.raises(TypeError, match="colums= is neither known to ParquetIterDataset nor to"):
        ParquetIterDataset(name, colums=["n"])
    with pytest.raises(ValueError, match="write the file system into the path"):
        ParquetIterDataset(name, filesystem=None)
    with pytest.raises(ValueError, match=r"filters=.* cannot be read: .*operator"):
        ParquetIterDataset(name, filters=[("n", "~~", 1)])
    with pytest.raises(ValueError, match="columns must be names"):
        ParquetIterDataset(name, columns=[])
    with pytest.raises(ValueError, match=r"has no column 'm'; it has n, s"):
        list(ParquetIterDataset(name, columns=["m"]))
    with pytest.raises(ValueError, match=r"do not fit the Parquet file .* columns n, s: "):
        list(ParquetIterDataset(name, filters=[("m", ">", 1)]))
    with pytest.raises(ValueError, match="compression='rar' is not known; it is one of 'auto', No"):
        TFRecordIterDataset(name, compression="rar")
    with pytest.raises(ValueError, match="features='some': write \"all\""):
        TFRecordIterDataset(name, features="some")
    for encoding in ("utf-16", "nothing"):
        with pytest.raises(ValueError, match=f"encoding='{encoding}' is not known, or one in wh"):
            TextLinesIterDataset(name, encoding=encoding)
