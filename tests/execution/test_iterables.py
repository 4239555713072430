"""Iterables of the user's own: read here, in order, and what follows is done by workers."""

from __future__ import annotations

import itertools
import json
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax._datasets.plan import Upstream
from grain_jax._execution.iterables import Own
from grain_jax._execution.runs import END
from tests.property import trees
from tests.waiting import PATIENCE, until

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("no_process_left")]

from_iterable = grain.IterDataset.from_iterable
AGAIN = pytest.mark.filterwarnings("ignore:.*read again and left out")


class Counter:
    """An iterator whose position can be saved, by the methods of torchdata and Hugging Face."""

    def __init__(self, end: int) -> None:
        self.end, self.state = end, {"at": 0}
        self.closed = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> int:
        if self.state["at"] == self.end:
            raise StopIteration
        self.state["at"] += 1
        return self.state["at"] - 1

    def state_dict(self) -> dict[str, Any]:
        return self.state  # the very object that it goes on counting in

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = dict(state)

    def close(self) -> None:
        self.closed += 1


class Reader:
    """An iterable that keeps the position of whoever goes through it."""

    def __init__(self, end: int) -> None:
        self.end, self.at = end, 0

    def __iter__(self) -> Iterator[int]:
        while self.at < self.end:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def get_state(self) -> int:
        return self.at

    def set_state(self, state: int) -> None:
        self.at = state


def generated() -> Iterator[int]:
    yield from range(40)


def thrice(x: int) -> int:
    return 3 * x


def workers(stream: Any, count: int) -> Any:
    return trees.with_workers(stream, count) if count else stream


PIPELINES: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "nothing": (lambda ds: ds, list(range(40))),
    "map": (lambda ds: ds.map(thrice), [3 * x for x in range(40)]),
    "filter": (lambda ds: ds.filter(lambda x: x % 3), [x for x in range(40) if x % 3]),
    "batch": (
        lambda ds: ds.batch(8, batch_fn=tuple),
        [tuple(range(begin, begin + 8)) for begin in range(0, 40, 8)],
    ),
    "flat map": (
        lambda ds: ds.flat_map(lambda x: [x] * (x % 3)),
        [x for x in range(40) for _ in range(x % 3)],
    ),
    "numbered": (lambda ds: ds.map_with_index(lambda i, x: (i, x)), [(x, x) for x in range(40)]),
    "pipe": (
        lambda ds: grain.experimental.ZipIterDataset(
            [ds.filter(lambda x: x % 2), ds.map(thrice)], strict=False
        ),
        [(2 * x + 1, 3 * x) for x in range(20)],
    ),
}


@AGAIN
@pytest.mark.filterwarnings("ignore:.*no work for workers")
@pytest.mark.parametrize("of", [lambda: Counter(40), lambda: Reader(40), generated])
@pytest.mark.parametrize("kind", PIPELINES)
def test_what_follows_is_the_same_with_workers(of: Any, kind: str) -> None:
    make, expected = PIPELINES[kind]
    counts = [0, 1, 3] if kind in ("filter", "pipe") else [0, 2]
    assert trees.check(make(from_iterable(of)), workers=counts, every=4) == expected


