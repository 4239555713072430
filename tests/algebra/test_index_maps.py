"""Index maps against plain loops."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grain_jax import errors, samplers
from grain_jax._algebra import index_maps

SLICES = st.builds(
    slice,
    st.none() | st.integers(-12, 12),
    st.none() | st.integers(-12, 12),
    st.none() | st.integers(-4, 4).filter(bool),
)


def mapped(index_map: index_maps.IndexMap, indices: list[int]) -> list[int]:
    found = index_map(np.array(indices, np.int64))
    assert found.dtype == np.int64
    return [int(i) for i in found]


@given(n=st.integers(0, 10), part=SLICES, indices=st.lists(st.integers(-50, 50)))
def test_slice(n: int, part: slice, indices: list[int]) -> None:
    picked = list(range(n))[part]
    index_map = index_maps.Slice(range(n)[part], n)
    assert index_map.length == len(picked)
    if picked:
        # The epoch goes on counting below.
        expected = [picked[i % len(picked)] + i // len(picked) * n for i in indices]
        assert mapped(index_map, indices) == expected


@given(n=st.integers(1, 30), seed=st.integers(0, 2**32 - 1), epoch=st.integers(-3, 3))
def test_shuffle_permutes_within_each_epoch(n: int, seed: int, epoch: int) -> None:
    begin = epoch * n
    found = mapped(index_maps.Shuffle(n, seed), list(range(begin, begin + n)))
    assert sorted(found) == list(range(begin, begin + n))
    one_by_one = [mapped(index_maps.Shuffle(n, seed), [begin + i])[0] for i in range(n)]
    assert found == one_by_one


@given(n=st.integers(1, 30), closed=st.integers(1, 3), epoch=st.integers(-4, 7))
def test_a_closed_shuffle_has_its_orders_again(n: int, closed: int, epoch: int) -> None:
    first = range(epoch % closed * n, (epoch % closed + 1) * n)
    expected = [i % n + epoch * n for i in mapped(index_maps.Shuffle(n, 5), list(first))]
    shuffle = index_maps.Shuffle(n, 5, closed=closed)
    assert mapped(shuffle, list(range(epoch * n, (epoch + 1) * n))) == expected


def test_a_slice_of_what_has_no_end_stays_in_its_first_epoch() -> None:
    assert mapped(index_maps.Slice(range(2, 5), index_maps.ENDLESS), [0, 2, 3, 7]) == [2, 4, 2, 3]


@pytest.mark.parametrize("n", [2, 7, 100])
def test_shuffle_has_grains_order(n: int, reference_grain: ModuleType) -> None:
    shuffle: Callable[..., int] = reference_grain.experimental.index_shuffle
    for epoch in range(3):
        found = mapped(index_maps.Shuffle(n, 5), list(range(epoch * n, (epoch + 1) * n)))
        expected = [shuffle(i, n - 1, 5 + epoch, 4) + epoch * n for i in range(n)]
        assert found == expected


@pytest.mark.parametrize("n", [2**32 + 1, 2**40, index_maps.ENDLESS])
def test_shuffle_of_many(n: int) -> None:
    found = mapped(index_maps.Shuffle(n, 1), list(range(100)))
    assert len(set(found)) == 100
    assert all(0 <= i < n for i in found)


@given(
    n=st.integers(1, 10),
    epochs=st.none() | st.integers(1, 4),
    reseed=st.booleans(),
    indices=st.lists(st.integers(0, 60)),
)
def test_repeat(n: int, epochs: int | None, reseed: bool, indices: list[int]) -> None:
    index_map = index_maps.Repeat(n, epochs, reseed)
    assert index_map.length == (index_maps.ENDLESS if epochs is None else n * epochs)
    assert mapped(index_map, indices) == [i if reseed else i % n for i in indices]


@pytest.mark.parametrize("epochs", [0, -1, 1.5, "2", True])
def test_bad_epochs(epochs: int) -> None:
    with pytest.raises(errors.GrainError, match="num_epochs"):
        index_maps.Repeat(5, epochs, True)


def test_what_cannot_be_repeated() -> None:
    with pytest.raises(ValueError, match="repeat cannot follow a repeat without an end"):
        index_maps.Repeat(index_maps.ENDLESS, 2, True)
    with pytest.raises(ValueError, match="Write repeat\\(\\) for a dataset without an end"):
        index_maps.Repeat(10, 2**61, True)


def test_nothing_repeated_is_nothing() -> None:
    assert index_maps.Repeat(0, None, True).length == 0
    assert index_maps.Repeat(0, 3, True).length == 0


@pytest.mark.parametrize("epochs", [None, 2])
def test_sample(epochs: int | None) -> None:
    sampler = samplers.IndexSampler(7, shuffle=True, seed=3, num_epochs=epochs)
    index_map = index_maps.Sample(sampler)
    assert index_map.length == (index_maps.ENDLESS if epochs is None else 14)
    assert mapped(index_map, list(range(14))) == [sampler[i].record_key for i in range(14)]
