"""MapDataset against plain lists, and what it says about input that cannot work."""

from __future__ import annotations

import pickle
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax as grain
from grain_jax import errors, transforms
from grain_jax._values import randomness
from tests.datasets import plain

MapDataset = grain.MapDataset


class Scale(transforms.Map):
    def __init__(self, by: int) -> None:
        self.by = by

    def map(self, element: Any) -> Any:
        return self.by * element


KINDS = ["map", "index", "filter", "slice", "repeat", "shuffle", "flat_map", "batch"]


@settings(max_examples=60)
@given(st.integers(1, 9), st.lists(st.sampled_from(KINDS), max_size=5))
def test_equals_plain_functions(n: int, kinds: list[str]) -> None:
    dataset, at, length = plain.extended(plain.start(n), kinds)
    assert len(dataset) == length
    indices = [0, length - 1, length // 2, length, length + 1, 2 * length - 1]
    assert [dataset[i] for i in indices] == [at(i, None) for i in indices]
    expected = [v for v in (at(i, None) for i in range(length)) if v is not None]
    assert list(dataset) == expected


def test_negative_indices_stand_in_earlier_epochs() -> None:
    shuffled = MapDataset.range(7).shuffle(seed=5)
    expected = [plain.shuffled(i, 7, 5) % 7 for i in range(-7, 0)]
    assert [shuffled[i] for i in range(-7, 0)] == expected
    assert sorted(expected) == list(range(7))


def test_random_map_depends_on_seed_and_index() -> None:
    ds = MapDataset.range(3).seed(8).random_map(lambda x, rng: float(rng.random()))
    expected = [float(randomness.generator(8, i).random()) for i in range(6)]
    assert [ds[i] for i in range(6)] == expected
    assert list(ds.repeat(2)) == expected
    assert list(ds.repeat(2, reseed_each_epoch=False)) == 2 * expected[:3]
    assert (
        list(MapDataset.range(3).random_map(lambda x, rng: float(rng.random()), seed=8))
        == (expected[:3])
    )


def test_two_random_maps_share_no_draw() -> None:
    draw = lambda x, rng: [*(x if isinstance(x, list) else []), int(rng.integers(2**40))]  # noqa: E731
    ds = MapDataset.range(4).seed(1).random_map(draw).random_map(draw)
    values = [value for element in ds for value in element]
    assert len(set(values)) == 8


def test_draws_from_process_wide_generators_depend_on_the_element_alone() -> None:
    def draws(x: Any) -> tuple[float, float, int]:
        return random.random(), float(np.random.rand()), x

    ds = MapDataset.range(6).seed(2).map(draws).filter(lambda x: x[2] != 3)
    random.seed(1)
    state = random.getstate()
    elements = [ds[i] for i in range(6)]
    assert random.getstate() == state
    assert len({x[0] for x in elements if x}) == 5
    np.random.seed(9)
    assert list(ds) == [x for x in elements if x is not None]
    assert list(ds.to_iter_dataset().batch(2, batch_fn=list)) == [
        [elements[0], elements[1]],
        [elements[2], elements[4]],
        [elements[5]],
    ]
    again = MapDataset.range(6).seed(2).map(draws).batch(3, batch_fn=list)
    assert again[1] == [(*again[1][0][:2], 3), *again[1][1:]]
    assert again[0] == elements[:3]
    assert ds[7] != ds[1]


@pytest.mark.parametrize("threads", [None, 0, 4])
def test_draws_are_the_same_however_records_are_read(threads: int | None) -> None:
    class Slow:
        def __len__(self) -> int:
            return 30

        def __getitem__(self, index: int) -> int:
            time.sleep(1e-4)
            return index

    ds = MapDataset.source(Slow()).map(lambda x: (x, random.random()))
    stream = ds.to_iter_dataset(grain.ReadOptions(num_threads=threads, prefetch_buffer_size=8))
    found = list(stream.map(lambda x: (*x, random.random())).batch(4, batch_fn=list))
    assert [x[:2] for batch in found for x in batch] == [ds[i] for i in range(30)]
    assert list(stream.map(lambda x: (*x, random.random())).batch(4, batch_fn=list)) == found


def test_two_steps_share_no_draw() -> None:
    def draw(x: Any) -> list[float]:
        return [*(x if isinstance(x, list) else []), random.random()]

    ds = (
        MapDataset.range(4)
        .map(draw)
        .map(draw)
        .to_iter_dataset()
        .filter(len)
        .batch(1, batch_fn=only)
    )
    values = [value for element in ds.map(draw) for value in element]
    assert len(set(values)) == 12


def only(elements: Any) -> Any:
    return elements[0]


def test_draws_of_batch_functions_and_flat_maps() -> None:
    class Spread(transforms.FlatMap):
        max_fan_out = 2

        def flat_map(self, element: int) -> list[float]:
            return [random.random(), random.random()]

    ds = MapDataset.range(4).flat_map(Spread())
    assert [ds[i] for i in range(8)] == list(ds)
    assert len(set(ds)) == 8
    batches = MapDataset.range(6).batch(2, batch_fn=lambda xs: (random.random(), list(xs)))
    assert [batches[2], batches[0]] == list(batches)[2::-2]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda ds: ds["a"], "indexed by a whole number, a slice or a list of indices, got 'a'"),
        (lambda ds: ds[1.5], "got 1.5"),
        (lambda ds: ds[None], "got None"),
        (lambda ds: ds[1, 2], r"got \(1, 2\)"),
        (lambda ds: ds[2**70], f"index {2**70} does not fit into 64 bits"),
        (lambda ds: ds.slice(3), r"slice takes a slice or a list of indices, got 3\. Write"),
        (lambda ds: ds.batch(0), "batch_size must be at least 1, got 0"),
        (lambda ds: ds.batch(2.0), "batch_size must be a whole number"),
        (lambda ds: ds.repeat(0), "num_epochs must be at least 1, got 0"),
        (lambda ds: ds.repeat(-1), "num_epochs must be at least 1, got -1"),
        (lambda ds: ds.repeat(1.5), "num_epochs must be a whole number"),
        (lambda ds: ds.repeat().repeat(), "repeat cannot follow a repeat without an end"),
        (lambda ds: ds.repeat(2**61), "is more than"),
        (lambda ds: ds.seed(-1), "seed must be at least 0, got -1"),
        (lambda ds: ds.seed(None), "seed must be a whole number"),
        (lambda ds: ds.shuffle(), r"shuffle needs a seed\. Write `ds\.seed\(\.\.\.\)`"),
        (lambda ds: ds.shuffle(seed=-1), "seed must be at least 0"),
        (lambda ds: ds.random_map(lambda x, rng: x), "random_map needs a seed"),
        (lambda ds: ds.shuffle(seed=2**40), "seed must fit"),
        (lambda ds: ds.map(Scale), r"Scale is a class.*Write Scale\("),
        (lambda ds: ds.map(transforms.Batch(2)), r"Write \.batch\("),
        (lambda ds: ds.map(5), "got 5 of type int"),
        (lambda ds: ds.filter(Scale(2)), r"Write \.map\("),
        (lambda ds: ds.flat_map(lambda x: [x]), "flat_map takes a transforms.FlatMap"),
        (lambda ds: ds.filter(lambda x: x).batch(2), r"ds\.to_iter_dataset\(\)\.batch"),
        (lambda ds: ds.flat_map(plain.Copies()).batch(2), r"ds\.to_iter_dataset\(\)\.batch"),
        (lambda ds: ds.to_iter_dataset(5), "read_options must be"),
        (lambda ds: ds.apply(lambda x: x), "is no transformation"),
        (lambda ds: ds.apply([Scale(2), 3]), "3 of type int is no transformation"),
        (lambda ds: MapDataset.source(5), "no data source"),
        (lambda ds: MapDataset.source(iter([1])), "no data source"),
    ],
)
def test_bad_input(call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(errors.GrainError, match=text):
        call(MapDataset.range(10))


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds,
        lambda ds: ds.shuffle(seed=1),
        lambda ds: ds.repeat(),
        lambda ds: ds.batch(2),
        lambda ds: ds[1:],
        lambda ds: ds.map(lambda x: x),
    ],
)
def test_empty(make: Callable[[Any], Any]) -> None:
    ds = make(MapDataset.source([]))
    assert (len(ds), list(ds)) == (0, [])
    with pytest.raises(IndexError, match=r"of an empty dataset: MapDataset\.source"):
        ds[0]


