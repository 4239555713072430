"""IterDataset: streams of known and unknown counts, subclasses, workers, bad input."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors, transforms
from grain_jax._values import randomness

WORKERS = grain.MultiprocessingOptions(num_workers=2)


def numbers(n: int) -> grain.IterDataset[int]:
    return grain.MapDataset.range(n).to_iter_dataset()


class Scale(transforms.Map):
    def __init__(self, by: int) -> None:
        self.by = by

    def map(self, element: Any) -> Any:
        return self.by * element


def lists(stream: Any) -> list[Any]:
    return [x.tolist() if isinstance(x, np.ndarray) else x for x in stream]


def test_steps_in_a_row() -> None:
    ds = numbers(20).filter(lambda x: x % 3).map(Scale(2)).map_with_index(lambda i, x: [i, x])
    survivors = [x for x in range(20) if x % 3]
    assert list(ds) == [[i, 2 * x] for i, x in enumerate(survivors)]


@pytest.mark.parametrize("drop", [False, True])
def test_batches_close_gaps(drop: bool) -> None:
    kept = [x for x in range(20) if x % 3]
    expected = [kept[i : i + 4] for i in range(0, len(kept), 4)]
    if drop and len(expected[-1]) < 4:
        expected.pop()
    assert lists(numbers(20).filter(lambda x: x % 3).batch(4, drop_remainder=drop)) == expected


def test_flat_map_takes_functions() -> None:
    ds = numbers(5).flat_map(lambda x: [x] * x).batch(3)
    assert lists(ds) == [[1, 2, 2], [3, 3, 3], [4, 4, 4], [4]]


def test_random_steps_after_each_kind_of_count() -> None:
    def draw(x: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(2**40))

    def drawn(position: int, output: int = 0, step: int = 0) -> int:
        return int(randomness.generator(5, position, output, step).integers(2**40))

    ds = numbers(6).seed(5)
    assert list(ds.random_map(draw)) == [drawn(i) for i in range(6)]
    assert list(ds.filter(lambda x: x % 2).random_map(draw)) == [drawn(i) for i in (1, 3, 5)]
    assert list(ds.batch(4).random_map(draw)) == [drawn(3), drawn(5)]
    copies = ds.flat_map(lambda x: [x] * (x % 3))
    places = [(i, j) for i in range(6) for j in range(i % 3)]
    assert list(copies.random_map(draw)) == [drawn(i, j) for i, j in places]
    # A batch has the place of its last element, also that of one output of several.
    assert list(copies.batch(2).random_map(draw)) == [drawn(*p) for p in (places[1::2])]
    nested = copies.flat_map(lambda x: [x, x]).random_map(draw)
    assert list(nested) == [drawn(i, (j << 32) + k) for i, j in places for k in range(2)]
    two = ds.random_map(draw).random_map(lambda x, rng: (x, draw(x, rng)))
    assert list(two) == [(drawn(i), drawn(i, 0, 1)) for i in range(6)]


def test_random_steps_go_on_counting_from_the_map_dataset() -> None:
    def draw(x: Any, rng: np.random.Generator) -> list[int]:
        return [*(x if isinstance(x, list) else []), int(rng.integers(2**40))]

    ds = grain.MapDataset.range(4).seed(1).random_map(draw).to_iter_dataset().random_map(draw)
    values = [value for element in ds for value in element]
    assert len(set(values)) == 8


def test_absent_elements_go_through_if_asked() -> None:
    ds = grain.MapDataset.range(5).filter(lambda x: x % 2)
    stream = ds.to_iter_dataset(allow_nones=True)
    assert list(stream) == [None, 1, None, 3, None]
    assert list(stream.map(Scale(2)).filter(lambda x: x > 2)) == [None, None, 6, None]
    assert list(ds.to_iter_dataset().map(Scale(2))) == [2, 6]


def test_every_state_resumes() -> None:
    ds = numbers(30).seed(2).filter(lambda x: x % 4).flat_map(lambda x: [x] * (x % 3)).batch(3)
    ds = ds.random_map(lambda x, rng: x + rng.integers(100)).map_with_index(lambda i, x: [i, *x])
    expected = lists(ds)
    iterator = iter(ds)
    for k in range(len(expected) + 1):
        state = json.loads(json.dumps(iterator.get_state()))
        other = iter(ds)
        other.set_state(state)
        assert lists(other) == expected[k:]
        next(iterator, None)


def test_snapshots() -> None:
    """What an iterator works with is a copy; edits reach the next one."""
    scale = Scale(2)
    ds = numbers(4).map(scale)
    iterator = iter(ds)
    first = next(iterator)
    scale.by = 100
    assert [first, *iterator] == [0, 2, 4, 6]
    assert list(ds) == [0, 100, 200, 300]


def test_two_iterators_at_once() -> None:
    class Count(transforms.Map):
        seen = 0

        def map(self, element: Any) -> Any:
            self.seen += 1
            return self.seen

    ds = numbers(3).map(Count())
    assert list(zip(ds, ds, strict=True)) == [(1, 1), (2, 2), (3, 3)]


class Counting(grain.DatasetIterator[int]):
    def __init__(self, end: int) -> None:
        super().__init__()
        self.end, self.at, self.closed = end, 0, False

    def __next__(self) -> int:
        if self.at == self.end:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def get_state(self) -> dict[str, Any]:
        return {"at": self.at}

    def set_state(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


class Own(grain.IterDataset[int]):
    """A stream of the user's own, without `super().__init__()`."""

    def __init__(self, end: int) -> None:
        self.end = end

    def __iter__(self) -> Counting:
        return Counting(self.end)


