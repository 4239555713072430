"""Sources and steps that draw random numbers of their own give one stream, or say why not."""

from __future__ import annotations

import contextlib
import random
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests import devices
from tests.cases import scripts

pytestmark = [
    pytest.mark.usefixtures("no_process_left"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc"),
]

COUNT = 400


class Drawing:
    """A source whose records are random numbers."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        return np.random.rand()


class DrawingPython(Drawing):
    def __getitem__(self, index: int) -> Any:
        return random.random()


class DrawingMany(Drawing):
    def __getitems__(self, indices: Sequence[int]) -> Any:
        return list(np.random.rand(len(indices)))


class DrawingBatch(Drawing):
    def __getbatch__(self, indices: Any) -> Any:
        return np.random.rand(len(indices))


class DrawingSometimes(Drawing):
    """Every third record is drawn, the others are what they are."""

    def __getitem__(self, index: int) -> Any:
        return np.random.randn() + 10 if index % 3 == 0 else float(-index)


SOURCES = [Drawing, DrawingPython, DrawingMany, DrawingBatch, DrawingSometimes]


def flat(batches: Any) -> list[Any]:
    return [float(x) for batch in batches for x in np.atleast_1d(batch)]


def stream(source: Any, count: int = 1, seed: int = 0, **options: Any) -> list[Any]:
    with grain.load(source, num_epochs=count, seed=seed, **options) as loader:
        return flat(loader)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_that_draws(kind: Any) -> None:
    expected = stream(kind())
    assert len(set(expected)) == COUNT
    for workers in (1, 2, 4):
        assert stream(kind(), worker_count=workers) == expected
    for size in (1, 7, 64):
        assert stream(kind(), batch_size=size) == expected
        assert stream(kind(), batch_size=size, worker_count=2) == expected
    for threads in (0, 3):
        options = grain.ReadOptions(num_threads=threads)
        assert stream(kind(), read_options=options, batch_size=16) == expected
        assert stream(kind(), read_options=options, worker_count=2) == expected
    assert not set(stream(kind(), seed=1)) & {x for x in expected if x > 0}


@pytest.mark.parametrize("kind", [Drawing, DrawingSometimes])
@pytest.mark.parametrize("memory", ["memfd", "file"])
@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
def test_a_source_that_draws_in_each_kind_of_worker(
    kind: Any, mode: str, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = stream(kind(), batch_size=10)
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MODE", mode)
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", memory)
    assert stream(kind(), batch_size=10, worker_count=2) == expected


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_and_seeds_differ_and_a_shuffle_moves_no_draw(workers: int) -> None:
    two = stream(Drawing(), 2, worker_count=workers)
    assert len(set(two)) == 2 * COUNT
    shuffled = stream(Drawing(), 2, shuffle=True, worker_count=workers)
    assert shuffled == two  # a draw depends on the position


@pytest.mark.parametrize("workers", [0, 2])
def test_a_restored_stream_goes_on_with_its_draws(workers: int) -> None:
    expected = stream(Drawing(), batch_size=5)
    with grain.load(Drawing(), num_epochs=1, seed=0, batch_size=5, worker_count=workers) as loader:
        iterator = iter(loader)
        begin = flat(next(iterator) for _ in range(31))
        state = iterator.get_state()
        restored = iter(loader)
        restored.set_state(state)
        assert begin + flat(restored) == expected
        assert flat(iterator) == expected[len(begin) :]


@pytest.mark.parametrize("workers", [0, 2])
def test_shards_have_the_draws_of_the_whole(workers: int) -> None:
    whole = stream(Drawing())
    for shard in range(2):
        part = stream(
            Drawing(), shard_options=grain.sharding.ShardOptions(shard, 2), worker_count=workers
        )
        assert part == whole[shard::2]


@pytest.mark.parametrize("workers", [0, 2])
def test_source_and_steps_that_draw_share_nothing(workers: int) -> None:
    class Noise(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return np.array([element, np.random.rand()])

    with grain.load(
        Drawing(), num_epochs=1, seed=3, transformations=[Noise()], worker_count=workers
    ) as loader:
        pairs = np.array(list(loader))
    assert len(set(pairs.ravel().tolist())) == 2 * COUNT
    assert pairs[:, 0].tolist() == stream(Drawing(), seed=3)


def dataset(kind: Any) -> grain.MapDataset[Any]:
    return grain.MapDataset.source(kind()).seed(3)


class Custom(grain.MapDataset[Any]):
    """A user's own dataset that draws."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: Any) -> Any:
        return float(np.random.rand()) if index % 2 else float(-index)


@pytest.mark.parametrize("make", [*SOURCES, Custom])
def test_datasets_over_a_source_that_draws(make: Any) -> None:
    ds = Custom().seed(3) if make is Custom else dataset(make)
    expected = flat(ds.to_iter_dataset())
    assert len(set(expected)) == COUNT
    assert [float(ds[i]) for i in (399, 0, 17)] == [expected[i] for i in (399, 0, 17)]
    batches = ds.to_iter_dataset().batch(9)
    assert flat(batches) == expected
    workers = grain.MultiprocessingOptions(num_workers=2)
    assert flat(batches.mp_prefetch(workers)) == expected
    assert flat(ds.batch(8).to_iter_dataset().mp_prefetch(workers)) == expected
    # An element is the same wherever it stands, and another one in each epoch.
    moved = ds.shuffle().repeat(2)
    assert len({float(moved[i]) for i in range(2 * COUNT)} & set(expected)) == COUNT
    assert flat(ds.slice(slice(100, 120)).to_iter_dataset()) == expected[100:120]


@pytest.mark.parametrize("kind", [*SOURCES, Custom])
def test_the_trainers_own_numbers_stay_as_they_are(kind: Any) -> None:
    def own() -> tuple[float, ...]:
        return np.random.rand(), np.random.randn(), random.random(), random.gauss(0, 1)

    def seed() -> None:
        random.seed(5)
        np.random.seed(5)

    seed()
    expected = [own() for _ in range(30)]
    seed()
    ds = Custom() if kind is Custom else dataset(kind)
    batches = iter(ds.to_iter_dataset().batch(3))
    found = []
    for _ in range(30):
        found.append(own())
        next(batches)
    assert found == expected


class Slow(grain.transforms.Map):
    """Draws, and takes its time, so that a second thread would draw in between."""

    def map(self, element: Any) -> Any:
        first = np.random.rand()
        time.sleep(1e-4)
        return np.array([float(element), first, np.random.rand(), random.random()])


def own() -> tuple[float, ...]:
    """What a trainer draws in one step."""
    numbers = np.random.rand(), np.random.randn(), random.random(), random.gauss(0, 1)
    time.sleep(1e-3)
    return numbers


def seed_own() -> None:
    random.seed(5)
    np.random.seed(5)


class Ordered:
    """A sampler of the user's own that draws."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, position: int) -> grain.RecordMetadata:
        return grain.RecordMetadata(position, np.random.randint(COUNT), None)


def over(kind: str, workers: int) -> Any:
    """A pipeline of batches that draws in one of many places."""
    if kind == "map":
        return grain.load(
            range(COUNT), num_epochs=1, transformations=[Slow()], batch_size=8, worker_count=workers
        )
    if kind == "sampler":
        return grain.DataLoader(
            data_source=range(COUNT),
            sampler=Ordered(),
            operations=[grain.transforms.Batch(8)],
            worker_count=workers,
        )
    if kind == "dataset":
        ds = grain.MapDataset.range(COUNT).seed(1).map(Slow()).batch(8).to_iter_dataset()
    elif kind == "custom":
        ds = Custom().batch(8).to_iter_dataset()
    else:
        ds = dataset({"source": Drawing, "batch": DrawingBatch}[kind]).to_iter_dataset().batch(8)
    return ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers)) if workers else ds


PLACES = ["map", "source", "batch", "sampler", "dataset", "custom"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("stage", ["prefetch_to_device", "device_put"])
def test_behind_the_device_stage(kind: str, stage: str, workers: int) -> None:
    expected = [np.asarray(batch, np.float32).tolist() for batch in over(kind, 0)]
    assert len(expected) == COUNT // 8
    seed_own()
    numbers = [own() for _ in expected]
    seed_own()
    found, mine = [], []
    given, device = over(kind, workers), devices.first()
    if stage == "prefetch_to_device":
        batches = grain.prefetch_to_device(given, device)
    else:
        batches = iter(grain.experimental.device_put(given, device))
    with batches, given if isinstance(given, grain.DataLoader) else contextlib.nullcontext():
        for batch in batches:
            mine.append(own())
            found.append(np.asarray(batch).tolist())
    assert found == expected
    assert mine == numbers


@pytest.mark.parametrize("kind", PLACES)
def test_the_position_behind_the_device_stage(kind: str) -> None:
    expected = [np.asarray(batch, np.float32).tolist() for batch in over(kind, 0)]
    with grain.prefetch_to_device(over(kind, 0), devices.first()) as batches:
        states = [(batches.get_state(), np.asarray(batch).tolist()) for batch in batches]
    assert [batch for _, batch in states] == expected
    for step in (0, 7, 48):
        with grain.prefetch_to_device(over(kind, 2), devices.first()) as again:
            again.set_state(states[step][0])
            assert [np.asarray(batch).tolist() for batch in again] == expected[step + 1 :]


def test_a_pipeline_that_cannot_draw_runs_beside_the_trainer() -> None:
    seen: set[int] = set()

    class Noting(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return element + 1

    class Source:
        def __len__(self) -> int:
            return 16

        def __getitem__(self, index: int) -> Any:
            seen.add(threading.get_ident())
            return np.array([index])

    loader = grain.load(Source(), num_epochs=1, transformations=[Noting()], batch_size=8)
    with grain.prefetch_to_device(loader, devices.first()) as batches:
        assert [np.asarray(b).ravel().tolist() for b in batches] == [
            list(range(1, 9)),
            list(range(9, 17)),
        ]
    assert seen
    assert threading.get_ident() not in seen


NOISE = """
    import sys
    import warnings
    import numpy as np
    import grain_jax as grain
    {before}
    class Noise(grain.transforms.Map):
        def __init__(self):
            self.own = np.random.default_rng(0)
        def map(self, element):
            return element + {draw}

    if __name__ == "__main__":
        for workers in (0, 2):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                loader = grain.load(
                    range(8), num_epochs=1, transformations=[Noise()], worker_count=workers
                )
                try:
                    with loader:
                        print(workers, len(list(loader)))
                except ValueError as error:
                    print(workers, type(error).__name__, str(error).splitlines()[0])
                for warning in caught:
                    print(workers, "warning", str(warning.message).splitlines()[0])
"""


@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
@pytest.mark.parametrize(
    ("before", "draw", "name"),
    [
        ("rng = np.random.default_rng()", "rng.normal()", "__main__.rng"),
        ("rng = np.random.default_rng(0)", "rng.normal()", "__main__.rng"),
        ("from noise import rng", "rng.normal()", "__main__.rng"),
        ("import noise", "noise.rng.normal()", "noise.rng"),
        ("import noise", "noise.draw()", "noise.rng"),
        ("", "self.own.normal()", "Noise.own"),
    ],
)
def test_generators_with_a_state_of_their_own(
    before: str, draw: str, name: str, mode: str, tmp_path: Path
) -> None:
    module = (
        "import numpy\nrng = numpy.random.default_rng(0)\ndef draw():\n    return rng.normal()\n"
    )
    (tmp_path / "noise.py").write_text(module)
    text = NOISE.format(before=before, draw=draw)
    done = scripts.run(tmp_path, text, GRAIN_JAX_ENGINE_MODE=mode)
    assert (done.returncode, done.stderr) == (0, "")
    count, warning, error = done.stdout.splitlines()
    assert count == "0 8"
    assert warning.startswith(f"0 warning {name} is a Generator with a state of its own")
    assert "RandomMap" in warning
    assert error.startswith(f"2 InvalidValueError {name} is a Generator with a state of its own")
    assert "RandomMap" in error


class Doubled:
    """An operation of the user's own: each record twice."""

    def __call__(self, stream: Any) -> Any:
        for number, record in enumerate(stream):
            for half in range(2):
                metadata = grain.RecordMetadata(2 * number + half, None, None)
                yield grain.Record(metadata, record.data)


class Draw(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return float(element) + np.random.rand()


@pytest.mark.filterwarnings("ignore:step 1")  # the stream is run again from its start
@pytest.mark.parametrize("workers", [0, 2])
def test_steps_behind_an_operation_of_the_users_own(workers: int) -> None:
    def loader(workers: int) -> grain.DataLoader:
        return grain.DataLoader(
            data_source=range(20),
            sampler=grain.samplers.IndexSampler(20, num_epochs=1, seed=3),
            operations=[Doubled(), Draw(), Draw(), grain.transforms.Batch(4)],
            worker_count=workers,
        )

    seed_own()
    numbers = [own() for _ in range(10)]
    seed_own()
    with loader(0) as first:
        expected, mine = [], []
        for batch in first:
            expected.append(batch.tolist())
            mine.append(own())
    assert mine == numbers
    assert len({x % 1 for batch in expected for x in batch}) == 40
    with loader(workers) as other:
        iterator = iter(other)
        assert [next(iterator).tolist() for _ in range(3)] == expected[:3]
        state = iterator.get_state()
        assert [batch.tolist() for batch in iterator] == expected[3:]
        iterator.set_state(state)
        assert [batch.tolist() for batch in iterator] == expected[3:]
