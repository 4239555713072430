"""Files dealt out over processes: every record once, and the same steps on any number of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grain_jax as grain
from grain_jax._algebra.files import source
from grain_jax.experimental import (
    ParquetIterDataset,
    TextLinesIterDataset,
    TFRecordIterDataset,
)
from tests.datasets import record_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = pytest.mark.usefixtures("no_process_left")

Stream = grain.IterDataset[Any]
SHARDS, ROWS = 8, 16


def filtered_rows(folder: Path, files: int, rows: int) -> Stream:
    for file in range(files):
        table = pa.table({"n": range(1000 * file, 1000 * file + rows)})
        pq.write_table(table, str(folder / f"{file}.parquet"), row_group_size=11)
    kept = ParquetIterDataset(str(folder / "*.parquet"), filters=[("n", "!=", 1003)])
    return kept.map(lambda row: int(row["n"]))


def records(folder: Path, files: int, rows: int) -> Stream:
    for file in range(files):
        numbers = range(1000 * file, 1000 * file + rows)
        record_files.write(folder / f"{file}.tfrecord", [b"%d" % n for n in numbers])
    return TFRecordIterDataset(folder / "*.tfrecord").map(int).filter(lambda n: n % 5 > 0)


def lines(folder: Path, files: int, rows: int) -> Stream:
    for file in range(files):
        numbers = range(1000 * file, 1000 * file + rows)
        (folder / f"{file}.txt").write_text("".join(f"{n}\n" for n in numbers))
    return TextLinesIterDataset(folder / "*.txt").map(int)


MAKE: dict[str, Callable[[Path, int, int], Stream]] = {
    "filtered rows": filtered_rows,
    "records": records,
    "lines": lines,
}


class Job:
    """The processes of a run."""

    def __init__(self, stream: Stream, count: int, workers: int = 0) -> None:
        self.iterators = []
        for index in range(count):
            ds = stream.batch(ROWS // count, batch_fn=list)
            if workers:
                ds = ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
            shard = grain.sharding.ShardOptions(index, count)
            self.iterators.append(iter(ds.shard(shard, virtual_shards=SHARDS)))

    def step(self) -> list[Any]:
        return sorted(row for one in self.iterators for row in next(one, []))

    def steps(self, most: int = 1000) -> list[list[Any]]:
        found: list[list[Any]] = []
        while len(found) < most and (step := self.step()):
            found.append(step)
        return found

    def state(self) -> Any:
        states = [json.loads(json.dumps(one.get_state())) for one in self.iterators]
        return states[0] if states[0]["elastic"] else {"processes": states}

    def close(self) -> None:
        for one in self.iterators:
            one.close()


@pytest.mark.parametrize("files", [1, 3, 8, 11])
@pytest.mark.parametrize("kind", MAKE)
def test_every_record_once_on_any_number_of_processes(
    tmp_path: Path, kind: str, files: int
) -> None:
    stream = MAKE[kind](tmp_path, files, 60 // files + 5)
    everything = sorted(stream)
    assert len(everything) > 40
    whole = Job(stream, 1).steps()
    assert sorted(row for step in whole for row in step) == everything
    for count in (2, 4, 8):
        assert Job(stream, count).steps() == whole
    for place in range(len(whole)):
        before = Job(stream, 4)
        assert before.steps(place) == whole[:place]
        for count in (2, 8, 1):
            after = Job(stream, count)
            for one in after.iterators:
                one.set_state(before.state())
            assert after.step() == whole[place]
            before = after
            place += 1
            if place == len(whole):
                break


def test_records_with_workers(tmp_path: Path) -> None:
    stream = records(tmp_path, 5, 40)
    whole = Job(stream, 4).steps()
    before = Job(stream, 2, workers=1)
    assert before.steps(3) == whole[:3]
    after = Job(stream, 1, workers=2)
    after.iterators[0].set_state(before.state())
    assert after.steps() == whole[3:]
    before.close()
    after.close()


def test_processes_open_files_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = lines(tmp_path, 16, 10)
    opened: list[str] = []
    real = source.FileSource._reader

    def reader(self: Any, file: int, row: int) -> Any:
        opened.append(self.names[file])
        return real(self, file, row)

    monkeypatch.setattr(source.FileSource, "_reader", reader)
    seen: set[str] = set()
    for index in range(4):
        opened.clear()
        mine = list(stream.batch(4).shard(grain.sharding.ShardOptions(index, 4)))
        assert sum(len(batch) for batch in mine) == 40
        assert len(set(opened)) == 4
        assert seen.isdisjoint(opened)
        seen |= set(opened)
