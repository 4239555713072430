"""Shapes and dtypes of elements that are not read are what Grain says, and those they have."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import grain_jax
from grain_jax._values import shapes, trees
from tests.compat.pairs import flat_map


def plain(spec: Any) -> Any:
    """A spec without the class of its leaves."""
    if isinstance(spec, dict):
        return {name: plain(value) for name, value in spec.items()}
    if isinstance(spec, (list, tuple)):
        return tuple(plain(value) for value in spec)
    return tuple(spec.shape), np.dtype(spec.dtype)


def double(library: ModuleType) -> Any:
    class Double(library.transforms.Map):  # type: ignore[misc, name-defined]
        def map(self, element: Any) -> Any:
            return np.full(3, 2.0 * element)

        def output_spec(self, input_spec: Any) -> Any:
            assert plain(input_spec) == ((), np.int64)
            return library.experimental.ShapeDtypeStruct((3,), np.float64)

    return Double()


def numbers(library: ModuleType) -> Any:
    return library.MapDataset.range(12)


def stream(library: ModuleType) -> Any:
    return numbers(library).to_iter_dataset()


MADE: list[Callable[[ModuleType], Any]] = [
    numbers,
    stream,
    lambda library: numbers(library).shuffle(seed=1)[2:9].repeat(2),
    lambda library: numbers(library).filter(lambda x: x > 3),
    lambda library: stream(library).filter(lambda x: x > 3),
    lambda library: numbers(library).batch(2),
    lambda library: numbers(library).batch(5).batch(2, drop_remainder=True),
    lambda library: stream(library).batch(5),
    lambda library: stream(library).batch(5, drop_remainder=True),
    lambda library: numbers(library).map(double(library)).batch(4, drop_remainder=True),
    lambda library: stream(library).map(double(library)).batch(4),
    lambda library: library.MapDataset.mix([numbers(library), numbers(library)]),
    lambda library: library.MapDataset.concatenate([numbers(library), numbers(library)]),
    lambda library: library.IterDataset.mix([stream(library), stream(library)], [1, 2]),
    lambda library: library.experimental.ZipMapDataset(
        [numbers(library), numbers(library).map(double(library))]
    ),
    lambda library: library.experimental.ZipIterDataset(
        [stream(library), stream(library).map(double(library))]
    ).batch(3, drop_remainder=True),
    lambda library: library.experimental.RebatchIterDataset(stream(library).batch(5), 4, True),
    lambda library: library.experimental.RepeatIterDataset(stream(library), 2),
    lambda library: library.experimental.LimitIterDataset(stream(library), 2),
    lambda library: library.experimental.WindowShuffleMapDataset(
        numbers(library), window_size=4, seed=1
    ),
    lambda library: library.experimental.WindowShuffleIterDataset(
        stream(library), window_size=4, seed=1
    ),
    lambda library: stream(library).mp_prefetch(library.MultiprocessingOptions(num_workers=2)),
]


@pytest.mark.parametrize("made", MADE)
def test_specs(reference_grain: ModuleType, made: Callable[[ModuleType], Any]) -> None:
    found = grain_jax.experimental.get_element_spec(made(grain_jax))
    assert plain(found) == plain(
        reference_grain.experimental.get_element_spec(made(reference_grain))
    )


UNKNOWN: list[Callable[[ModuleType], Any]] = [
    lambda library: library.MapDataset.source(["a", "b"]),
    lambda library: library.experimental.FlatMapMapDataset(
        numbers(library), flat_map(library, 2, 2)
    ),
    lambda library: numbers(library).batch(2, batch_fn=list),
    lambda library: library.experimental.FirstFitPackIterDataset(
        stream(library).map(double(library)).batch(1),
        length_struct={"x": 4},
        num_packing_bins=1,
    ),
]


@pytest.mark.parametrize("made", UNKNOWN)
def test_nothing_is_said_where_nobody_can_know(
    reference_grain: ModuleType, made: Callable[[ModuleType], Any]
) -> None:
    for library in (grain_jax, reference_grain):
        with pytest.raises(NotImplementedError):
            library.experimental.get_element_spec(made(library))


def test_a_transformation_has_to_say_what_it_makes(reference_grain: ModuleType) -> None:
    for library in (grain_jax, reference_grain):
        with pytest.raises(ValueError, match="output_spec"):
            library.experimental.get_element_spec(numbers(library).map(abs))


def test_the_classes(reference_grain: ModuleType) -> None:
    for library in (grain_jax, reference_grain):
        made = library.experimental.ShapeDtypeStruct((None, 3), np.float32)
        assert isinstance(made, library.experimental.ShapeDtypeStructProtocol)
        assert isinstance(np.zeros(3), library.experimental.ShapeDtypeStructProtocol)
        assert made == library.experimental.ShapeDtypeStruct(shape=(None, 3), dtype=np.float32)
        assert made != library.experimental.ShapeDtypeStruct((3,), np.float32)
        assert hash(made) == hash(library.experimental.ShapeDtypeStruct((None, 3), np.float32))


def fits(spec: Any, element: Any) -> bool:
    """Whether an element has what its spec says."""
    leaves, structure = trees.flatten(element)
    said, other = trees.flatten(spec)
    return structure == other and all(
        leaf.dtype == one.dtype
        and len(leaf.shape) == len(one.shape)
        and all(known in (None, real) for known, real in zip(one.shape, leaf.shape, strict=True))
        for one, leaf in zip(said, map(np.asarray, leaves), strict=True)
    )


@pytest.mark.parametrize("drop", [False, True])
def test_arrays_are_known_and_all_elements_fit(drop: bool) -> None:
    columns = {"image": np.zeros((7, 2, 3), np.uint8), "label": np.arange(7.0)}
    ds = grain_jax.MapDataset.source(columns).to_iter_dataset()
    spec = grain_jax.experimental.get_element_spec
    assert plain(spec(ds)) == {"image": ((2, 3), np.uint8), "label": ((), np.float64)}
    batched = ds.batch(3, drop_remainder=drop)
    again = grain_jax.experimental.RebatchIterDataset(batched, 2, drop)
    for made in (ds, batched, again):
        assert all(fits(spec(made), element) for element in made)
    rows = 2 if drop else None  # an incomplete last one has fewer
    assert plain(spec(again))["label"] == ((rows,), np.float64)


def test_classes_of_ones_own_say_it_as_in_grain(reference_grain: ModuleType) -> None:
    for library in (grain_jax, reference_grain):
        struct = library.experimental.ShapeDtypeStruct((5,), np.int8)

        class Own(library.MapDataset):  # type: ignore[misc, name-defined]
            _element_spec = struct

            def __len__(self) -> int:
                return 4

            def __getitem__(self, index: int) -> Any:
                raise AssertionError

        batched = Own().shuffle(seed=0).batch(2, drop_remainder=True)
        spec = library.experimental.get_element_spec(batched)
        assert plain(spec) == ((2, 5), np.int8)


def test_a_source_can_say_it() -> None:
    class Records:
        element_spec = shapes.ShapeDtypeStruct((9,), np.int16)

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            raise AssertionError

    ds = grain_jax.MapDataset.source(Records())
    assert grain_jax.experimental.get_element_spec(ds) == Records.element_spec


def test_what_is_no_dataset_is_refused() -> None:
    with pytest.raises(TypeError, match="takes a MapDataset or an IterDataset, got list"):
        grain_jax.experimental.get_element_spec([1])  # type: ignore[arg-type]
