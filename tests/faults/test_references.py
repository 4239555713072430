"""Without the cyclic garbage collector: what nobody refers to ends, however it was left."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._execution.ahead import RunAhead
from grain_jax._execution.engine.pool import Pool
from grain_jax._execution.iterables import Own
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.positioned import Positioned
from grain_jax._execution.prefetch_iterator import PrefetchIterator
from grain_jax._execution.serial import Serial
from tests import devices
from tests.processes import children
from tests.waiting import until

pytestmark = [
    pytest.mark.usefixtures("no_process_left", "no_collection"),
    # An operation without a state is run again, and says so.
    pytest.mark.filterwarnings("ignore:.*without get_state and set_state"),
]

KINDS = (Own, Pool, Pipeline, Positioned, PrefetchIterator, RunAhead, Serial, grain.DataLoader)


class FailsAt21(grain.transforms.Map):
    def map(self, element: int) -> int:
        if element == 21:
            raise ValueError("it is 21")
        return element


class FailsAndDraws(FailsAt21):
    """Has its device stage work in the trainer's thread, where no worker does."""

    def map(self, element: int) -> int:
        return super().map(element) + np.random.randint(1)


class Even(grain.transforms.Filter):
    def filter(self, element: int) -> bool:
        return element % 2 == 0


class Passes:
    """An operation of the user's own."""

    def __call__(self, records: Iterator[Any]) -> Iterator[Any]:
        yield from records


BATCH = grain.transforms.Batch(4)


def loader(*todo: Any, workers: int, **settings: Any) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=np.arange(40),
        sampler=grain.samplers.SequentialSampler(40),
        operations=todo,
        worker_count=workers,
        **settings,
    )


def dataset(*todo: Any, workers: int) -> Any:
    stream = grain.MapDataset.range(40).to_iter_dataset()
    for one in todo:
        stream = stream.map(one)
    options = grain.MultiprocessingOptions(num_workers=workers)
    return stream.batch(4).mp_prefetch(options)


