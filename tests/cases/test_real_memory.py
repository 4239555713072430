"""Memory that is shared, work that is done twice: what one does to it never shows elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import grain_jax as grain
from tests import devices
from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

WORKERS = [0, 1, 2]
WIDTH = 256  # of int32: JAX takes it as it is, without a copy
MODES = ["fork_imported", "fork_first", "fresh"]


@pytest.fixture(params=["memory", "file"])
def memory(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "file":
        monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")
    return str(request.param)


class Records:
    """Makes each record afresh."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, key: int) -> dict[str, Any]:
        return {"x": np.full(WIDTH, key, np.int32)}


class Even(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return int(element["x"][0]) % 2 == 0


def loader(source: Any, *operations: Any, workers: int, **settings: Any) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=source,
        sampler=grain.samplers.SequentialSampler(len(source)),
        operations=operations,
        worker_count=workers,
        **settings,
    )


def first_column(batches: Any) -> list[list[int]]:
    return [np.asarray(batch["x"])[:, 0].tolist() for batch in batches]


# --- a second attempt sees what the first one saw ------------------------------------------------


class Tenfold:
    """A batch function that edits the records in place, and dies once having done so."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __call__(self, records: Any) -> Any:
        for record in records:
            record["x"] *= 10
        if records[0]["x"][0] == 80 and not self.mark.exists():
            self.mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {"x": np.stack([record["x"] for record in records])}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("mode", MODES)
def test_a_second_attempt_sees_what_the_first_one_saw(
    workers: int, mode: str, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MODE", mode)
    tenfold = Tenfold(tmp_path / "mark")
    batch = grain.transforms.Batch(2, batch_fn=tenfold)
    with loader(Records(40), Even(), batch, workers=workers) as batches:
        got = first_column(batches)
    assert tenfold.mark.exists()
    assert got == [[20 * i, 20 * i + 20] for i in range(0, 20, 2)]


def test_without_workers_a_second_attempt_sees_the_same() -> None:
    calls = []

    def tenfold(records: Any) -> Any:
        for record in records:
            record["x"] *= 10
        calls.append(len(calls))
        if len(calls) == 2:
            raise OSError("not yet")
        return {"x": np.stack([record["x"] for record in records])}

    batch = grain.transforms.Batch(2, batch_fn=tenfold)
    iterator = iter(loader(Records(12), Even(), batch, workers=0))
    assert first_column([next(iterator)]) == [[0, 20]]
    with pytest.raises(OSError, match="not yet"):
        next(iterator)
    assert first_column(iterator) == [[40, 60], [80, 100]]


class Twice(grain.transforms.FlatMap):
    """Two elements with one array in both."""

    def flat_map(self, element: Any) -> Any:
        return [{"x": element["x"]}, {"x": element["x"]}, {"x": element["x"]}]


@pytest.mark.parametrize("workers", WORKERS)
def test_batches_with_outputs_of_one_record_edit_their_own(workers: int, memory: str) -> None:
    def tenfold(records: Any) -> Any:
        for record in records:
            record["x"] *= 10
        return {"x": np.stack([record["x"] for record in records])}

    batch = grain.transforms.Batch(2, batch_fn=tenfold)
    with loader(Records(8), Twice(), batch, workers=workers) as batches:
        got = [value for column in first_column(batches) for value in column]
    assert got == [10 * key for key in range(8) for _ in range(3)]


# --- what a step keeps ---------------------------------------------------------------------------


class Spoils(grain.transforms.Map):
    """Keeps what it returned, and writes to it at the next call."""

    def __init__(self) -> None:
        self.last: Any = None

    def map(self, element: Any) -> Any:
        if self.last is not None:
            self.last["x"][...] = -7
        self.last = element
        return element


class Buffer(grain.transforms.Map):
    """Writes each result to the same memory."""

    def __init__(self) -> None:
        self.memory = np.zeros((2, WIDTH), np.int32)

    def map(self, element: Any) -> Any:
        self.memory[...] = element["x"]
        return {"x": self.memory[:, 0:2]}


class SpoilsInput(grain.transforms.Filter):
    """A filter that writes to the element it let through before."""

    def __init__(self) -> None:
        self.last: Any = None

    def filter(self, element: Any) -> bool:
        if self.last is not None:
            self.last["x"][...] = -7
        self.last = element
        return True


class SpoilsOutputs(grain.transforms.FlatMap):
    """Keeps its list of outputs, and writes to them at the next call."""

    def __init__(self) -> None:
        self.last: list[Any] = []

    def flat_map(self, element: Any) -> Any:
        for output in self.last:
            output["x"][...] = -7
        self.last = [{"x": element["x"].copy()}]
        return self.last


class SpoilsDrawn(grain.transforms.RandomMap):
    def __init__(self) -> None:
        self.last: Any = None

    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        if self.last is not None:
            self.last["x"][...] = -7
        self.last = element
        return element


KEEPERS = [Spoils, Buffer, SpoilsInput, SpoilsOutputs, SpoilsDrawn]


@pytest.mark.parametrize("kind", KEEPERS)
@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("held", [False, True])
def test_what_was_delivered_stays_though_the_step_keeps_it(
    kind: Any, workers: int, held: bool
) -> None:
    source: Any = (
        [{"x": np.full(WIDTH, key, np.int32)} for key in range(40)] if held else Records(40)
    )
    sampler = grain.samplers.IndexSampler(40, num_epochs=1, seed=1)
    batches = grain.DataLoader(
        data_source=source,
        sampler=sampler,
        operations=[grain.transforms.Batch(2), kind()],
        worker_count=workers,
    )
    with batches:
        got = list(batches)
        assert first_column(got) == [[key, key + 1] for key in range(0, 40, 2)]


@pytest.mark.parametrize("kind", KEEPERS)
@pytest.mark.parametrize("workers", WORKERS)
def test_on_devices_it_stays_too(kind: Any, workers: int) -> None:
    operations = [grain.transforms.Batch(2), kind()]
    sampler = grain.samplers.IndexSampler(40, num_epochs=1, seed=1)
    source = grain.DataLoader(
        data_source=Records(40), sampler=sampler, operations=operations, worker_count=workers
    )
    with source, grain.prefetch_to_device(source, devices.first()) as batches:
        assert first_column(list(batches)) == [[key, key + 1] for key in range(0, 40, 2)]


@pytest.mark.parametrize("workers", WORKERS)
def test_what_a_step_keeps_of_a_record_is_its_own(workers: int) -> None:
    """Records that are read together are one unit no more than those that are read alone."""
    dataset = grain.MapDataset.source(Records(40)).map(Spoils()).to_iter_dataset()
    if workers:
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    got = [element["x"].tolist() for element in list(dataset)]
    assert got == [[key] * WIDTH for key in range(40)]


def test_what_a_step_makes_and_does_not_keep_is_not_copied() -> None:
    places = []

    def note(element: Any) -> Any:
        places.append(element["x"].__array_interface__["data"][0])
        return element

    def doubled(element: Any) -> Any:
        element["x"] *= 2
        return element

    todo = [note, lambda e: bool(e["x"][0] % 4), doubled, note, lambda e: [e], note]
    dataset = grain.MapDataset.source(Records(4)).map(todo[0]).filter(todo[1]).map(todo[2])
    stream = dataset.map(todo[3]).to_iter_dataset().flat_map(todo[4]).map(todo[5])
    got = list(stream)
    assert [element["x"].tolist() for element in got] == [[2 * key] * WIDTH for key in (1, 2, 3)]
    last = [element["x"].__array_interface__["data"][0] for element in got]
    for place in last:
        assert places.count(place) >= 3


def test_fresh_records_stay_writable_where_threads_read_them() -> None:
    def doubled(element: Any) -> Any:
        element["x"] *= 2
        return element

    options = grain.ReadOptions(num_threads=4, prefetch_buffer_size=16)
    dataset = grain.MapDataset.source(Records(64)).map(doubled).to_iter_dataset(options)
    assert [element["x"][0] for element in dataset] == [2 * key for key in range(64)]


# --- what a user can still write to --------------------------------------------------------------


def spoiling(batches: Any, wrap: Any) -> Any:
    """Yields batches, and writes to each once the next one is asked for."""
    last = None
    for batch in batches:
        if last is not None:
            last["x"].flags.writeable = True
            last["x"][...] = -7
        last = batch
        yield wrap(batch)


def read_only(batch: Any) -> Any:
    batch["x"].flags.writeable = False
    return batch


WRAPS = {
    "itself": lambda batch: batch,
    "the array": lambda batch: {"x": batch["x"]},
    "a view": lambda batch: {"x": batch["x"][:, ::-1]},
    "nested": lambda batch: {"x": batch["x"][:], "more": [batch["x"][:, 1:]]},
    "read-only": read_only,
    "a read-only view": lambda batch: {"x": np.broadcast_to(batch["x"], batch["x"].shape)},
    "a view of a buffer": lambda batch: {"x": np.asarray(memoryview(batch["x"]))},
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("wrap", WRAPS)
def test_batches_that_their_maker_writes_to_arrive_unchanged(workers: int, wrap: str) -> None:
    with loader(Records(80), grain.transforms.Batch(4), workers=workers) as batches:
        given = spoiling(batches, WRAPS[wrap])
        with grain.prefetch_to_device(given, devices.first(), buffer_size=4) as placed:
            got = first_column(list(placed))
    assert got == [list(range(key, key + 4)) for key in range(0, 80, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_the_users_own_dataset_arrive_unchanged(workers: int) -> None:
    class Own(grain.IterDataset):
        def __iter__(self) -> Any:
            return spoiling(
                loader(Records(80), grain.transforms.Batch(4), workers=workers), WRAPS["itself"]
            )

    with grain.prefetch_to_device(Own(), devices.first()) as placed:
        assert first_column(list(placed)) == [list(range(k, k + 4)) for k in range(0, 80, 4)]


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_user_reads_from_the_host_first_is_copied_too(workers: int) -> None:
    batches = loader(Records(80), grain.transforms.Batch(4), workers=workers)
    host = list(batches)
    batches.close()
    with grain.prefetch_to_device(host, devices.first()) as placed:
        device = list(placed)
    for batch in host:
        batch["x"][...] = -7
    assert first_column(device) == [list(range(k, k + 4)) for k in range(0, 80, 4)]


def test_what_the_user_made_read_only_for_a_while_is_copied_too() -> None:
    def made() -> Any:
        last = np.zeros((4, WIDTH), np.int32)
        for key in range(20):
            batch = np.full((4, WIDTH), key, np.int32)
            batch.flags.writeable = False
            last.flags.writeable = True
            last[...] = -7
            last = batch
            yield {"x": batch}

    with grain.prefetch_to_device(made(), devices.first(), buffer_size=4) as placed:
        assert first_column(list(placed)) == [[key] * 4 for key in range(20)]


# --- kinds that lose something on the way --------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("frozen", [False, True])
def test_records_with_slots_of_the_script_arrive(
    tmp_path: Path, workers: int, frozen: bool
) -> None:
    text = f"""
    import dataclasses
    import numpy as np
    import grain_jax as grain

    @dataclasses.dataclass(slots=True, frozen={frozen})
    class Example:
        x: np.ndarray
        label: int

    def make(key):
        return Example(np.full(3, key), key)

    class Make(grain.transforms.Map):
        def map(self, key):
            return make(key)

    for source, todo in ((range(4), [Make()]), ([make(key) for key in range(4)], [])):
        loader = grain.load(source, transformations=todo, num_epochs=1, worker_count={workers})
        for key, example in enumerate(loader):
            assert type(example) is Example
            print(example.x.tolist(), example.label)
    """
    expected = [f"{[key] * 3} {key}" for key in range(4)] * 2
    assert scripts.output(tmp_path, text) == expected


TINY = ["float8_e5m2", "float8_e4m3fn", "bfloat16", "int4", "float8_e8m0fnu"]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", TINY)
def test_dtypes_that_numpy_has_not_arrive_also_padded(workers: int, name: str) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name))
    values = np.arange(1, 7).astype(dtype)
    source = [{"x": values[key : key + 1]} for key in range(6)]
    batch = grain.transforms.Batch(4)
    host = list(loader(source, batch, workers=workers))
    assert [b["x"].dtype for b in host] == [dtype, dtype]
    assert np.concatenate([b["x"][:, 0] for b in host]).tobytes() == values.tobytes()
    batches = loader(source, batch, workers=workers)
    with grain.prefetch_to_device(batches, devices.first(), remainder="pad") as placed:
        got = list(placed)
    batches.close()
    assert [b["x"].dtype for b in got] == [dtype, dtype]
    assert [np.asarray(b["mask"]).tolist() for b in got] == [[True] * 4, [True] * 2 + [False] * 2]
    rows = np.concatenate([np.asarray(b["x"])[np.asarray(b["mask"]), 0] for b in got])
    assert rows.tobytes() == values.tobytes()
    zero = np.zeros(2, dtype).tobytes()  # of float8_e8m0fnu, which has none, the smallest number
    assert np.asarray(got[1]["x"])[2:, 0].tobytes() == zero