def test_without_an_end() -> None:
    ds = MapDataset.range(3).repeat()
    assert len(ds) == 2**63 - 1
    assert [ds[i] for i in (0, 4, 3 * 10**15 + 2)] == [0, 1, 2]
    found = []
    for x in ds.shuffle(seed=1):
        found.append(x)
        if len(found) == 20:
            break
    assert set(found) <= {0, 1, 2}
    assert list(ds[5:9]) == [2, 0, 1, 2]
    assert len(ds.flat_map(plain.Copies())) == 2**63 - 1
    assert ds.batch(4)[5].tolist() == [2, 0, 1, 2]


def test_numpy_integers_are_indices() -> None:
    ds = MapDataset.range(5)
    assert ds[np.int32(3)] == ds[np.array(3)] == 3


def test_indices_far_away() -> None:
    ds = MapDataset.range(10).map(lambda x: x)
    assert ds[2**62] == 2**62 % 10
    assert ds[-(2**63)] == -(2**63) % 10


def test_two_iterators_at_once() -> None:
    ds = MapDataset.range(4).shuffle(seed=3).map(Scale(2))
    assert list(zip(ds, ds, strict=True)) == [(x, x) for x in ds]


class Squares(MapDataset[int]):
    """A subclass without `super().__init__()`."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: Any) -> Any:
        if index % self.n == 3:
            return None
        return (index % self.n) ** 2


class Negated(MapDataset[int]):
    def __init__(self, parent: MapDataset[int]) -> None:
        super().__init__(parent)

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        if index == 2:
            raise LookupError("two")
        return -(self.parents[0][index] or 0)


def test_subclasses() -> None:
    ds = Squares(5)
    assert list(ds) == [0, 1, 4, 16]
    assert list(ds.map(Scale(2))) == [0, 2, 8, 32]
    assert ds.map(Scale(2))[3] is None
    assert list(ds.repeat(2)) == 2 * [0, 1, 4, 16]
    assert len(ds.seed(1)) == 5
    assert ds.seed(1)[2] == 4
    assert list(ds.seed(1).shuffle()) == list(
        MapDataset.source([0, 1, 4, None, 16]).seed(1).shuffle()
    )
    assert list(ds.to_iter_dataset().batch(3, batch_fn=list)) == [[0, 1, 4], [16]]
    assert repr(ds.map(Scale(2))) == "Squares().map(Scale)"


def test_absent_elements_of_a_subclass_before_a_batch() -> None:
    with pytest.raises(ValueError, match="the one at index 3 is absent"):
        Squares(5).batch(5)[0]


def test_subclasses_with_a_parent() -> None:
    parent = MapDataset.range(5).seed(4)
    ds = Negated(parent)
    assert ds.parents == (parent,)
    # The parent's seed goes on; the subclass counts as a step.
    assert [-x for x in ds.shuffle()[:1]] == list(parent.map(abs).shuffle()[:1])
    with pytest.raises(LookupError) as info:
        list(ds.map(Scale(2)))
    assert "in Negated.__getitem__, at index 2" in info.value.__notes__[0]


class Bare(MapDataset[int]):
    pass


def test_a_subclass_that_defines_nothing() -> None:
    with pytest.raises(NotImplementedError, match="Bare defines no __len__"):
        len(Bare())
    with pytest.raises(NotImplementedError, match="Bare defines no __getitem__"):
        Bare()[0]


class Faulty:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        if index == 4:
            raise OSError("disk")
        return index


@pytest.mark.parametrize(
    ("read", "where"),
    [
        (lambda ds: ds[4], "at index 4 (record key 4)"),
        (lambda ds: ds[4:][0], "at index 0 (record key 4)"),
        (lambda ds: list(ds), "at position 4 (record key 4)"),
        (lambda ds: list(ds[::-1]), "at position 5 (record key 4)"),
        (lambda ds: list(ds[2:].to_iter_dataset().batch(5)), "at position 2 (record key 4)"),
    ],
)
def test_errors_of_the_source(read: Callable[[Any], Any], where: str) -> None:
    with pytest.raises(OSError, match="disk") as info:
        read(MapDataset.source(Faulty()))
    notes = "\n".join(info.value.__notes__)
    assert f"in reading the source, {where}" in notes
    assert f"{__file__}:" in notes
    assert "key 4" in notes


def test_records_before_a_faulty_one_arrive() -> None:
    iterator = iter(MapDataset.source(Faulty()))
    assert [next(iterator) for _ in range(4)] == [0, 1, 2, 3]
    for _ in range(2):  # an error does not move the position
        with pytest.raises(OSError, match="disk"):
            next(iterator)


def test_errors_of_steps_name_index_and_key() -> None:
    def fails(x: int) -> int:
        raise LookupError(x)

    ds = MapDataset.range(10)[5:].map(fails)
    with pytest.raises(LookupError) as info:
        ds[2]
    assert "in step 1: map(fails), at index 2 (record key 7)" in info.value.__notes__[0]
    records = [np.zeros(2), np.zeros(3)]
    with pytest.raises(ValueError, match=r"\(3,\).*\(2,\)") as stack:
        MapDataset.source(records)[::-1].batch(2)[0]
    assert "index 0 (record key 1) and index 1 (record key 0)" in stack.value.__notes__[0]


def test_repr() -> None:
    ds = MapDataset.source([1, 2, 3]).seed(2).shuffle(seed=1).map(Scale(2))[:2].repeat(2).batch(2)
    assert repr(ds) == (
        "MapDataset.source(list of length 3).seed(2).shuffle(seed=1).map(Scale).slice(0, 2, 1)"
        ".repeat(2).batch(2)"
    )


def test_pickling() -> None:
    ds = MapDataset.range(9).seed(3).shuffle().map(Scale(3)).batch(2)
    again = pickle.loads(pickle.dumps(ds))
    assert [b.tolist() for b in again] == [b.tolist() for b in ds]
    squares = pickle.loads(pickle.dumps(Squares(4).map(Scale(2))))
    assert list(squares) == [0, 2, 8]


def test_transformations_as_objects() -> None:
    ds = MapDataset.range(10).apply([Scale(2), transforms.Batch(4, drop_remainder=True)])
    assert [b.tolist() for b in ds] == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert ds.apply([]) is ds
    assert MapDataset.range(3).pipe(lambda d, by: d.map(Scale(by)), by=3)[2] == 6