def test_random_steps_draw_alike() -> None:
    stream = from_iterable(lambda: Counter(30)).random_map(
        lambda x, rng: x + 100 * int(rng.integers(1000)), seed=5
    )
    found = trees.check(stream, workers=[0, 2])
    assert [x % 100 for x in found] == list(range(30))
    assert len({x // 100 for x in found}) > 20


def test_one_that_is_itself_gone_through_again_and_again() -> None:
    stream = from_iterable([5, 6, 7]).map(thrice)
    assert list(stream) == list(stream) == [15, 18, 21]
    shared = Reader(9)
    stream = from_iterable(shared)
    one, other = iter(stream), iter(stream)
    assert [next(one), next(one), next(other), next(one)] == [0, 1, 0, 2]
    other.set_state(one.get_state())
    assert list(other) == [3, 4, 5, 6, 7, 8]
    assert list(stream) == list(range(9))
    assert shared.at == 0


class Known:
    """Adds itself to a dict of all of its kind as it is copied, as data sets of Hugging Face do."""

    def __init__(self, every: dict[Any, Any]) -> None:
        self.every, self.copies = every, 0

    def __deepcopy__(self, memo: Any) -> Known:
        self.copies += 1
        if self.copies % 2:
            self.every[self.copies] = None
        return self


def test_one_that_reaches_a_dict_to_which_its_parts_are_added_as_it_is_copied() -> None:
    reader: Any = Reader(5)
    reader.every = {}
    reader.every[0] = Known(reader.every)
    stream = from_iterable(reader)
    assert [list(stream) for _ in range(3)] == [list(range(5))] * 3
    assert list(reader.every) == [0, 1, 3, 5]


def test_a_restore_without_states_reads_again_and_says_how_much() -> None:
    read = []

    def noted() -> Iterator[int]:
        for x in range(10):
            read.append(x)
            yield x

    iterator = iter(from_iterable(noted).map(thrice))
    assert [next(iterator) for _ in range(4)] == [0, 3, 6, 9]
    state = json.loads(json.dumps(iterator.get_state()))
    read.clear()
    iterator.set_state(state)
    with pytest.warns(UserWarning, match=r"noted.* first 4 elements are read again and left out"):
        assert next(iterator) == 12
    assert read == [0, 1, 2, 3, 4]


def test_a_restore_behind_the_end_of_a_shorter_one() -> None:
    length = [10]
    stream = from_iterable(lambda: iter(range(length[0])))
    iterator = iter(stream)
    assert list(itertools.islice(iterator, 6)) == list(range(6))
    state = iterator.get_state()
    length[0] = 4
    iterator.set_state(state)
    with (
        pytest.warns(UserWarning, match="first 6 elements"),
        pytest.raises(grain.errors.StateError, match=r"has 4 elements.*first 6"),
    ):
        next(iterator)


def test_a_state_for_one_that_cannot_take_it() -> None:
    iterator = iter(from_iterable(lambda: Counter(9)))
    next(iterator)
    other = iter(from_iterable(lambda: iter(range(9))))
    other.set_state(iterator.get_state())
    with pytest.raises(grain.errors.StateError, match="no load_state_dict or set_state"):
        next(other)


@pytest.mark.parametrize(
    "once",
    [
        (x for x in range(3)),
        iter([1, 2]),
        map(thrice, [1]),
    ],
)
def test_what_can_be_gone_through_once_is_refused(once: Any) -> None:
    with pytest.raises(TypeError, match=r"from_iterable got a .*only once.*lambda: make\(\)"):
        from_iterable(once)


@pytest.mark.parametrize("make", [lambda: (x for x in range(3)), lambda: map(thrice, range(3))])
@pytest.mark.parametrize("count", [0, 1])
def test_a_function_that_returns_the_same_iterator(make: Any, count: int) -> None:
    once = make()
    stream = workers(from_iterable(lambda: once).map(thrice), count)
    assert len(list(stream)) == 3
    with pytest.raises(TypeError, match=r"the same a .* again, which can be gone"):
        list(stream)


@pytest.mark.parametrize(
    ("given", "text"), [(3, "a function that returns an iterable, got 3"), (None, "got None")]
)
def test_what_is_no_iterable(given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        from_iterable(given)


def test_a_function_that_returns_no_iterable() -> None:
    with pytest.raises(TypeError, match="returned a int, which is no iterable"):
        list(from_iterable(lambda: 3))


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ({1: 2}, "the key 1 would come back as text"),
        ({"at": {1, 2}}, "set is no JSON"),
        (b"x", "bytes is no JSON"),
    ],
)
def test_a_state_that_is_no_json_is_refused_by_name(state: Any, text: str) -> None:
    class Odd(Counter):
        def state_dict(self) -> Any:
            return state

    iterator = iter(from_iterable(lambda: Odd(3)))
    next(iterator)
    with pytest.raises(TypeError, match=rf"from_iterable\(.*state is .*{text}"):
        iterator.get_state()
    assert list(iterator) == [1, 2]


def test_numbers_of_numpy_in_a_state() -> None:
    class Counted(Counter):
        def state_dict(self) -> Any:
            return {"at": np.int64(self.state["at"])}

    assert trees.check(from_iterable(lambda: Counted(6)).map(thrice), workers=[0]) == [
        0, 3, 6, 9, 12, 15
    ]  # fmt: skip


@pytest.mark.parametrize("count", [0, 2])
def test_an_error_comes_in_its_turn_and_says_where(count: int) -> None:
    class Fails(Counter):
        def __next__(self) -> int:
            found = super().__next__()
            if found == 7:
                raise OSError("the network is gone")
            return found

    iterator = iter(workers(from_iterable(lambda: Fails(20)).map(thrice), count))
    with iterator:
        assert [next(iterator) for _ in range(7)] == [3 * x for x in range(7)]
        for _ in range(2):  # it is tried again, from where the stream stands
            with pytest.raises(OSError, match="the network is gone") as caught:
                next(iterator)
            notes = "\n".join(caught.value.__notes__)
            assert "in reading from_iterable(" in notes
            assert "at element 7 (counted from 0)" in notes
            assert "test_iterables.py" in notes


@pytest.mark.parametrize("count", [0, 2])
def test_an_error_of_a_step_behind_it(count: int) -> None:
    def picky(x: int) -> int:
        if x == 5:
            raise ValueError("it is 5")
        return x

    iterator = iter(workers(from_iterable(lambda: Counter(9)).map(picky), count))
    with iterator:
        assert [next(iterator) for _ in range(5)] == list(range(5))
        with pytest.raises(ValueError, match="it is 5") as caught:
            next(iterator)
        assert "position 5" in "\n".join(caught.value.__notes__)


def test_an_element_that_cannot_be_sent_comes_in_its_turn() -> None:
    def some() -> Iterator[Any]:
        yield from range(5)
        yield {"lock": threading.Lock()}

    iterator = iter(workers(from_iterable(some).map(lambda x: x), 2))
    with iterator:
        assert [next(iterator) for _ in range(5)] == list(range(5))
        with pytest.raises(TypeError, match=r"element 5 .*some\) cannot be sent .*'lock'.*lock"):
            next(iterator)
    in_process = list(from_iterable(some).map(lambda x: type(x).__name__))
    assert in_process[-1] == "dict"


class Mutable:
    def __init__(self) -> None:
        self.value = 0


@pytest.mark.parametrize("count", [0, 2])
def test_elements_that_the_iterable_goes_on_writing_to(count: int) -> None:
    def reused() -> Iterator[Any]:
        own, array, shown, items = Mutable(), np.zeros(3, np.int64), np.zeros(3, np.int64), [0]
        view = shown.view()
        view.flags.writeable = False
        for number in range(50):
            own.value = items[0] = number
            array[:] = shown[:] = number
            yield own, array, view, items

    def seen(element: Any) -> list[int]:
        own, array, view, items = element
        return [own.value, *array.tolist(), *view.tolist(), items[0]]

    found = trees.whole(from_iterable(reused).map(seen), count)
    assert found == [[number] * 8 for number in range(50)]


@pytest.mark.parametrize("count", [1, 3])
def test_what_is_here_does_not_wait_for_what_may_never_come(count: int) -> None:
    more = threading.Event()

    def slow() -> Iterator[int]:
        yield from range(6)
        more.wait(60)
        yield 6

    iterator = iter(workers(from_iterable(slow).map(thrice), count))
    with iterator:
        assert [next(iterator) for _ in range(6)] == [3 * x for x in range(6)]
        more.set()
        assert list(iterator) == [18]


def test_close_does_not_wait_for_a_source_that_blocks() -> None:
    for_ever = threading.Event()

    def stuck() -> Iterator[int]:
        yield 0
        for_ever.wait()  # the test's timeout is what `close` would wait for

    iterator = iter(workers(from_iterable(stuck).map(thrice), 1))
    assert next(iterator) == 0
    iterator.close()
    for_ever.set()


@pytest.mark.parametrize("count", [0, 2])
def test_the_iterator_is_closed(count: int) -> None:
    made: list[Counter] = []

    def counting() -> Counter:
        made.append(Counter(50))
        return made[-1]

    stream = workers(from_iterable(counting).map(thrice), count)
    ways: list[Callable[[Any], Any]] = [
        list,  # to the end
        lambda iterator: iterator.close(),
        lambda iterator: iterator.set_state(iterator.get_state()),
        lambda iterator: None,  # dropped
    ]
    for way in ways:
        made.clear()
        iterator = iter(stream)
        next(iterator)
        way(iterator)
        del iterator
        assert made
        assert until(lambda: all(one.closed for one in made))


def test_a_generator_is_closed_and_its_finally_runs() -> None:
    closed = threading.Event()

    def guarded() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.set()

    for count in (0, 1):
        closed.clear()
        with iter(workers(from_iterable(guarded).map(thrice), count)) as iterator:
            next(iterator)
        assert closed.wait(PATIENCE)


@pytest.mark.parametrize(("size", "most"), [(1 << 20, 40), (10, 2000)])
def test_what_is_read_ahead_is_bounded(size: int, most: int) -> None:
    read = [0]

    def large() -> Iterator[bytes]:
        for _ in range(5000):
            read[0] += 1
            yield bytes(size)

    iterator = iter(workers(from_iterable(large).map(len), 2))
    with iterator:
        for _ in range(10):
            assert next(iterator) == size
        time.sleep(0.5)
        assert read[0] <= 10 + most


def test_it_is_read_by_one_thread_from_its_opening_on() -> None:
    threads = set()

    def watched() -> Iterator[int]:
        threads.add(threading.get_ident())
        for x in range(20):
            threads.add(threading.get_ident())
            yield x

    stream = from_iterable(watched).map(thrice)
    assert trees.whole(stream, 2) == [3 * x for x in range(20)]
    assert len(threads) == 1
    threads.clear()
    list(stream)
    assert threads == {threading.get_ident()}


def test_steps_in_this_process_that_draw_do_so_alone() -> None:
    """The iterable may draw from the same generators, so that no other thread reads it."""

    def noisy(x: int) -> float:
        return x + float(np.random.random())

    def drawing() -> Iterator[int]:
        for x in range(30):
            np.random.random()
            yield x

    stream = from_iterable(drawing).map(thrice)
    found = [
        list(stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=count)).map(noisy))
        for count in (0, 2)
    ]
    assert found[0] == found[1]


