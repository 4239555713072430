"""The number of the element that comes next."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

import grain_jax as grain
from grain_jax.experimental import get_next_index, set_next_index
from tests.compat.pairs import plain, plain_list


def counted(library: ModuleType, length: int = 10) -> list[Any]:
    numbers = library.MapDataset.range(length).seed(2).shuffle()
    stream = numbers.to_iter_dataset()
    return [
        stream,
        stream.map(lambda x: 10 * x),
        stream.batch(3),
        numbers.batch(4).to_iter_dataset(),
        numbers.repeat(2).to_iter_dataset().batch(2),
    ]


def test_every_number_is_where_it_says() -> None:
    for ds in counted(grain):
        elements = plain_list(ds)
        iterator = iter(ds)
        for number, element in enumerate(elements):
            assert get_next_index(iterator) == number
            assert plain(next(iterator)) == element
        assert get_next_index(iterator) == len(elements)
        for number in (*range(len(elements), -1, -1), 1):
            set_next_index(iterator, number)
            assert get_next_index(iterator) == number
            assert plain_list(iterator) == elements[number:]


def test_they_are_those_of_grain(reference_grain: ModuleType) -> None:
    for ours, theirs in zip(counted(grain, 9), counted(reference_grain, 9), strict=True):
        one, other = iter(ours), iter(theirs)
        next(one), next(other)
        functions = reference_grain.experimental
        assert get_next_index(one) == functions.get_next_index(other)
        set_next_index(one, 2)
        functions.set_next_index(other, 2)
        assert plain_list(one) == plain_list(other)


def test_with_workers_and_without_an_end(no_process_left: None) -> None:
    endless = grain.MapDataset.range(5).repeat().to_iter_dataset()
    with iter(endless) as iterator:
        set_next_index(iterator, 5003)
        assert (next(iterator), get_next_index(iterator)) == (3, 5004)
    options = grain.MultiprocessingOptions(num_workers=1)
    with iter(endless.batch(2).mp_prefetch(options)) as iterator:
        set_next_index(iterator, 4)
        assert (next(iterator).tolist(), get_next_index(iterator)) == ([3, 4], 5)


def test_numbers_that_are_none_are_refused() -> None:
    iterator = iter(grain.MapDataset.range(5).to_iter_dataset().batch(2))
    with pytest.raises(grain.errors.OutOfRangeError, match="index 4 is beyond the 3 elements"):
        set_next_index(iterator, 4)
    for bad in (-1, 1.5, "1"):
        with pytest.raises(grain.errors.GrainError, match="index must be"):
            set_next_index(iterator, bad)  # type: ignore[arg-type]
    assert get_next_index(iterator) == 0


def test_what_cannot_be_counted_is_refused() -> None:
    stream = grain.MapDataset.range(5).to_iter_dataset()
    for ds in (
        stream.filter(bool),
        stream.filter(bool).batch(2),
        grain.IterDataset.mix([stream, stream]),
        stream.batch(2).map(len).filter(bool),
    ):
        with pytest.raises(grain.errors.InvalidTypeError, match="counts no elements"):
            get_next_index(iter(ds))
    with pytest.raises(grain.errors.InvalidTypeError, match="list_iterator counts no"):
        set_next_index(iter([1]), 0)
