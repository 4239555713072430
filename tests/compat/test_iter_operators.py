"""Operators that merge and reorder streams give what Grain gives."""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax
from tests.compat.pairs import flat_map, plain_list

SEEDS = st.integers(0, 2**31 - 1)
LENGTHS = st.lists(st.integers(0, 25), min_size=1, max_size=4)


def streams(library: ModuleType, lengths: list[int]) -> list[Any]:
    """Streams whose elements say which one, and where in it."""
    options = library.ReadOptions(num_threads=0)
    return [
        library.MapDataset.range(1000 * part, 1000 * part + length)
        .to_iter_dataset(options)
        .filter(lambda x: x % 7 > 0)
        for part, length in enumerate(lengths)
    ]


@settings(max_examples=60)
@given(lengths=LENGTHS, data=st.data())
def test_mixtures(reference_grain: ModuleType, lengths: list[int], data: Any) -> None:
    weight = st.one_of(st.integers(1, 9), st.floats(0.05, 5))
    weights = data.draw(
        st.one_of(st.none(), st.lists(weight, min_size=len(lengths), max_size=len(lengths)))
    )
    named = data.draw(st.booleans())

    def made(library: ModuleType) -> list[Any]:
        parts: Any = streams(library, lengths)
        if not named:
            return plain_list(library.IterDataset.mix(parts, weights))
        names = [f"part {number}" for number in range(len(lengths))]
        by_name = None if weights is None else dict(zip(names, weights, strict=True))
        return plain_list(library.IterDataset.mix(dict(zip(names, parts, strict=True)), by_name))

    assert made(grain_jax) == made(reference_grain)


@pytest.mark.parametrize("weight", [0.835065773637879, 0.29, 2.3, 1 / 3])
def test_weights_are_rounded_alike(reference_grain: ModuleType, weight: float) -> None:
    def made(library: ModuleType) -> list[Any]:
        parts = [library.MapDataset.range(first, first + 400) for first in (0, 1000)]
        return plain_list(library.MapDataset.mix(parts, [1, weight]))

    assert made(grain_jax) == made(reference_grain)


@settings(max_examples=30)
@given(length=st.integers(0, 30), count=st.integers(1, 12), window=st.integers(1, 12), seed=SEEDS)
def test_limit_and_windows(
    reference_grain: ModuleType, length: int, count: int, window: int, seed: int
) -> None:
    def made(library: ModuleType) -> list[Any]:
        (stream,) = streams(library, [length])
        stream = library.experimental.WindowShuffleIterDataset(
            stream, window_size=window, seed=seed
        )
        return plain_list(library.experimental.LimitIterDataset(stream, count))

    assert made(grain_jax) == made(reference_grain)


@settings(max_examples=30)
@given(whole=st.integers(1, 4), window=st.integers(1, 8), seed=SEEDS)
def test_windows_of_random_access(
    reference_grain: ModuleType, whole: int, window: int, seed: int
) -> None:
    """Of whole windows: where the last one is shorter Grain loses and repeats records."""

    def made(library: ModuleType) -> list[Any]:
        numbers = library.MapDataset.range(whole * window)
        dataset = library.experimental.WindowShuffleMapDataset(
            numbers, window_size=window, seed=seed
        )
        return plain_list(dataset.repeat(3))

    assert made(grain_jax) == made(reference_grain)


def test_a_shorter_last_window_keeps_its_records(reference_grain: ModuleType) -> None:
    found = {}
    for library in (grain_jax, reference_grain):
        numbers = library.MapDataset.range(10)
        found[library] = [
            plain_list(
                library.experimental.WindowShuffleMapDataset(numbers, window_size=6, seed=seed)
            )
            for seed in range(8)
        ]
    assert all(sorted(records) == list(range(10)) for records in found[grain_jax])
    assert any(sorted(records) != list(range(10)) for records in found[reference_grain])
    # In the whole window both have the same order.
    for ours, theirs in zip(found[grain_jax], found[reference_grain], strict=True):
        assert ours[:6] == theirs[:6]


@settings(max_examples=20)
@given(lengths=LENGTHS, strict=st.booleans())
def test_zip(reference_grain: ModuleType, lengths: list[int], strict: bool) -> None:
    def made(library: ModuleType) -> tuple[list[Any], bool]:
        zipped = library.experimental.ZipIterDataset(streams(library, lengths), strict=strict)
        found = []
        try:
            for element in zipped:
                found.append(element)
        except ValueError:
            return found, True
        return found, False

    assert made(grain_jax) == made(reference_grain)