def test_streams_of_the_users_own() -> None:
    ds = Own(9).filter(lambda x: x % 2 == 0).map(Scale(3)).batch(2)
    assert lists(ds) == [[0, 6], [12, 18], [24]]
    assert lists(Own(5).map_with_index(lambda i, x: (i, x)))[-1] == (4, 4)
    assert repr(ds) == "Own().filter(<lambda>).map(Scale).batch(2)"


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.map(Scale(3)),
        lambda ds: ds.filter(lambda x: x % 2).batch(2),
        lambda ds: ds.flat_map(lambda x: [x] * (x % 4)),
        lambda ds: ds.seed(3).random_map(lambda x, rng: x + int(rng.integers(1000))).batch(3),
    ],
)
def test_states_over_a_stream_of_the_users_own(make: Callable[[Any], Any]) -> None:
    ds = make(Own(9))
    expected = lists(ds)
    iterator = iter(ds)
    for k in range(len(expected) + 1):
        state = json.loads(json.dumps(iterator.get_state()))
        other = iter(make(Own(9)))
        other.set_state(state)
        assert lists(other) == expected[k:]
        next(iterator, None)


def test_workers_do_what_follows_a_stream_of_the_users_own(no_process_left: None) -> None:
    ds = Own(4).map(Scale(2)).mp_prefetch(WORKERS)
    assert list(ds) == [0, 2, 4, 6]


class Doubled(grain.IterDataset[int]):
    """A stream over a parent, from a plain generator."""

    def __iter__(self) -> Iterator[int]:  # type: ignore[override]
        for x in self._parent:
            yield 2 * x


def test_a_subclass_over_a_parent() -> None:
    parent = grain.MapDataset.range(4).seed(3).to_iter_dataset()
    ds = Doubled(parent)
    assert ds.parents == (parent,)
    assert list(ds.batch(2, batch_fn=list)) == [[0, 2], [4, 6]]
    # The parent's seed goes on.
    draw = lambda x, rng: int(rng.integers(2**40))  # noqa: E731
    assert list(ds.random_map(draw)) == list(parent.random_map(draw))