@pytest.mark.parametrize("make", [lambda ds: ds, lambda ds: ds.mp_prefetch().map(thrice)])
def test_without_work_there_are_no_workers(make: Any) -> None:
    stream = from_iterable(lambda: Counter(3))
    stream = make(stream) if make(stream) is not stream else trees.with_workers(stream, 1)
    with pytest.warns(UserWarning, match="there is no work for workers"):
        assert len(list(stream)) == 3


def test_lanes_are_refused() -> None:
    options = grain.MultiprocessingOptions(num_workers=2, lanes=2)
    with pytest.raises(grain.errors.InvalidValueError, match=r"lanes=2.*is an iterable"):
        iter(from_iterable(lambda: Counter(3)).map(thrice).mp_prefetch(options))


def test_parts_of_a_mixture() -> None:
    """One is read here and mapped by workers, one is read by these."""
    own = from_iterable(lambda: Counter(20)).map(thrice)
    stream = grain.IterDataset.mix([own, grain.MapDataset.range(100, 120).to_iter_dataset()])
    expected = [x for pair in zip(range(0, 60, 3), range(100, 120), strict=True) for x in pair]
    assert trees.check(stream.map(lambda x: x), workers=[0, 2], every=5) == expected
    plain = grain.IterDataset.mix(
        [from_iterable(lambda: Counter(9)), grain.MapDataset.range(100, 109).to_iter_dataset()]
    )
    assert trees.check(plain, workers=[0, 2], every=5)[:4] == [0, 100, 1, 101]


