"""Streams that give nothing say so: in the log, and by an error where that would never end."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests import devices
from tests.cases import scripts

pytestmark = pytest.mark.usefixtures("no_process_left")

WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Nothing(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return False


class Below(grain.transforms.Filter):
    def __init__(self, limit: int) -> None:
        self._limit = limit

    def filter(self, element: Any) -> bool:
        return bool(element < self._limit)


class Fails(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        raise ValueError(f"no picture in {element}")


class Empty(grain.transforms.FlatMap):
    max_fan_out = 4

    def flat_map(self, element: Any) -> list[Any]:
        return []


def load(records: Any, *steps: Any, workers: int = 0, **options: Any) -> grain.DataLoader:
    return grain.load(records, transformations=steps, worker_count=workers, seed=0, **options)


def dataset(stream: Any, workers: int) -> Any:
    if not workers:
        return stream
    return stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def refusal(stream: Any) -> str:
    with contextlib.ExitStack() as stack:
        if isinstance(stream, grain.DataLoader):
            stack.enter_context(stream)
        iterator = stack.enter_context(contextlib.closing(iter(stream)))
        with pytest.raises(grain.errors.NoElementsError) as caught:
            next(iterator)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, grain.errors.GrainError)
    return str(caught.value)


@WORKERS
@pytest.mark.parametrize("options", [{}, {"batch_size": 7}, {"shuffle": True, "num_epochs": 200}])
def test_two_epochs_without_an_element_are_an_error(workers: int, options: dict[str, Any]) -> None:
    text = refusal(load(range(50), Nothing(), workers=workers, **options))
    assert "two whole epochs in a row, of 50 records each, gave no element" in text
    assert "What drops them: step 1: filter(Nothing)." in text
    assert "num_epochs=1" in text


@WORKERS
@pytest.mark.parametrize("epochs", [1, 2, 100])
def test_a_stream_that_ends_before_ends_empty(workers: int, epochs: int) -> None:
    loader = load(range(50), Nothing(), workers=workers, num_epochs=epochs, batch_size=3)
    assert list(loader) == []


class Numbered(grain.transforms.MapWithIndex):
    def map_with_index(self, index: int, element: Any) -> Any:
        return index, element


class Positions(grain.transforms.Filter):
    """Keeps what stands at some positions of the stream."""

    def __init__(self, *kept: int) -> None:
        self._kept = kept

    def filter(self, element: Any) -> bool:
        return element[0] in self._kept


@WORKERS
@pytest.mark.parametrize("batch_size", [None, 2])
def test_what_comes_before_is_delivered_and_the_position_stays(
    workers: int, batch_size: int | None
) -> None:
    """Where there is an end it comes first, in a short stream."""
    steps = Numbered(), Positions(0, 9, 10, 12)

    def loader(epochs: int | None, *more: Any) -> grain.DataLoader:
        return load(range(10), *steps, *more, workers=workers, num_epochs=epochs)

    batch = [] if batch_size is None else [grain.transforms.Batch(batch_size)]
    expected = [(0, 0), (9, 9), (10, 0), (12, 2)]
    assert list(loader(4)) == expected
    with contextlib.closing(iter(loader(None, *batch))) as iterator:
        for begin in range(0, 4, batch_size or 1):
            found = next(iterator)
            if batch_size is None:
                assert found == expected[begin]
            else:
                assert found[0].tolist() == [p for p, _ in expected[begin : begin + 2]]
        state = iterator.get_state()
        for _ in range(2):
            with pytest.raises(grain.errors.NoElementsError, match="step 2: filter"):
                next(iterator)
            assert iterator.get_state() == state
    with contextlib.closing(iter(loader(None, *batch))) as iterator:
        iterator.set_state(state)
        with pytest.raises(grain.errors.NoElementsError):
            next(iterator)


@WORKERS
@pytest.mark.parametrize("gap", [20, 21])
def test_a_gap_of_two_epochs_is_no_error_and_a_longer_one_is(workers: int, gap: int) -> None:
    loader = load(range(10), Numbered(), Positions(0, gap + 1), workers=workers)
    with contextlib.closing(iter(loader)) as iterator:
        assert next(iterator) == (0, 0)
        if gap == 20:
            assert next(iterator) == (21, 1)
        else:
            with pytest.raises(grain.errors.NoElementsError):
                next(iterator)


@WORKERS
@pytest.mark.parametrize("epochs", [2, 3])
def test_of_a_stream_that_ends_two_long_epochs_are_an_error(workers: int, epochs: int) -> None:
    loader = load(range(3000), Nothing(), workers=workers, num_epochs=epochs)
    if epochs == 2:
        assert list(loader) == []
    else:
        assert "of 3000 records each" in refusal(loader)


@WORKERS
def test_batches_that_fill_slowly_are_no_error(workers: int) -> None:
    loader = load(range(100), Below(1), workers=workers, batch_size=30)
    with contextlib.closing(iter(loader)) as iterator:
        assert next(iterator).tolist() == [0] * 30


@WORKERS
@pytest.mark.parametrize("batch_size", [None, 3])
def test_records_that_all_fail_are_an_error(workers: int, batch_size: int | None) -> None:
    policy = grain.ErrorPolicy(skip=ValueError)
    text = refusal(
        load(range(50), Fails(), workers=workers, batch_size=batch_size, on_error=policy)
    )
    assert "two whole epochs in a row, of 50 records each" in text
    assert "The first that on_error left out has ValueError: no picture in 0" in text
    assert "step 1: map(Fails), at position 0 (record key 0)" in text


@WORKERS
def test_a_limit_of_records_that_fail_comes_first(workers: int) -> None:
    policy = grain.ErrorPolicy(skip=ValueError, max_count=5)
    loader = load(range(50), Fails(), workers=workers, on_error=policy)
    says = "101 records failed, and max_count=5"
    with (
        contextlib.closing(iter(loader)) as iterator,
        pytest.raises(grain.errors.TooManyErrors, match=says),
    ):
        next(iterator)


@WORKERS
def test_shards_lanes_and_own_samplers(workers: int) -> None:
    """A shard that is dealt positions may come to read all records, so that all count."""
    shard = grain.sharding.ShardOptions(1, 4)
    text = refusal(load(range(40), Nothing(), workers=workers, shard_options=shard, batch_size=2))
    assert "epochs in a row, of 40 records each" in text
    sampler = grain.samplers.IndexSampler(40, shard, shuffle=True, seed=1)
    text = refusal(
        grain.DataLoader(
            data_source=range(40), sampler=sampler, operations=[Nothing()], worker_count=workers
        )
    )
    assert "epochs in a row, of 10 records each" in text
    text = refusal(
        grain.DataLoader(
            data_source=range(40), sampler=Own(), operations=[Nothing()], worker_count=workers
        )
    )
    assert "epochs in a row, of 40 records each" in text
    stream = grain.MapDataset.range(30).repeat().to_iter_dataset().filter(lambda x: x % 2 == 1)
    options = grain.MultiprocessingOptions(num_workers=workers, lanes=2)
    # The first lane has the even ones.
    assert "epochs in a row, of 30 records each" in refusal(stream.mp_prefetch(options))


class Own:
    def __getitem__(self, index: int) -> grain.RecordMetadata:
        return grain.RecordMetadata(index=index, record_key=index % 3)


class Hollow(grain.MapDataset[int]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: Any) -> Any:
        return None


def _streams() -> dict[str, tuple[Callable[[], Any], str]]:
    """Endless streams without an element; what the error says."""
    whole = grain.MapDataset.range(10)

    def no(element: Any) -> bool:
        return False

    return {
        "filter in front": (
            lambda: whole.filter(no).seed(1).shuffle().repeat().to_iter_dataset().batch(2),
            "of 10 records each, gave no element. What drops them: step 1: filter(",
        ),
        "slice": (
            lambda: whole.repeat()[::3].filter(no).to_iter_dataset(),
            "of 10 records each, gave no element. What drops them: step 1: filter(",
        ),
        "flat map in front": (
            lambda: whole.flat_map(Empty()).repeat().to_iter_dataset(),
            "of 40 records each, gave no element. What drops them: step 1: flat_map(Empty)",
        ),
        "flat map": (
            lambda: whole.repeat().to_iter_dataset().flat_map(Empty()).batch(2),
            "of 10 records each, gave no element. What drops them: step 1: flat_map(Empty)",
        ),
        "batches": (
            lambda: whole.batch(4).repeat().filter(no).to_iter_dataset(),
            "of 3 records each, gave no element. What drops them: step 2: filter(",
        ),
        "batches of what is left": (
            lambda: whole.repeat().to_iter_dataset().filter(lambda x: x < 7).batch(3).filter(no),
            "of 10 records each, gave no element. What drops them: step 3: filter(",
        ),
        "absent records": (
            lambda: grain.MapDataset.source([None] * 8).repeat().to_iter_dataset().batch(2),
            "of 8 records each, gave no element. What drops them: the source, which has None",
        ),
        "own dataset": (
            lambda: Hollow().repeat().to_iter_dataset(),
            "of 6 records each, gave no element. What drops them: Hollow.__getitem__, if it",
        ),
    }


@WORKERS
@pytest.mark.parametrize("name", _streams())
def test_datasets(workers: int, name: str) -> None:
    make, says = _streams()[name]
    assert says in refusal(dataset(make(), workers))


def test_a_step_here_behind_workers() -> None:
    workers = grain.MultiprocessingOptions(num_workers=2)
    stream = grain.MapDataset.range(10).repeat().to_iter_dataset().mp_prefetch(workers)
    assert "of 10 records each" in refusal(stream.filter(lambda x: False).batch(2))


def test_random_access_iterates_in_the_same_way() -> None:
    assert "of 5 records each" in refusal(
        grain.MapDataset.range(5).filter(lambda x: x > 9).repeat()
    )
    assert list(grain.MapDataset.range(5).filter(lambda x: x > 9).repeat(2)) == []


def test_few_batches_that_are_dropped_are_no_error() -> None:
    """Each batch has ten epochs in it; of the first 51 only the last is kept."""
    stream = grain.MapDataset.range(3).repeat().to_iter_dataset().batch(30)
    stream = stream.map_with_index(lambda index, batch: (index, batch))
    with contextlib.closing(iter(stream.filter(lambda pair: pair[0] >= 50))) as iterator:
        assert next(iterator)[0] == 50


@WORKERS
def test_behind_the_device_stage(workers: int) -> None:
    loader = load(range(10), Numbered(), Positions(0, 1), workers=workers, batch_size=2)
    with grain.prefetch_to_device(loader, devices.first()) as batches:
        first = next(batches)
        assert np.asarray(first[1]).tolist() == [0, 1]
        state = batches.get_state()
        with pytest.raises(grain.errors.NoElementsError, match="step 2: filter"):
            next(batches)
        assert batches.get_state() == state


# The log.


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        r.getMessage()
        for r in caplog.records
        if r.name == "grain_jax" and r.levelno == logging.WARNING and "in a row" in r.getMessage()
    ]


@WORKERS
@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_long_run_without_an_element_is_logged_once(
    workers: int, batch_size: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    loader = load(range(9000), Nothing(), workers=workers, batch_size=batch_size, num_epochs=2)
    assert list(loader) == []
    (text,) = _warnings(caplog)
    assert text.startswith("5000 records in a row gave no element")
    assert "What drops them: step 1: filter(Nothing)." in text


def test_elements_now_and_then_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    loader = load(range(4000), Below(1), num_epochs=3)
    assert list(loader) == [0, 0, 0]
    assert _warnings(caplog) == []


@WORKERS
def test_records_that_fail_are_logged_with_the_first(
    workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    policy = grain.ErrorPolicy(skip=ValueError)
    loader = load(range(6000), Fails(), workers=workers, on_error=policy, num_epochs=1)
    assert list(loader) == []
    (text,) = _warnings(caplog)
    assert "ValueError: no picture in 0" in text


def _swallow(records: Iterator[Any]) -> Iterator[Any]:
    for record in records:
        if record.data == 5999:
            yield record


def test_an_operation_of_your_own_is_logged_and_no_error(caplog: pytest.LogCaptureFixture) -> None:
    """It may gather records of many epochs."""
    loader = load(range(6000), _swallow, num_epochs=3)
    assert list(loader) == [5999] * 3
    (text,) = _warnings(caplog)
    assert "5000 records in a row gave no element" in text
    assert "_swallow" in text


class Counts(grain.IterDataset[int]):
    def __iter__(self) -> Any:
        return CountsIterator()


class CountsIterator(grain.DatasetIterator[int]):
    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def __next__(self) -> int:
        self._next += 1
        return self._next

    def get_state(self) -> dict[str, Any]:
        return {"next": self._next}

    def set_state(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


def test_a_stream_of_your_own_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.closing(iter(Counts().filter(lambda x: x > 7000))) as iterator:
        assert next(iterator) == 7001
    (text,) = _warnings(caplog)
    assert "5000 elements of your IterDataset in a row gave no element" in text


# Ctrl-C.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_behind_stage", [False, True])
def test_ctrl_c_while_nothing_comes(tmp_path: Path, workers: int, is_behind_stage: bool) -> None:
    wrap = "grain.prefetch_to_device(loader)" if is_behind_stage else "iter(loader)"
    lines = scripts.output(
        tmp_path,
        f"""
        import logging, os, signal, threading
        import grain_jax as grain

        class Nothing(grain.transforms.Filter):
            def filter(self, element):
                return False

        class Interrupt(logging.Handler):
            def emit(self, record):
                if "in a row" in record.getMessage():
                    os.kill(os.getpid(), signal.SIGINT)

        logger = logging.getLogger("grain_jax")
        logger.addHandler(Interrupt())
        logger.propagate = False
        loader = grain.load(
            range(10**9), transformations=[Nothing()], worker_count={workers}, batch_size=2
        )
        with {wrap} as elements:
            try:
                next(elements)
            except KeyboardInterrupt:
                print("interrupted")
        """,
    )
    assert lines == ["interrupted"]
