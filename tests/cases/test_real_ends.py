"""Who closes what: stages leave to their user what the user made; `close` against `next`."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors, experimental
from tests import devices
from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

MODES = ["fork_imported", "fork_first", "fresh"]


class Slow(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        if element % 4 == 0:
            time.sleep(0.5)
        return element


def slow(workers: int) -> Any:
    return grain.load(
        np.arange(64), num_epochs=1, transformations=[Slow()], batch_size=4, worker_count=workers
    )


STAGES: dict[str, Callable[[Any], Any]] = {
    "prefetch_to_device": lambda loader: grain.prefetch_to_device(loader),
    "device_put": lambda loader: iter(experimental.device_put(loader, devices.first())),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_usable_after_each_stage_that_is_left_early(stage: str, workers: int) -> None:
    loader = slow(workers)
    for _ in range(2):
        seen = []
        with STAGES[stage](loader) as batches:
            for batch in batches:
                seen.append(batch.tolist())
                if len(seen) == 2:
                    break
        assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert next(iter(loader)).tolist() == [0, 1, 2, 3]
    loader.close()


@pytest.mark.parametrize("mode", MODES)
def test_the_same_in_each_start_mode_and_with_file_memory(tmp_path: Path, mode: str) -> None:
    text = """
    import time
    import numpy as np
    import grain_jax as grain
    class Slow(grain.transforms.Map):
        def map(self, element):
            time.sleep(0.2)
            return element
    loader = grain.load(
        np.arange(64), num_epochs=1, transformations=[Slow()], batch_size=2, worker_count=2
    )
    for epoch in range(3):
        with grain.prefetch_to_device(loader) as batches:
            for step, batch in enumerate(batches):
                if step == 1:
                    break
        print(batch.tolist())
    loader.close()
    """
    settings = {"GRAIN_JAX_ENGINE_MODE": mode, "GRAIN_JAX_ENGINE_MEMORY": "file"}
    assert scripts.output(tmp_path, text, **settings) == ["[2, 3]"] * 3


class Stream:
    """A collection of the user's, whose iterator waits before its second element."""

    def __init__(self) -> None:
        self.gate, self.waiting, self.closed = threading.Event(), threading.Event(), 0

    def __iter__(self) -> Iterator[Any]:
        yield np.zeros(4)
        self.waiting.set()
        self.gate.wait()
        yield np.ones(4)

    def close(self) -> None:
        self.closed += 1
        self.gate.set()


@pytest.mark.parametrize("close_source", [False, True])
def test_what_is_iterated_over_is_closed_only_if_asked_for(close_source: bool) -> None:
    source = Stream()
    stage = grain.prefetch_to_device(source, close_source=close_source)
    next(stage)
    assert source.waiting.wait(30)
    stage.close()  # the test's timeout is what it would wait for
    assert source.closed == close_source
    source.gate.set()


class Add(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return element + 1


class Keep(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(element % 3)


class Own:
    """An operation of the user's own."""

    def __call__(self, records: Iterator[Any]) -> Iterator[Any]:
        yield from records


def endless(workers: int, *operations: Any) -> Any:
    return grain.DataLoader(
        data_source=np.arange(200),
        sampler=grain.samplers.IndexSampler(200, shuffle=True, seed=0),
        operations=[Add(), *operations, grain.transforms.Batch(4)],
        worker_count=workers,
    )


def dataset(workers: int) -> Any:
    batches = grain.MapDataset.source(np.arange(200)).map(Add()).repeat().batch(4)
    stream = batches.to_iter_dataset()
    options = grain.MultiprocessingOptions(num_workers=workers)
    return stream.mp_prefetch(options) if workers else stream


@pytest.fixture
def many_switches() -> Iterator[None]:
    """Threads take turns every few microseconds."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def race(make: Callable[[], Any], trials: int) -> tuple[int, set[str]]:
    """Closes iterators while other threads take elements; how many came, and what was raised."""
    rng = random.Random(trials)
    taken: list[Any] = []
    raised: set[str] = set()

    def take(iterator: Any) -> None:
        try:
            while True:
                taken.append(next(iterator))
        except BaseException as error:
            raised.add(type(error).__name__)

    for _ in range(trials):
        iterator = make()
        threads = [threading.Thread(target=take, args=[iterator]) for _ in range(rng.randint(1, 3))]
        for thread in threads:
            thread.start()
        threading.Event().wait(rng.choice([0, 0.002, 0.02]) * rng.random())
        iterator.close()
        for thread in threads:
            thread.join()
    return len(taken), raised


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("stage", [None, *STAGES])
@pytest.mark.parametrize("kind", ["loader", "filter", "operation", "dataset"])
@pytest.mark.parametrize("workers", [0, 2])
def test_close_against_next_in_other_threads(workers: int, kind: str, stage: str | None) -> None:
    source: Any = {
        "loader": lambda: endless(workers),
        "filter": lambda: endless(workers, Keep()),
        "operation": lambda: endless(workers, Own()),
        "dataset": lambda: dataset(workers),
    }[kind]()
    make = iter if stage is None else STAGES[stage]
    trials = 5 if workers else 100 if kind == "loader" else 20
    taken, raised = race(lambda: make(source), trials)
    assert raised == {"ClosedError"}
    assert taken or workers


@pytest.mark.usefixtures("many_switches")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loaders_close_against_iter_and_next(workers: int) -> None:
    """Nothing goes on behind the loader, and nothing else is raised, however they meet."""
    raised: list[BaseException] = []

    def take(loader: Any) -> None:
        try:
            while True:
                next(iter(loader))
        except errors.ClosedError:
            pass
        except BaseException as error:
            raised.append(error)

    for trial in range(5 if workers else 100):
        loader = endless(workers)
        threads = [threading.Thread(target=take, args=[loader]) for _ in range(2)]
        for thread in threads:
            thread.start()
        threading.Event().wait(trial % 10 / 1000)
        loader.close()
        for thread in threads:
            thread.join()
    assert raised == []
