from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import grain_jax
from tests.compat.pairs import flat_map, plain, plain_list

STEPS = st.one_of(
    st.tuples(st.just("map"), st.integers(1, 5)),
    st.tuples(st.just("map_with_index"), st.just(1000)),
    st.tuples(st.just("filter"), st.integers(2, 4)),
    st.tuples(st.just("batch"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("flat_map"), st.integers(1, 3)),
)


def keeps(modulus: int) -> Any:
    return lambda x: int(np.sum(x)) % modulus != 0


def build(library: ModuleType, n: int, epochs: int, steps: list[tuple[Any, ...]]) -> Any:
    ds = library.MapDataset.range(n).shuffle(seed=n).filter(keeps(5)).repeat(epochs)
    ds = ds.to_iter_dataset(library.ReadOptions(num_threads=0))
    for kind, *arguments in steps:
        match kind, arguments:
            case "map", [factor]:
                ds = ds.map(lambda x, factor=factor: x * factor + 1)
            case "map_with_index", [factor]:
                ds = ds.map_with_index(lambda i, x, factor=factor: x + factor * i)
            case "filter", [modulus]:
                ds = ds.filter(keeps(modulus))
            case "batch", [size, drop]:
                ds = ds.batch(size, drop_remainder=drop)
            case "flat_map", [fan_out] if library is grain_jax:
                ds = ds.flat_map(flat_map(library, fan_out, fan_out))
            case "flat_map", [fan_out]:
                ds = library.experimental.FlatMapIterDataset(ds, flat_map(library, 9, fan_out))
    return ds


@settings(max_examples=50)
@given(n=st.integers(1, 30), epochs=st.integers(1, 2), steps=st.lists(STEPS, max_size=5))
def test_any_stream_equals_grain(
    reference_grain: ModuleType, n: int, epochs: int, steps: list[tuple[Any, ...]]
) -> None:
    # A batch of batches stacks only where none is short.
    assume([step[0] for step in steps].count("batch") <= 1)
    theirs = plain_list(build(reference_grain, n, epochs, steps))
    assert plain_list(build(grain_jax, n, epochs, steps)) == theirs


def test_absent_elements_are_kept_if_asked(reference_grain: ModuleType) -> None:
    for library in (grain_jax, reference_grain):
        ds = library.MapDataset.range(5).filter(lambda x: x % 3)
        assert list(ds.to_iter_dataset(allow_nones=True)) == [None, 1, 2, None, 4]


def test_ends_and_goes_on_ending(reference_grain: ModuleType) -> None:
    for library in (grain_jax, reference_grain):
        iterator = iter(library.MapDataset.range(2).to_iter_dataset())
        assert list(iterator) == [0, 1]
        for _ in range(2):
            with pytest.raises(StopIteration):
                next(iterator)


def test_batch_functions(reference_grain: ModuleType) -> None:
    ours, theirs = (
        lib.MapDataset.range(7).to_iter_dataset().batch(3, batch_fn=tuple)
        for lib in (grain_jax, reference_grain)
    )
    assert list(ours) == list(theirs) == [(0, 1, 2), (3, 4, 5), (6,)]


@pytest.mark.parametrize("method", ["apply", "methods"])
def test_transformations_as_objects(reference_grain: ModuleType, method: str) -> None:
    def pipeline(library: ModuleType) -> Any:
        transforms = library.transforms

        class Double(transforms.Map):  # type: ignore[misc, name-defined]
            def map(self, element: Any) -> Any:
                return 2 * element

        class Numbered(transforms.MapWithIndex):  # type: ignore[misc, name-defined]
            def map_with_index(self, index: int, element: Any) -> Any:
                return {"index": index, "element": element}

        class Small(transforms.Filter):  # type: ignore[misc, name-defined]
            def filter(self, element: Any) -> bool:
                return element < 20

        ds = library.MapDataset.range(15).to_iter_dataset()
        if method == "apply":
            return ds.apply([Double(), Small(), Numbered(), transforms.Batch(batch_size=4)])
        return ds.map(Double()).filter(Small()).map_with_index(Numbered()).batch(4)

    assert plain_list(pipeline(grain_jax)) == plain_list(pipeline(reference_grain))


def test_states_resume_where_grains_do(reference_grain: ModuleType) -> None:
    """Not the same states, but the same rest after each."""

    def rests(library: ModuleType) -> list[Any]:
        ds = library.MapDataset.range(20).seed(4).shuffle().to_iter_dataset()
        ds = ds.filter(lambda x: x % 4).map_with_index(lambda i, x: i + x).batch(4)
        iterator = iter(ds)
        found = []
        for _ in range(5):
            state = iterator.get_state()
            again = iter(ds)
            again.set_state(state)
            found.append(plain_list(again))
            plain(next(iterator, None))
        return found

    assert rests(grain_jax) == rests(reference_grain)
