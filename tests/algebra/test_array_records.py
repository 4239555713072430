"""array_record files: records by key over several files, in every process anew."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from array_record.python import array_record_module

from grain_jax._algebra.array_records import ArrayRecordDataSource
from grain_jax._algebra.sources import adapt
from grain_jax._values.errors import (
    ClosedError,
    InvalidValueError,
    MissingDependencyError,
    OutOfRangeError,
)

RECORDS = [f"{file}-{i}".encode() for file in range(3) for i in range(10 * (file + 1))]


class FileInstruction(NamedTuple):
    """A part of a file, with the fields of TFDS's."""

    filename: str
    skip: int
    take: int
    examples_in_shard: int


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("records")
    records = iter(RECORDS)
    files = []
    for file in range(3):
        path = str(folder / f"file-{file}.array_record")
        writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
        for _ in range(10 * (file + 1)):
            writer.write(next(records))
        writer.close()
        files.append(path)
    return files


@pytest.fixture
def source(paths: list[str]) -> Iterator[ArrayRecordDataSource]:
    with ArrayRecordDataSource(paths) as opened:
        yield opened


def test_records_are_numbered_through_the_files(source: Any, paths: list[str]) -> None:
    assert len(source) == 60
    assert [source[i] for i in range(60)] == RECORDS
    assert list(source.__getitems__([59, 0, 59])) == [RECORDS[59], RECORDS[0], RECORDS[59]]
    assert source.paths == paths
    assert adapt(source).read(np.array([3, 3, 40])) == [RECORDS[3], RECORDS[3], RECORDS[40]]


def test_it_equals_grains(source: Any, paths: list[str]) -> None:
    grain = pytest.importorskip("grain")
    theirs = grain.sources.ArrayRecordDataSource(paths)
    assert repr(source) == repr(theirs)
    assert source.paths == theirs.paths
    assert [source[i] for i in range(60)] == [theirs[i] for i in range(60)]


def test_one_path_path_objects_and_parts_of_files(paths: list[str]) -> None:
    assert len(ArrayRecordDataSource(paths[1])) == 20
    assert ArrayRecordDataSource(Path(paths[1]))[0] == b"1-0"
    part = FileInstruction(paths[2], 5, 10, 30)
    source = ArrayRecordDataSource([part])
    assert (len(source), source[0], source.paths) == (10, b"2-5", [paths[2]])
    assert len(ArrayRecordDataSource(part)) == 10


def test_reader_options_reach_the_reader(paths: list[str]) -> None:
    options = {"index_storage_option": "offloaded", "footer_prefetch_bytes": "0"}
    assert ArrayRecordDataSource(paths, options)[1] == b"0-1"
    with pytest.raises(ValueError, match="Unknown option nope"):
        ArrayRecordDataSource(paths, {"nope": "1"})[0]


def test_pickling_takes_no_open_files_along(source: Any) -> None:
    assert source[0] == RECORDS[0]
    again = pickle.loads(pickle.dumps(source))
    assert (len(again), again[59]) == (60, RECORDS[59])


@pytest.mark.parametrize("key", [-1, 60])
def test_keys_outside_are_refused(source: Any, key: int) -> None:
    with pytest.raises(OutOfRangeError, match=rf"record key {key} .*0 to 59"):
        source[key]
    with pytest.raises(OutOfRangeError, match=rf"record key {key} "):
        source.__getitems__([0, key])


def test_reading_after_close_is_refused(paths: list[str]) -> None:
    source = ArrayRecordDataSource(paths)
    source.close()
    source.close()
    with pytest.raises(ClosedError, match="after close"):
        source[0]
    with pytest.raises(ClosedError, match="after close"):
        source.__getitems__([0])


def test_missing_files_are_named(paths: list[str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"/nowhere/x\.array_record"):
        ArrayRecordDataSource([paths[0], "/nowhere/x.array_record"])
    with pytest.raises(InvalidValueError, match="no paths"):
        ArrayRecordDataSource([])


def test_threads_read_together(source: Any) -> None:
    got: dict[int, Any] = {}

    def read(thread: int) -> None:
        got[thread] = [source[i] for i in range(thread, 60, 8)]

    threads = [threading.Thread(target=read, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert got == {i: RECORDS[i::8] for i in range(8)}


def test_what_was_loaded_reads_after_a_fork(source: Any) -> None:
    """As in the engine's helper: loading starts no thread, and every fork reads for itself."""
    script = """
import os, pickle, sys, threading
def threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 1
import numpy
before = threads()
source = pickle.loads(bytes.fromhex(sys.argv[1]))
assert len(source) == 60
assert threads() == before, (before, threads())
for i in range(2):
    pid = os.fork()
    if pid == 0:
        ok = source[11 + i] == b"1-%d" % (1 + i) and source.__getitems__([59, 0])[0] == b"2-29"
        os._exit(0 if ok else 1)
    assert os.waitpid(pid, 0)[1] == 0
print("done")
"""
    out = subprocess.run(
        [sys.executable, "-c", script, pickle.dumps(source).hex()],
        capture_output=True,
        text=True,
        timeout=200,
        check=True,
    )
    assert out.stdout == "done\n"


def test_without_array_record_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, paths: list[str]
) -> None:
    monkeypatch.setitem(sys.modules, "array_record.python", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "grain-jax\[array_record\]"'):
        ArrayRecordDataSource(paths)
    with pytest.raises(ImportError):
        ArrayRecordDataSource(paths)


def test_the_module_imports_without_array_record() -> None:
    script = (
        "import grain_jax._algebra.array_records, sys; assert 'array_record' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=200, cwd=os.getcwd())
