"""Files that are damaged, or change: errors with file and record, and nothing lost before."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._algebra.files.parquet import ParquetFiles
from grain_jax.errors import CorruptFileError
from grain_jax.experimental import (
    ParquetIterDataset,
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


# --- what is wrong in files ----------------------------------------------------------------------


def until_error(stream: Any, workers: int) -> tuple[list[Any], CorruptFileError]:
    """The elements before an error, and the error."""
    found = []
    with iter(trees.with_workers(stream, workers) if workers else stream) as iterator:
        try:
            for element in iterator:
                found.append(element)
        except CorruptFileError as error:
            return found, error
    raise AssertionError(f"no error after {len(found)} elements")


def changed(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


RECORDS = [b"%03d" % n for n in range(100)]
LONG = 12 + 3 + 4  # bytes of one of them in a file


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("damage", "record", "says"),
    [
        (lambda data: data[:-1], 99, "cut off: the record has 3 bytes and a checksum, and the"),
        (lambda data: data[: 70 * LONG + 13], 70, "the file ends 1 bytes after the record's leng"),
        (lambda data: data[: 70 * LONG + 5], 70, "the file ends 5 bytes after the record's start"),
        (lambda data: changed(data, 70 * LONG + 1), 70, "its length and the length's checksum"),
        (lambda data: changed(data, 70 * LONG + 9), 70, "its length and the length's checksum"),
        (lambda data: changed(data, 70 * LONG + 13), 70, "its bytes and their checksum do not"),
        (lambda data: changed(data, 70 * LONG + 16), 70, "its bytes and their checksum do not"),
    ],
)
def test_damaged_tfrecords(
    tmp_path: Path, workers: int, damage: Any, record: int, says: str
) -> None:
    path, other = tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"
    record_files.write(other, RECORDS)
    record_files.write(path, RECORDS)
    path.write_bytes(damage(path.read_bytes()))
    found, error = until_error(TFRecordIterDataset([path, other]), workers)
    assert found == [one for one in RECORDS[:record] for _ in "ab"]
    assert f"record {record} of the file {str(path)!r}: " in str(error)
    assert says in str(error)


def test_records_behind_one_with_changed_bytes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    record_files.write(path, RECORDS)
    path.write_bytes(changed(path.read_bytes(), 70 * LONG + 13))
    policy = grain.ErrorPolicy(max_count=1)
    for workers in (0, 2):
        setup = grain.MultiprocessingOptions(num_workers=workers, on_error=policy)
        with iter(TFRecordIterDataset(path).mp_prefetch(setup)) as iterator:
            assert list(iterator) == RECORDS[:70] + RECORDS[71:]
    unchecked = list(TFRecordIterDataset(path, verify_checksums=False))
    assert len(unchecked) == 100


@pytest.mark.parametrize("workers", [0, 2])
def test_the_others_go_on_behind_a_file_that_is_cut_off(tmp_path: Path, workers: int) -> None:
    path, other = tmp_path / "a.tfrecord", tmp_path / "b.tfrecord"
    record_files.write(other, RECORDS)
    record_files.write(path, RECORDS)
    path.write_bytes(path.read_bytes()[: 30 * LONG + 14])
    policy = grain.ErrorPolicy(max_count=1)
    setup = grain.MultiprocessingOptions(num_workers=workers, on_error=policy)
    with iter(TFRecordIterDataset([path, other]).mp_prefetch(setup)) as iterator:
        found = list(iterator)
        assert len(iterator.skipped) == 1
    assert found == [one for one in RECORDS[:30] for _ in "ab"] + RECORDS[30:]


@pytest.mark.parametrize("kind", ["gzip", "bz2", "xz"])
@pytest.mark.parametrize("left", [0.3, 0.8, 0.999])
def test_compressed_files_that_are_cut_off(tmp_path: Path, kind: str, left: float) -> None:
    rng = np.random.default_rng(0)
    lines = [rng.bytes(60).hex() for _ in range(3000)]
    record_files.write(tmp_path / "a.tfrecord", [line.encode() for line in lines])
    (tmp_path / "a.txt").write_text("\n".join(lines))
    for path in (tmp_path / "a.tfrecord", tmp_path / "a.txt"):
        whole = PACKED[kind](path.read_bytes())
        path.write_bytes(whole[: int(left * len(whole))])
    for name, stream in (
        (tmp_path / "a.txt", TextLinesIterDataset(tmp_path / "a.txt")),
        (tmp_path / "a.tfrecord", TFRecordIterDataset(tmp_path / "a.tfrecord").map(bytes.decode)),
    ):
        found, error = until_error(stream, 0)
        assert found == lines[: len(found)]
        # Blocks of bz2 are of 900 kB, so that there may be nothing before the damage.
        assert kind == "bz2" or len(found) > (left - 0.2) * len(lines)
        if kind == "gzip":
            sound = zlib.decompressobj(31).decompress(name.read_bytes())
            assert len(found) == (
                sound.count(b"\n") if name.suffix == ".txt" else len(sound) // 136
            )
        assert f"record {len(found)} of the file" in str(error)
        assert "cannot be decompressed" in str(error)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_step_that_fails_says_which_record_of_which_file(tmp_path: Path, workers: int) -> None:
    names = [tmp_path / f"{number}.txt" for number in range(2)]
    for name in names:
        name.write_text("1\n2\nx\n" if name is names[1] else "1\n2\n3\n")
    stream = TextLinesIterDataset(names).map(int)
    with iter(trees.with_workers(stream, workers) if workers else stream) as iterator:
        assert [next(iterator) for _ in range(5)] == [1, 1, 2, 2, 3]
        with pytest.raises(ValueError, match="invalid literal") as found:
            next(iterator)
    assert any(f"(record 2 of {str(names[1])!r})" in note for note in found.value.__notes__)


@pytest.mark.parametrize("workers", [0, 2])
def test_text_in_another_encoding(tmp_path: Path, workers: int) -> None:
    (tmp_path / "a.txt").write_bytes(b"a\nb\n\xfcber\nc\n")
    found, error = until_error(TextLinesIterDataset(tmp_path / "a.txt"), workers)
    assert found == ["a", "b"]
    assert "record 2 of the file" in str(error)
    assert "the line is no utf-8" in str(error)
    assert list(TextLinesIterDataset(tmp_path / "a.txt", encoding="latin-1"))[2] == "über"


@pytest.mark.parametrize("workers", [0, 2])
def test_damaged_rows_of_parquet(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "a.parquet"
    options = {"use_dictionary": False, "write_page_checksum": True, "compression": "none"}
    parquet(path, 0, 3000, group=1000, data_page_size=64, write_batch_size=8, **options)
    data = path.read_bytes()
    path.write_bytes(changed(data, data.index(struct.pack("<2q", 1500, 1501))))
    found, error = until_error(ParquetIterDataset(str(path)), workers)
    assert [row["n"] for row in found] == list(range(len(found)))
    assert 1000 < len(found) < 2000
    assert f"record {len(found)} of the file {str(path)!r}: it cannot be read: " in str(error)
    # What is behind it in its group of rows cannot be found; the next group can.
    setup = grain.MultiprocessingOptions(num_workers=workers, on_error=grain.ErrorPolicy())
    with iter(ParquetIterDataset(str(path)).mp_prefetch(setup)) as iterator:
        rest = [int(row["n"]) for row in iterator]
    assert rest == [*range(len(found)), *range(2000, 3000)]


def test_rows_behind_a_damage_are_not_looked_for_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.parquet"
    options = {"use_dictionary": False, "write_page_checksum": True, "compression": "none"}
    parquet(path, 0, 3000, group=1000, data_page_size=64, write_batch_size=8, **options)
    data = path.read_bytes()
    path.write_bytes(changed(data, data.index(struct.pack("<2q", 1100, 1101))))
    opened, real = [], ParquetFiles.open

    def counted(self: Any, *arguments: Any) -> Any:
        opened.append(arguments)
        return real(self, *arguments)

    monkeypatch.setattr(ParquetFiles, "open", counted)
    setup = grain.MultiprocessingOptions(num_workers=0, on_error=grain.ErrorPolicy())
    with iter(ParquetIterDataset(str(path)).mp_prefetch(setup)) as iterator:
        found = [int(row["n"]) for row in iterator]
    assert found == [*range(len(found) - 1000), *range(2000, 3000)]
    assert 2000 < len(found) < 2100
    assert len(opened) < 10


@pytest.mark.parametrize("left", [0, 3, 100, -1, -9])
def test_parquet_files_that_are_cut_off(tmp_path: Path, left: int) -> None:
    path = tmp_path / "a.parquet"
    parquet(path, 0, 100)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CorruptFileError, match=r"a\.parquet' is no whole Parquet file: "):
        iter(ParquetIterDataset(str(path)))


# --- files that change ---------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_that_changes_its_length_between_epochs(tmp_path: Path, workers: int) -> None:
    name = record_files.write(tmp_path / "a.tfrecord", [b"a", b"b"])
    stream = TFRecordIterDataset(name)
    if workers:
        stream = trees.with_workers(stream, workers)
    with iter(stream) as iterator:
        assert list(iterator) == [b"a", b"b"]
    record_files.write(tmp_path / "a.tfrecord", [b"a", b"b", b"c"])
    with pytest.raises(CorruptFileError, match=r"has 51 bytes, and had 34 .* Make the dataset an"):
        list(stream)
    assert list(TFRecordIterDataset(name)) == [b"a", b"b", b"c"]


def test_a_file_that_is_written_anew_between_epochs(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nbc\n")
    stream = TextLinesIterDataset(path)
    assert list(stream) == ["a", "bc"]
    path.write_text("ab\nc\n")
    os.utime(path, ns=(1, 1))
    with pytest.raises(CorruptFileError, match=r"a\.txt' is not as it was when its records were"):
        list(stream)


def test_a_fork_reads_from_where_it_stands(tmp_path: Path) -> None:
    lines = [f"{n} {'x' * 100}" for n in range(5000)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    with iter(TextLinesIterDataset(tmp_path / "a.txt")) as iterator:
        assert [next(iterator) for _ in range(100)] == lines[:100]
        child = os.fork()
        if not child:
            os._exit(0 if list(iterator) == lines[100:] else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert list(iterator) == lines[100:]


def test_states_of_other_files_are_refused(tmp_path: Path) -> None:
    names = [tmp_path / f"{number}.txt" for number in range(3)]
    for number, name in enumerate(names):
        name.write_text("x\n" * (number + 2))
    with iter(TextLinesIterDataset(names)) as iterator:
        next(iterator)
        state = iterator.get_state()
    for other in (
        TextLinesIterDataset([names[1], names[0], names[2]]),
        TextLinesIterDataset(names, cycle_length=2),
        TextLinesIterDataset(names[:2]),
    ):
        with iter(other) as iterator, pytest.raises(ValueError, match="of another pipeline"):
            iterator.set_state(state)
    with iter(TextLinesIterDataset(names)) as iterator:
        iterator.set_state(state)
        assert len(list(iterator)) == 8


def test_a_state_with_another_filter_is_refused(tmp_path: Path) -> None:
    name = parquet(tmp_path / "a.parquet", 0, 30)
    with iter(ParquetIterDataset(name, filters=[("n", ">", 3)])) as iterator:
        next(iterator)
        state = iterator.get_state()
    other = ParquetIterDataset(name, filters=[("n", ">", 4)])
    with iter(other) as iterator, pytest.raises(ValueError, match=r"filters=\(n > 4\)"):
        iterator.set_state(state)
