"""`stats()` says where the time goes, and measuring changes nothing."""

from __future__ import annotations

import logging
import time
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._execution import waits
from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

WORKERS = pytest.mark.parametrize("workers", [0, 2])
LONG = 0.01  # seconds; all else that a pipeline here does takes less


class Records:
    def __init__(self, pause: float = 0.0) -> None:
        self._pause = pause

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: Any) -> Any:
        time.sleep(self._pause)
        return np.full(100, int(index), np.int32)


def slow(element: Any) -> Any:
    time.sleep(LONG)
    return element


def same(element: Any) -> Any:
    return element


def slow_batch(elements: Any) -> Any:
    time.sleep(8 * LONG)
    return np.stack(elements)


def even(element: Any) -> bool:
    return bool(element[0] % 2 == 0)


def measured(stream: Any, workers: int) -> grain.DatasetIterator[Any]:
    options = grain.experimental.DatasetOptions(
        execution_tracking_mode=grain.experimental.ExecutionTrackingMode.STAGE_TIMING
    )
    stream = grain.experimental.WithOptionsIterDataset(stream, options)
    if workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
    return iter(stream)


def streams() -> dict[str, tuple[Any, str]]:
    """Pipelines slow at one place, and what that is called."""

    def plain(pause: float = 0.0) -> Any:
        return grain.MapDataset.source(Records(pause)).to_iter_dataset()

    random_access = grain.MapDataset.source(Records()).map(same).map(slow).map(same)
    mixed = {"fast": plain(), "slow": plain().map(same).map(slow)}
    iterable = grain.IterDataset.from_iterable(lambda: map(slow, range(32)))
    return {
        "source": (plain(LONG).map(same).batch(8), "source"),
        "second of three": (plain().map(same).map(slow).map(same).batch(8), "step 2: map(slow)"),
        "random access": (random_access.to_iter_dataset().batch(8), "step 2: map(slow)"),
        "filter": (plain().filter(even).map(slow).batch(8), "step 2: map(slow)"),
        "batch function": (plain().map(same).batch(8, batch_fn=slow_batch), "step 2: batch(8)"),
        "iterable": (iterable.map(same).batch(8), "source"),
        "mixture": (grain.IterDataset.mix(mixed).batch(8), "slow: step 2: map(slow)"),
    }


@WORKERS
@pytest.mark.parametrize("name", streams())
def test_the_slow_part_has_the_largest_share(name: str, workers: int) -> None:
    stream, slowest = streams()[name]
    expected = [np.asarray(element).tolist() for element in stream]
    with measured(stream, workers) as iterator:
        found = [np.asarray(element).tolist() for element in iterator]
        stats = iterator.stats()
    assert found == expected
    assert max(stats.steps, key=lambda step: step.share).name == slowest
    assert sum(step.share for step in stats.steps) == pytest.approx(1)
    assert stats.elements == len(expected)
    assert slowest in str(stats)


@WORKERS
def test_records_bytes_and_processes_are_counted(workers: int) -> None:
    stream = grain.MapDataset.source(Records()).to_iter_dataset().filter(even).map(same).batch(4)
    with measured(stream, workers) as iterator:
        assert len(list(iterator)) == 4
        stats = iterator.stats()
    assert {step.name: step.records for step in stats.steps} == {
        "source": 32,
        "step 1: filter(even)": 32,
        "step 2: map(same)": 16,
        "step 3: batch(4)": 16,
    }
    sizes = {step.name: step.bytes for step in stats.steps}
    assert sizes["source"] == 32 * 400
    assert sizes["step 3: batch(4)"] == 16 * 400
    names = {worker.name for worker in stats.workers}
    assert names == {"trainer"} if not workers else names <= {"worker 1", "worker 2", "trainer"}
    # Of a filter's survivors some batches are stacked here, where that is the smaller work.
    assert {step.where for step in stats.steps[:2]} == {"workers" if workers else "trainer"}


@WORKERS
def test_a_loader_behind_the_device_stage(workers: int) -> None:
    loader = grain.DataLoader(
        data_source=Records(),
        sampler=grain.samplers.IndexSampler(32, num_epochs=1),
        operations=[grain.python.MapOperation(slow), grain.transforms.Batch(8)],
        worker_count=workers,
        enable_profiling=True,
    )
    with grain.prefetch_to_device(loader) as batches:
        seen = [np.asarray(batch)[:, 0].tolist() for batch in batches]
        stats = batches.stats()
    loader.close()
    assert seen == [list(range(begin, begin + 8)) for begin in range(0, 32, 8)]
    assert [step.name for step in stats.steps][-1] == "transfer"
    assert stats.steps[-1].calls == 4
    assert stats.steps[-1].bytes == 32 * 400
    assert max(stats.steps, key=lambda step: step.share).name == "step 1: map(slow)"
    assert (stats.elements, stats.buffer_size) == (4, 2)