@settings(max_examples=20)
@given(length=st.integers(0, 12), epochs=st.one_of(st.none(), st.integers(1, 4)))
def test_repeat(reference_grain: ModuleType, length: int, epochs: int | None) -> None:
    if length < 2 and epochs is None:
        return  # Grain never ends: all elements of an empty stream, over and over

    def made(library: ModuleType) -> list[Any]:
        (stream,) = streams(library, [length])
        repeated = library.experimental.RepeatIterDataset(stream, epochs)
        return list(itertools.islice(repeated, 50))

    assert made(grain_jax) == made(reference_grain)


@pytest.mark.parametrize("lengths", [[3, 3], [4, 4, 4]])
def test_zips_of_random_access(reference_grain: ModuleType, lengths: list[int]) -> None:
    def made(library: ModuleType) -> list[Any]:
        parts = [
            library.MapDataset.range(100 * part, 100 * part + length)
            for part, length in enumerate(lengths)
        ]
        return plain_list(library.experimental.ZipMapDataset(parts))

    assert made(grain_jax) == made(reference_grain)


@settings(max_examples=25)
@given(largest=st.integers(0, 10**6), seed=st.integers(0, 2**32 - 1), data=st.data())
def test_shuffled_indices(reference_grain: ModuleType, largest: int, seed: int, data: Any) -> None:
    index = data.draw(st.integers(0, largest))
    ours, theirs = (
        library.experimental.index_shuffle(index, max_index=largest, seed=seed, rounds=4)
        for library in (grain_jax, reference_grain)
    )
    assert ours == theirs


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((10, 9, 1, 4), "index"),
        ((-1, 9, 1, 4), "index must be at least 0"),
        ((1, 9, 2**32, 4), "seed"),
        ((1, 9, 1, 6), "rounds must be 4, got 6"),
        ((1.5, 9, 1, 4), "index must be a whole number"),
    ],
)
def test_indices_that_are_none_are_refused(arguments: Any, text: str) -> None:
    with pytest.raises(grain_jax.errors.GrainError, match=text):
        grain_jax.experimental.index_shuffle(*arguments)


@pytest.mark.parametrize("fan_out", [1, 3])
def test_flat_maps(reference_grain: ModuleType, fan_out: int) -> None:
    def made(library: ModuleType) -> list[Any]:
        split, numbers = flat_map(library, fan_out, fan_out), library.MapDataset.range(9)
        (stream,) = streams(library, [9])
        return [
            plain_list(library.experimental.FlatMapMapDataset(numbers, split)),
            plain_list(library.experimental.FlatMapIterDataset(stream, split)),
            plain_list(library.experimental.apply_transformations(numbers, [split])),
        ]

    assert made(grain_jax) == made(reference_grain)


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 7), min_size=1, max_size=8),
    cycle=st.integers(1, 9),
    kind=st.sampled_from(["streams", "random access", "dataset"]),
)
def test_interleaves(
    reference_grain: ModuleType, lengths: list[int], cycle: int, kind: str
) -> None:
    def made(library: ModuleType) -> list[Any]:
        parts: Any = streams(library, lengths)
        if kind == "random access":
            ranges = [(100 * part, 100 * part + length) for part, length in enumerate(lengths)]
            parts = [library.MapDataset.range(*bounds) for bounds in ranges]
        elif kind == "dataset":
            parts = library.MapDataset.source(lengths).map(
                lambda length: library.MapDataset.range(length).to_iter_dataset(
                    library.ReadOptions(num_threads=0)
                )
            )
        make = library.experimental.InterleaveIterDataset
        return plain_list(make(parts, cycle_length=cycle))

    assert made(grain_jax) == made(reference_grain)


@settings(max_examples=20, deadline=None)
@given(length=st.integers(0, 12), epochs=st.integers(1, 3))
def test_caches(reference_grain: ModuleType, length: int, epochs: int) -> None:
    """The stream, and how often what comes before is done."""

    def made(library: ModuleType) -> tuple[list[Any], list[int]]:
        asked: list[int] = []
        (stream,) = streams(library, [length])
        stream = stream.map(lambda x: asked.append(int(x)) or int(x))
        stream = library.experimental.CacheIterDataset(stream)
        stream = library.experimental.RepeatIterDataset(stream, epochs)
        return plain_list(stream), sorted(asked)

    assert made(grain_jax) == made(reference_grain)
