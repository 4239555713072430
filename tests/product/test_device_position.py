"""The device stage: short batches, positions, and the end of it all."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import grain_jax as grain
from grain_jax import prefetch_to_device
from grain_jax._values.errors import ClosedError, InvalidTypeError, InvalidValueError
from grain_jax.experimental import device_put
from tests.waiting import PATIENCE, until

ROOT = str(Path(__file__).resolve().parents[2])


@pytest.fixture(autouse=True)
def no_thread_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    gc.collect()
    assert until(lambda: set(threading.enumerate()) <= before)


class Batches:
    """Records 0 to n-1 in batches, as an iterator with a state; `describes` is the loader's way."""

    def __init__(self, n: int, size: int, state_as: type = dict, describes: bool = False) -> None:
        self.n, self.size, self.state_as = n, size, state_as
        self.start = 0
        if describes:
            self._batch_rows = lambda: ((size,), n % size or None)

    def __len__(self) -> int:
        return -(-self.n // self.size)

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        if self.start >= self.n:
            raise StopIteration
        x = np.arange(self.start, min(self.start + self.size, self.n), dtype=np.int32)
        self.start += self.size
        return {"x": x, "twice": np.stack([x, x], 1), "text": np.array([f"{i}" for i in x], object)}

    def get_state(self) -> Any:
        if self.state_as is dict:
            return {"start": self.start}
        return json.dumps({"start": self.start}).encode() if self.state_as is bytes else self.start

    def set_state(self, state: Any) -> None:
        assert type(state) is self.state_as
        if self.state_as is not int:
            state = (state if self.state_as is dict else json.loads(state))["start"]
        if state % self.size:
            raise ValueError(f"{state} is between two batches")
        self.start = state


def rows(batch: Any) -> list[int]:
    """The records in a batch, padding left out, after checking that its leaves agree."""
    mask = np.asarray(batch.get("mask", np.ones(len(batch["x"]), bool)))
    x = np.asarray(batch["x"])
    np.testing.assert_array_equal(batch["twice"], np.stack([x, x], 1))
    assert [t for t in batch["text"] if t is not None] == [str(i) for i in x[mask]]
    assert not x[~mask].any()
    return x[mask].tolist()


FULL = [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize("describes", [True, False])
def test_case_11_a_short_last_batch(describes: bool) -> None:
    def source() -> Batches:
        return Batches(10, 4, describes=describes)

    with prefetch_to_device(source(), remainder="drop") as iterator:
        if describes:
            assert len(iterator) == 2
        else:
            with pytest.raises(TypeError, match="remainder='drop' may drop some"):
                len(iterator)
        assert [rows(batch) for batch in iterator] == FULL

    with prefetch_to_device(source(), remainder="pad") as iterator:
        assert len(iterator) == 3
        batches = list(iterator)
    assert [rows(batch) for batch in batches] == [*FULL, [8, 9]]
    assert [np.asarray(batch["mask"]).tolist() for batch in batches] == [
        [True] * 4,
        [True] * 4,
        [True, True, False, False],
    ]
    for batch in batches:
        assert batch["x"].shape == batch["mask"].shape == (4,)
        assert batch["mask"].dtype == bool
        assert batch["mask"].sharding == batch["x"].sharding
        assert len(batch["text"]) == 4

    if describes:
        with pytest.raises(InvalidValueError, match="the last batch has 2 rows in every leaf and"):
            prefetch_to_device(source())
    else:
        with prefetch_to_device(source()) as iterator:
            assert [rows(next(iterator)) for _ in range(2)] == FULL
            with pytest.raises(InvalidValueError, match=r"'twice'\] has 2 rows .* batches with 4"):
                next(iterator)


def test_a_mesh_that_batches_do_not_divide_over_is_refused_at_once() -> None:
    with pytest.raises(InvalidValueError, match="every leaf has 6 rows, and axis 0 is cut into 4"):
        prefetch_to_device(Batches(12, 6, describes=True))


def test_a_batch_that_divides_over_the_devices_is_a_remainder_all_the_same() -> None:
    batches = [{"x": np.arange(8)}, {"x": np.arange(4)}, {"x": np.arange(8)}]
    assert [len(b["x"]) for b in prefetch_to_device(batches, remainder="drop")] == [8, 8]
    padded = list(prefetch_to_device(batches, remainder="pad", mask_key="valid"))
    assert [int(b["valid"].sum()) for b in padded] == [8, 4, 8]
    with pytest.raises(InvalidValueError, match=r"4 rows .* in a stream of batches with 8"):
        list(prefetch_to_device(batches))


def test_more_rows_than_before_cannot_be_padded() -> None:
    batches = [{"x": np.arange(4)}, {"x": np.arange(8)}]
    with pytest.raises(InvalidValueError, match=r"8 rows .* in a stream of batches with 4"):
        list(prefetch_to_device(batches, remainder="pad"))
    assert len(list(prefetch_to_device(batches, remainder="drop"))) == 1


def test_padding_leaves_alone_what_has_no_rows() -> None:
    mesh = Mesh(np.array(jax.devices()), ("data",))
    split, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
    batches = [{"x": np.ones((n, 2)), "table": np.ones(3), "n": n} for n in (4, 1)]
    sharding = {"x": split, "table": whole, "n": split, "mask": whole}
    full, short = prefetch_to_device(batches, sharding, remainder="pad")
    np.testing.assert_array_equal(short["x"], [[1, 1], [0, 0], [0, 0], [0, 0]])
    np.testing.assert_array_equal(short["table"], [1, 1, 1])
    assert (full["n"], short["n"]) == (4, 1)
    assert short["mask"].sharding == whole
    np.testing.assert_array_equal(short["mask"], [True, False, False, False])


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ([np.zeros(4)], InvalidTypeError, "a list has no keys"),
        ({"x": np.zeros(4), "mask": np.zeros(4)}, InvalidValueError, "Give another mask_key"),
        ({"n": 3}, InvalidValueError, "counts the rows of array leaves"),
    ],
)
def test_a_mask_without_a_place_is_refused(
    batch: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        list(prefetch_to_device([batch], remainder="pad"))


@pytest.mark.parametrize("describes", [True, False])
@pytest.mark.parametrize("state_as", [dict, bytes, int])
@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("buffer_size", [1, 3])
def test_every_state_restores_the_rest(
    describes: bool, state_as: type, remainder: str, buffer_size: int
) -> None:
    def stage() -> Any:
        source = Batches(18, 4, state_as, describes)
        return prefetch_to_device(source, remainder=remainder, buffer_size=buffer_size)

    with stage() as iterator:
        states, whole = [iterator.get_state()], []
        for batch in iterator:
            whole.append(rows(batch))
            states.append(iterator.get_state())
        iterator.set_state(states[2])
        assert [rows(batch) for batch in iterator] == whole[2:]
    assert len(whole) == (5 if remainder == "pad" else 4)
    for step, state in enumerate(states):
        if state_as is not int:
            assert type(state) is state_as
        with stage() as fresh:
            fresh.set_state(state)
            assert fresh.get_state() == state
            assert [rows(batch) for batch in fresh] == whole[step:]


def test_the_state_is_that_of_the_source_where_it_describes_its_batches() -> None:
    source = Batches(16, 4, describes=True)
    with prefetch_to_device(source) as iterator:
        next(iterator)
        assert iterator.get_state() == {"start": 4}
        iterator.set_state({"start": 12})
        assert rows(next(iterator)) == [12, 13, 14, 15]


def test_a_state_of_the_bare_source_is_accepted() -> None:
    with prefetch_to_device(Batches(16, 4)) as iterator:
        iterator.set_state({"start": 8})
        assert rows(next(iterator)) == [8, 9, 10, 11]
        with pytest.raises(ValueError, match="between two"):
            iterator.set_state({"batch_rows": 7, "source": {"start": 7}})
        assert rows(next(iterator)) == [12, 13, 14, 15]


def test_states_pass_between_sources_that_describe_their_batches_and_others() -> None:
    for describes in (True, False):
        with prefetch_to_device(Batches(16, 4, describes=describes)) as iterator:
            next(iterator)
            state = iterator.get_state()
        with prefetch_to_device(Batches(16, 4, describes=not describes)) as other:
            other.set_state(state)
            assert [rows(batch) for batch in other] == [
                [i, i + 1, i + 2, i + 3] for i in (4, 8, 12)
            ]


def test_an_elastic_state_stays_one() -> None:
    class Elastic(Batches):
        def get_state(self) -> Any:
            state = {"elastic": True, "start": self.start}
            return state if self.state_as is dict else json.dumps(state).encode()

    for state_as in (dict, bytes):
        with prefetch_to_device(Elastic(8, 4, state_as)) as iterator:
            next(iterator)
            state = iterator.get_state()
            assert (state if state_as is dict else json.loads(state))["elastic"] is True
            iterator.set_state(state)
            assert rows(next(iterator)) == [4, 5, 6, 7]


def test_orbax_v1_saves_and_loads_it(tmp_path: Path) -> None:
    class Ready:
        async def await_creation(self) -> Path:
            return tmp_path

    async def save(iterator: Any) -> None:
        writing = await iterator.save(Ready())
        next(iterator)
        await writing

    async def load(iterator: Any) -> None:
        await (await iterator.load(tmp_path))

    with prefetch_to_device(Batches(18, 4, bytes), remainder="pad") as iterator:
        next(iterator)
        asyncio.run(save(iterator))
        expected = [rows(batch) for batch in iterator]
    with prefetch_to_device(Batches(18, 4, bytes), remainder="pad") as fresh:
        asyncio.run(load(fresh))
        assert [rows(batch) for batch in fresh] == [[4, 5, 6, 7], *expected]


def test_device_put_has_the_states_of_its_source() -> None:
    class Source:
        def __iter__(self) -> Batches:
            return Batches(18, 4)

    ds = device_put(Source(), jax.devices()[0])
    with iter(ds) as iterator:
        states, whole = [iterator.get_state()], []
        for batch in iterator:
            whole.append(rows(batch))
            states.append(iterator.get_state())
    assert states == [{"start": 4 * i} for i in range(6)]
    for step, state in enumerate(states):
        with iter(ds) as fresh:
            fresh.set_state(state)
            assert [rows(batch) for batch in fresh] == whole[step:]


def test_an_error_of_the_source_comes_in_its_turn_and_does_not_move_the_position() -> None:
    class Failing(Batches):
        failures = 1

        def __next__(self) -> Any:
            if self.start == 8 and self.failures:
                self.failures -= 1
                raise OSError("disk")
            return super().__next__()

    with prefetch_to_device(Failing(16, 4)) as iterator:
        assert [rows(next(iterator)) for _ in range(2)] == FULL
        with pytest.raises(OSError, match="disk"):
            next(iterator)
        assert iterator.get_state() == {"batch_rows": 4, "source": {"start": 8}}
        assert [rows(batch) for batch in iterator] == [[8, 9, 10, 11], [12, 13, 14, 15]]


def test_an_integer_out_of_range_does_not_move_the_position() -> None:
    class Large(Batches):
        def __next__(self) -> Any:
            batch = super().__next__()
            return {**batch, "id": batch["x"].astype(np.int64) * 2**29}

    with prefetch_to_device(Large(16, 4)) as iterator:
        next(iterator)
        for _ in range(2):
            with pytest.raises(InvalidValueError, match=r"batch\['id'\], row 0, holds 2147483648"):
                next(iterator)
        assert iterator.get_state() == {"batch_rows": 4, "source": {"start": 4}}


def test_it_is_over_after_close() -> None:
    iterator = prefetch_to_device(Batches(16, 4))
    batch = next(iterator)
    iterator.close()
    iterator.close()
    with pytest.raises(ClosedError, match="DeviceIterator was closed"):
        next(iterator)
    # A last save may come behind the `with` block.
    assert iterator.get_state() == {"batch_rows": 4, "source": {"start": 4}}
    assert rows(batch) == [0, 1, 2, 3]


def test_case_12_close_closes_a_source_that_blocks() -> None:
    class Blocking(Batches):
        def __init__(self) -> None:
            super().__init__(16, 4)
            self.reading, self.closed = threading.Event(), threading.Event()

        def __next__(self) -> Any:
            if self.start:
                self.reading.set()
                self.closed.wait()
                raise StopIteration
            return super().__next__()

        def close(self) -> None:
            self.closed.set()

    source = Blocking()
    iterator = prefetch_to_device(source)
    assert rows(next(iterator)) == [0, 1, 2, 3]
    assert source.reading.wait(PATIENCE)
    iterator.close()  # the test's timeout is what it would wait for
    assert source.closed.is_set()


def test_dropping_it_ends_its_thread() -> None:
    before = threading.active_count()
    iterator = prefetch_to_device(Batches(400, 4))
    next(iterator)
    assert threading.active_count() == before + 1
    del iterator


SCRIPT = """
import sys, numpy as np
from grain_jax import prefetch_to_device
import jax

def source():
    while True:
        yield {"x": np.ones((64, 4096), np.float32)}

iterator = prefetch_to_device(source(), buffer_size=8)
iterator.start_prefetch()
for _ in range(int(sys.argv[1])):
    next(iterator)
if sys.argv[2] == "raise":
    sys.exit(3)
"""


@pytest.mark.parametrize(("steps", "end"), [(0, "end"), (1, "end"), (3, "raise"), (6, "end")])
def test_a_script_may_end_in_the_middle_of_a_transfer(
    steps: int, end: str, no_process_left: None
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", SCRIPT, str(steps), end],
        env={**os.environ, "PYTHONPATH": ROOT},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert (done.returncode, done.stderr) == (3 if end == "raise" else 0, "")


@pytest.mark.parametrize("remainder", ["pad", "drop"])
@pytest.mark.parametrize("again", [False, True])
def test_a_short_batch_of_a_stream_is_short_also_where_it_is_the_first(
    remainder: str, again: bool
) -> None:
    stream = grain.MapDataset.source({"x": np.arange(3)}).to_iter_dataset().batch(8)
    with prefetch_to_device(stream, jax.devices()[0], remainder=remainder) as iterator:
        if again:  # from the start, which is no other place
            iterator.set_state(iterator.get_state())
        found = list(iterator)
    if remainder == "drop":
        assert found == []
    else:
        (batch,) = found
        assert batch["x"].tolist() == [0, 1, 2, 0, 0, 0, 0, 0]
        assert batch["mask"].tolist() == [True] * 3 + [False] * 5


def test_a_stream_whose_last_batch_is_short_is_refused_at_once() -> None:
    stream = grain.MapDataset.source({"x": np.arange(12)}).to_iter_dataset().batch(8)
    with pytest.raises(ValueError, match="the last batch has 4 rows"):
        prefetch_to_device(stream, jax.devices()[0])