def test_any_iterable_behind_the_device_stage() -> None:
    with grain.prefetch_to_device(slow(np.ones((8, 2), np.float32)) for _ in range(4)) as batches:
        batches.start_stats()
        assert len(list(batches)) == 4
        stats = batches.stats()
    assert [(step.name, step.records) for step in stats.steps] == [("source", 4), ("transfer", 4)]


class Twice(grain.python.Operation):
    def __call__(self, records: Any) -> Any:
        for record in records:
            time.sleep(LONG)
            yield record


@WORKERS
def test_an_operation_of_the_users_own(workers: int) -> None:
    loader = grain.DataLoader(
        data_source=Records(),
        sampler=grain.samplers.IndexSampler(32, num_epochs=1),
        operations=[grain.python.MapOperation(same), Twice()],
        worker_count=workers,
        enable_profiling=True,
    )
    iterator = iter(loader)
    assert len(list(iterator)) == 32
    slowest = max(iterator.stats().steps, key=lambda step: step.share)
    loader.close()
    assert (slowest.name, slowest.where, slowest.records) == (
        "step 2: operation(Twice)",
        "trainer",
        32,
    )


@WORKERS
@pytest.mark.parametrize("taken", [0, 3])
def test_measuring_may_begin_at_any_element(workers: int, taken: int) -> None:
    loader = grain.load(Records(), num_epochs=1, batch_size=4, worker_count=workers)
    with iter(loader) as iterator:
        found = [next(iterator)[:, 0].tolist() for _ in range(taken)]
        with pytest.raises(ValueError, match=r"measures nothing yet. Write enable_profiling=True"):
            iterator.stats()
        state = iterator.get_state()
        iterator.start_stats()
        iterator.start_stats()
        assert iterator.get_state() == state
        found += [batch[:, 0].tolist() for batch in iterator]
        stats = iterator.stats()
    loader.close()
    assert [value for batch in found for value in batch] == list(range(32))
    assert stats.elements == 8 - taken
    assert stats.steps[0].records == 32 - 4 * taken


def test_waits_and_work_of_the_loop() -> None:
    steps = [grain.python.MapOperation(slow)]
    loader = grain.load(Records(), num_epochs=1, batch_size=8, transformations=steps)
    with iter(loader) as iterator:
        iterator.start_stats()
        for _ in iterator:
            time.sleep(3 * 8 * LONG)
        stats = iterator.stats()
    assert stats.waited >= 32 * LONG
    assert stats.computed >= 3 * 32 * LONG
    assert stats.waited + stats.computed == pytest.approx(stats.seconds)


def test_the_table_is_logged_each_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "grain_jax")
    loader = grain.load(Records(), num_epochs=1, batch_size=8)
    for seconds, expected in ((60.0, 0), (0.0, 4)):
        monkeypatch.setattr(waits, "_LOGGED", seconds)
        caplog.clear()
        with iter(loader) as iterator:
            iterator.start_stats()
            assert len(list(iterator)) == 4
        # With each question after the first, the one that ends the stream among them.
        told = [record.getMessage() for record in caplog.records]
        assert [text.count("step 1: batch(8)") for text in told] == [1] * expected


def test_a_class_of_the_users_own_says_that_it_measures_nothing() -> None:
    class Mine(grain.DatasetIterator[int]):
        def __next__(self) -> int:
            return 1

        def get_state(self) -> dict[str, Any]:
            return {}

        def set_state(self, state: dict[str, Any]) -> None:
            pass

    for ask in (Mine().stats, Mine().start_stats):
        with pytest.raises(TypeError, match="Mine measures nothing"):
            ask()


TRACED = """
import glob, gzip, json
import jax
import numpy as np
import grain_jax as grain

class Double(grain.transforms.Map):
    def map(self, element):
        return element * 2

loader = grain.load(
    np.ones((64, 8), np.float32), num_epochs=1, transformations=[Double()], batch_size=8,
    worker_count=WORKERS)
batches = grain.prefetch_to_device(loader)
batches.start_stats()
with jax.profiler.trace("trace"):
    assert len(list(batches)) == 8
batches.close()
loader.close()
(file,) = glob.glob("trace/**/*.trace.json.gz", recursive=True)
events = json.load(gzip.open(file))["traceEvents"]
names = [event.get("name", "") for event in events]
print(sorted({name for name in names if name.startswith("grain_jax")}))
print(names.count("grain_jax: transfer"), names.count("grain_jax: wait"))
"""


@WORKERS
def test_a_trace_of_the_profiler_shows_reads_steps_transfers_and_waits(
    workers: int, tmp_path: Any
) -> None:
    text = TRACED.replace("WORKERS", str(workers))
    done = scripts.run(tmp_path, text, warn="default")
    assert done.returncode == 0, done.stderr
    names, counts = done.stdout.strip().splitlines()[-2:]
    # What worker processes do is in no trace of this one.
    here = [] if workers else ["reading the source", "step 1: map(Double)", "step 2: batch(8)"]
    expected = sorted([*here, "transfer", "wait"])
    assert names == str([f"grain_jax: {name}" for name in expected])
    assert counts == "8 9"