class Counted:
    """An iterator of the user's own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> int:
        if self.at == 40:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> int:
        return self.at

    def load_state_dict(self, state: int) -> None:
        self.at = state


class CountedFails(Counted):
    def __next__(self) -> int:
        found = super().__next__()
        if found == 21:
            raise ValueError("it is 21")
        return found


def own(make: Any, *todo: Any, workers: int) -> Any:
    stream = grain.IterDataset.from_iterable(make)
    for one in (lambda x: x, *todo):
        stream = stream.map(one)
    return stream.batch(4).mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))


def put(*given: Any) -> Any:
    return grain.experimental.device_put(*given)


def ahead(*given: Any, **more: Any) -> Any:
    return grain.prefetch_to_device(*given, **more)


MAKES: dict[str, Callable[[int], Any]] = {
    "loader": lambda n: iter(loader(workers=n)),
    "filter": lambda n: iter(loader(Even(), BATCH, workers=n)),
    "fails": lambda n: iter(loader(FailsAt21(), workers=n)),
    "fails, operation": lambda n: iter(loader(FailsAt21(), Passes(), workers=n)),
    "lanes": lambda n: iter(loader(BATCH, workers=n, lanes=2)),
    "epochs": lambda n: next(loader(workers=n).epochs()),
    "dataset": lambda n: iter(dataset(workers=n)),
    "fails, in a dataset's root": lambda n: iter(
        grain.MapDataset.range(40)
        .map(FailsAt21())
        .to_iter_dataset()
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=n))
    ),
    "cache": lambda n: iter(
        grain.IterDataset.interleave([dataset(workers=0), own(Counted, workers=0)], cycle_length=1)
        .cache()
        .repeat(2)
        .map(lambda batch: batch)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=n))
    ),
    "iterable": lambda n: iter(own(Counted, workers=n)),
    "iterable, fails": lambda n: iter(own(CountedFails, workers=n)),
    "iterable, fails behind": lambda n: iter(own(Counted, FailsAt21(), workers=n)),
    "iterable, device": lambda n: ahead(own(CountedFails, workers=n)),
    "device": lambda n: ahead(loader(BATCH, workers=n)),
    "device of an iterator": lambda n: ahead(iter(loader(BATCH, workers=n))),
    "device, fails": lambda n: ahead(loader(FailsAt21(), BATCH, workers=n)),
    "device, fails and draws": lambda n: ahead(loader(FailsAndDraws(), BATCH, workers=n)),
    "device, operation": lambda n: ahead(loader(Passes(), BATCH, workers=n)),
    "device of a device": lambda n: ahead(ahead(dataset(workers=n)), buffer_size=1),
    "device_put": lambda n: iter(put(dataset(workers=n), devices.first())),
}


def goes_to_the_end(make: Callable[[], Any]) -> None:
    for _ in make():
        pass


def breaks(make: Callable[[], Any]) -> None:
    for step, _ in enumerate(make()):
        if step == 3:
            break


def raises(make: Callable[[], Any]) -> None:
    for step, _ in enumerate(make()):
        if step == 3:
            raise KeyError("of the training step")


def closes(make: Callable[[], Any]) -> None:
    iterator = make()
    next(iterator)
    iterator.close()
    next(iterator)


def goes_back(make: Callable[[], Any]) -> None:
    iterator = make()
    next(iterator)
    state = iterator.get_state()
    next(iterator)
    iterator.set_state(state)
    next(iterator)
    iterator.set_state({"no": "state"})


def does_nothing(make: Callable[[], Any]) -> None:
    make()


WAYS = [goes_to_the_end, breaks, raises, closes, goes_back, does_nothing]
CAUGHT = (ValueError, KeyError, TypeError, grain.errors.ClosedError)


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what is there before a test is no part of `living()`, which has less to look at
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    gc.collect()


@pytest.fixture(scope="module", autouse=True)
def processes_are_kept() -> Iterator[None]:
    """What all loaders share stays, which makes each start in milliseconds."""
    with grain.load([0], worker_count=1) as idle:
        iter(idle)
        yield


def living() -> dict[int, str]:
    """The names of all objects that run streams, by their identity."""
    return {id(one): type(one).__name__ for one in gc.get_objects() if isinstance(one, KINDS)}


def left(before: dict[int, str], running: set[int]) -> tuple[list[str], set[int]]:
    """What there is more of than before, after a while in which threads end."""

    def more() -> list[str]:
        return [name for number, name in living().items() if number not in before]

    # A thread that runs ahead ends after the call that it is in.
    until(lambda: not (more() or children() - running))
    return more(), children() - running


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", MAKES)
def test_nothing_is_left(kind: str, workers: int) -> None:
    running = children()
    for way in WAYS:
        before = living()
        with contextlib.suppress(*CAUGHT):
            way(lambda: MAKES[kind](workers))
        assert (way.__name__, *left(before, running)) == (way.__name__, [], set())


class FailingSource:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> int:
        if index == 21:
            raise ValueError("read 21")
        return index


class FailingSampler:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> grain.RecordMetadata:
        if index == 21:
            raise ValueError("sampled 21")
        return grain.RecordMetadata(index=index, record_key=index)


def failing() -> Any:
    return grain.MapDataset.range(40).map(FailsAt21()).to_iter_dataset()


def counting() -> Any:
    return grain.MapDataset.range(40).to_iter_dataset()


def of(source: Any = range(40), sampler: Any = None, todo: Any = ()) -> Any:
    return grain.DataLoader(
        data_source=source,
        sampler=sampler or grain.samplers.SequentialSampler(40),
        operations=todo,
        worker_count=0,
    )


window_shuffle = grain.experimental.WindowShuffleIterDataset
FAILING: dict[str, Callable[[], Any]] = {
    "map": lambda: of(todo=[FailsAt21()]),
    "map, batch": lambda: of(todo=[FailsAt21(), BATCH]),
    "filter": lambda: of(todo=[FailsAt21(), Even(), BATCH]),
    "source": lambda: of(FailingSource()),
    "source, batch": lambda: of(FailingSource(), todo=[BATCH]),
    "sampler": lambda: of(sampler=FailingSampler()),
    "sampler, batch": lambda: of(sampler=FailingSampler(), todo=[BATCH]),
    "dataset": lambda: failing().filter(Even()).batch(4),
    "mixture": lambda: grain.IterDataset.mix([failing(), counting()]),
    "mixture, repeated": lambda: grain.experimental.RepeatIterDataset(
        grain.IterDataset.mix([failing(), counting()])
    ).batch(2),
    "zip": lambda: grain.experimental.ZipIterDataset([counting(), failing()]),
    "zip of unequal lengths": lambda: grain.experimental.ZipIterDataset(
        [counting(), grain.MapDataset.range(21).to_iter_dataset()], strict=True
    ),
    "window": lambda: window_shuffle(failing(), window_size=10, seed=1),
}


@pytest.mark.parametrize("kind", FAILING)
def test_an_error_that_waits_for_its_turn_does_not_keep_the_iterator(kind: str) -> None:
    """Its traceback leads to frames, and these to whoever called them."""

    def drops(delivered: int) -> None:
        iterator = iter(FAILING[kind]())
        with contextlib.suppress(ValueError, StopIteration):
            for _ in range(delivered):
                next(iterator)

    running = children()
    for delivered in range(0, 44, 2):
        before = living()
        drops(delivered)
        assert (delivered, *left(before, running)) == (delivered, [], set())


def test_a_device_stage_for_each_epoch_leaves_no_process() -> None:
    source = loader(BATCH, workers=2)
    for _ in range(20):
        seen = [int(x) for batch in grain.prefetch_to_device(source) for x in batch]
        assert seen == list(range(40))
    del source
    # The fixture waits until the last of them has ended.


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["loader", "filter", "dataset", "epochs"])
def test_an_iterator_that_has_ended_holds_no_workers_and_can_go_back(
    kind: str, workers: int
) -> None:
    running = children()

    def wait_for_workers_to_end() -> None:
        assert until(lambda: not children() - running)

    iterator = MAKES[kind](workers)
    whole = [np.asarray(next(iterator)).tolist()]
    state = iterator.get_state()
    whole += [np.asarray(element).tolist() for element in iterator]
    wait_for_workers_to_end()
    assert next(iterator, None) is None
    iterator.start_prefetch()
    assert children() - running == set()
    end = iterator.get_state()
    iterator.set_state(state)
    assert [np.asarray(element).tolist() for element in iterator] == whole[1:]
    assert iterator.get_state() == end
    wait_for_workers_to_end()