def test_a_subclass_without_states_says_so() -> None:
    iterator = iter(Doubled(numbers(4)).map(Scale(1)))
    next(iterator)
    other = iter(Doubled(numbers(4)).map(Scale(1)))

    def restore() -> None:
        other.set_state(iterator.get_state())
        next(other)

    with pytest.raises(TypeError, match="no get_state and set_state"):
        restore()


def test_a_subclass_that_defines_nothing() -> None:
    class Bare(grain.IterDataset[int]):
        pass

    with pytest.raises(NotImplementedError, match="Bare defines no __iter__"):
        iter(Bare())


def draws(x: int) -> tuple[int, float, float]:
    return x, random.random(), float(np.random.rand())


@pytest.mark.parametrize(
    "make",
    [
        lambda: grain.MapDataset.range(40).seed(1).map(draws).to_iter_dataset(),
        lambda: numbers(40).map(draws),
        lambda: (
            numbers(40)
            .filter(lambda x: x % 3)
            .map(draws)
            .batch(4, batch_fn=list)
            .map(lambda xs: (xs, random.random()))
        ),
        lambda: grain.MapDataset.range(40).map(draws).batch(3, batch_fn=list).to_iter_dataset(),
    ],
)
def test_process_wide_draws_are_those_of_worker_processes(
    make: Callable[[], Any], no_process_left: None
) -> None:
    expected = list(make())
    random.seed(0)
    with iter(make().mp_prefetch(WORKERS)) as iterator:
        assert list(iterator) == expected


def test_order_does_not_depend_on_workers(no_process_left: None) -> None:
    ds = numbers(50).filter(lambda x: x % 3).map_with_index(lambda i, x: 100 * i + x).batch(4)
    for sequential in (False, True):
        with iter(ds.mp_prefetch(WORKERS, sequential_slice=sequential)) as iterator:
            assert lists(iterator) == lists(ds)


def test_records_before_a_faulty_one_arrive_from_workers(no_process_left: None) -> None:
    def fails(x: int) -> int:
        if x == 29:
            raise LookupError("twenty-nine")
        return x

    ds = grain.MapDataset.range(60).map(fails).to_iter_dataset().map(Scale(1))
    with iter(ds.mp_prefetch(WORKERS)) as iterator:
        assert [next(iterator) for _ in range(29)] == list(range(29))
        with pytest.raises(LookupError, match="twenty-nine") as info:
            next(iterator)
    assert "index 29 (record key 29)" in "\n".join(info.value.__notes__)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ds: ds.batch(0), "batch_size must be at least 1, got 0"),
        (lambda ds: ds.map(transforms.Batch(2)), r"Write \.batch\("),
        (lambda ds: ds.map(Scale), r"Write Scale\("),
        (lambda ds: ds.seed(-1), "seed must be at least 0"),
        (lambda ds: ds.random_map(lambda x, rng: x), "random_map needs a seed"),
        (lambda ds: ds.random_map(lambda x, rng: x, seed=-2), "seed must be at least 0"),
        (lambda ds: ds.mp_prefetch(2), r"takes a grain_jax\.MultiprocessingOptions, got 2"),
        (lambda ds: ds.mp_prefetch(WORKERS, 5), "worker_init_fn must be a function"),
        (lambda ds: ds.mp_prefetch(WORKERS).mp_prefetch(WORKERS), "mp_prefetch is already there"),
        (lambda ds: ds.apply(5), "5 of type int is no transformation"),
    ],
)
def test_bad_input(call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(errors.GrainError, match=text):
        call(numbers(4))


def test_streams_have_no_length() -> None:
    with pytest.raises(TypeError, match=r"has no len\(\)"):
        len(numbers(3))  # type: ignore[arg-type]


def test_repr() -> None:
    ds = numbers(3).seed(1).filter(lambda x: x).batch(2).mp_prefetch(WORKERS)
    assert repr(ds) == (
        "MapDataset.source(range of length 3).to_iter_dataset().seed(1).filter(<lambda>).batch(2)"
        ".mp_prefetch(num_workers=2)"
    )
