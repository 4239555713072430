"""Sources of which each process makes its own reader."""

from __future__ import annotations

import functools
import operator
import os
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax.sources import PerProcess

pytestmark = pytest.mark.usefixtures("no_process_left")


class Rows:
    """Rows of a database, by a connection that does not pickle and that one thread may use."""

    def __init__(self, path: Path) -> None:
        self.log = path.with_suffix(".log")
        self.note("open")
        self.connection = sqlite3.connect(path)
        self.pid = os.getpid()

    def note(self, what: str) -> None:
        with self.log.open("a") as log:
            print(what, os.getpid(), file=log)

    def __len__(self) -> int:
        return int(self.connection.execute("select count(*) from t").fetchone()[0])

    def __getitem__(self, index: int) -> int:
        assert os.getpid() == self.pid
        return int(
            self.connection.execute("select x from t where rowid=?", (index + 1,)).fetchone()[0]
        )

    def close(self) -> None:
        self.note("close")
        self.connection.close()


class ManyRows(Rows):
    def __getitems__(self, indices: Sequence[int]) -> list[int]:
        self.note("many")
        return [self[index] for index in indices]


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "rows.db"
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x integer)")
        connection.executemany("insert into t values (?)", [(10 * n,) for n in range(40)])
    connection.close()
    return path


@pytest.mark.parametrize("kind", [Rows, ManyRows])
@pytest.mark.parametrize("workers", [0, 2])
def test_each_process_makes_and_closes_its_own(database: Path, kind: Any, workers: int) -> None:
    with grain.load(
        PerProcess(lambda: kind(database)), num_epochs=2, batch_size=8, worker_count=workers
    ) as loader:
        found = np.concatenate(list(loader)).tolist()
    assert found == [10 * n for n in range(40)] * 2
    deadline = time.monotonic() + 30
    while True:  # workers end after the loader has told them to
        lines = database.with_suffix(".log").read_text().split("\n")[:-1]
        opened = [line.split()[1] for line in lines if line.startswith("open")]
        closed = [line.split()[1] for line in lines if line.startswith("close")]
        if len(closed) == len(opened) or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    # One worker may have done all the work.
    assert 1 + min(workers, 1) <= len(set(opened)) == len(opened) <= 1 + workers
    assert sorted(opened) == sorted(closed)
    assert any(line.startswith("many") for line in lines) == (kind is ManyRows)


def test_a_dataset_of_one(database: Path) -> None:
    source = PerProcess(lambda: Rows(database))
    ds = grain.MapDataset.source(source).shuffle(seed=1)
    stream = ds.to_iter_dataset().filter(lambda x: x % 20 == 0).batch(3)
    whole = [batch.tolist() for batch in stream]
    options = grain.MultiprocessingOptions(num_workers=2)
    assert [batch.tolist() for batch in stream.mp_prefetch(options)] == whole
    assert sorted(functools.reduce(operator.iadd, whole, [])) == list(range(0, 400, 20))
    source.close()


class Drawing:
    """A reader that draws from NumPy's generator, and writes all records into one buffer."""

    def __init__(self) -> None:
        self.buffer = np.zeros(2)

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        self.buffer[:] = index, np.random.random()
        return self.buffer


def test_what_a_reader_draws_and_keeps_is_seen_through_it() -> None:
    def read(source: Any, workers: int) -> list[Any]:
        with grain.load(source, num_epochs=1, seed=0, worker_count=workers) as loader:
            return [record.tolist() for record in loader]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("logging.Logger.warning", lambda *args, **more: None)
        expected = read(Drawing(), 0)
        assert [place for place, _ in expected] == list(range(12))
        for workers in (0, 2):
            assert read(PerProcess(Drawing), workers) == expected


def test_a_forked_child_leaves_the_readers_of_its_parent_alone(database: Path) -> None:
    source = PerProcess(lambda: Rows(database))
    assert source[3] == 30
    child = os.fork()
    if not child:
        right = source[4] == 40
        source.close()
        os._exit(not right)
    assert os.waitpid(child, 0)[1] == 0
    assert source[5] == 50
    source.close()
    assert source[6] == 60  # made anew
    source.close()


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (3, r"takes a function that makes a reader, got 3\. Write"),
        (lambda: 3, "made 3, which is no reader: it has no __len__"),
        (lambda: {1, 2}, r"made \{1, 2\}, which is no reader: it has no __getitem__"),
    ],
)
def test_what_makes_no_reader_is_refused_at_the_call(factory: Any, text: str) -> None:
    with pytest.raises(grain.errors.InvalidTypeError, match=text):
        PerProcess(factory)