class Doubled(grain.IterDataset[int]):
    """A stream over a parent, from a plain generator."""

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        for x in self._parent:
            yield 2 * x


@pytest.mark.filterwarnings("error")
def test_a_custom_dataset_feeds_workers() -> None:
    parent = grain.MapDataset.range(40).to_iter_dataset()
    stream = Doubled(parent).map(thrice).batch(4)
    found = [batch.tolist() for batch in trees.with_workers(stream, 2)]
    assert found == [[6 * x for x in range(b, b + 4)] for b in range(0, 40, 4)]


def test_a_pipeline_of_workers_within_one() -> None:
    """Closing the outer one ends the workers of the inner one."""
    inner = trees.with_workers(grain.MapDataset.range(40).to_iter_dataset().map(thrice), 1)
    with iter(trees.with_workers(Doubled(inner).map(thrice), 1)) as iterator:
        assert [next(iterator) for _ in range(4)] == [0, 18, 36, 54]


def test_an_iterator_keeps_its_state_beside_each_element() -> None:
    class Mine(Counter):
        get_state, set_state = Counter.state_dict, Counter.load_state_dict

    def drained(iterator: Any, number: int, state: Any) -> list[tuple[Any, Any, Any]]:
        class Dataset:
            def __iter__(self) -> Any:
                return iterator

        stream = Own(Upstream(Dataset()), (number, state), None, is_ahead=False)
        runs = list(iter(lambda: stream.pull(8, True), END))
        return [(r.held[0], r.places.cursor(0), r.places.whereabouts(0, 1)[0]) for r in runs]

    assert drained(Mine(3), 5, {"at": 0}) == [
        (0, (6, {"at": 1}), [5]),
        (1, (7, {"at": 2}), [6]),
        (2, (8, {"at": 3}), [7]),
    ]
    assert drained(itertools.chain([7]), 0, None) == [(7, (1, None), [0])]


def test_nothing_is_warned_of_at_the_start() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        iterator = iter(from_iterable(generated))
        iterator.set_state(iterator.get_state())
        assert len(list(iterator)) == 40
