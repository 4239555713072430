from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import grain_jax
from tests.compat.pairs import flat_map, plain, plain_list

SEEDS = st.integers(0, 2**32 - 1)


def bound(number: int | None) -> Any:
    return st.one_of(st.none(), st.integers(-number, number) if number else st.just(0))


STEPS = st.one_of(
    st.tuples(st.just("map"), st.integers(1, 5)),
    st.tuples(st.just("map_with_index"), st.just(1000)),
    st.tuples(st.just("filter"), st.integers(2, 4)),
    st.tuples(st.just("seed"), SEEDS),
    st.tuples(st.just("shuffle"), st.one_of(st.none(), SEEDS)),
    st.tuples(st.just("repeat"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("slice"), bound(9), bound(9), st.sampled_from([None, 1, 2, -1, -3])),
    st.tuples(st.just("batch"), st.integers(1, 4), st.booleans()),
    st.tuples(st.just("flat_map"), st.integers(1, 3)),
)


def keeps(modulus: int) -> Any:
    return lambda x: int(np.sum(x)) % modulus != 0


def build(library: ModuleType, n: int, steps: list[tuple[Any, ...]]) -> Any:
    ds = library.MapDataset.range(n).seed(17)
    for kind, *arguments in steps:
        match kind, arguments:
            case "map", [factor]:
                ds = ds.map(lambda x, factor=factor: x * factor + 1)
            case "map_with_index", [factor]:
                ds = ds.map_with_index(lambda i, x, factor=factor: x + factor * i)
            case "filter", [modulus]:
                ds = ds.filter(keeps(modulus))
            case "repeat", [count, reseed]:
                ds = ds.repeat(count, reseed_each_epoch=reseed)
            case "slice", [start, stop, step]:
                ds = ds[start:stop:step]
            case "batch", [size, drop]:
                ds = ds.batch(size, drop_remainder=drop)
            case "flat_map", [fan_out]:
                ds = ds.apply(flat_map(library, fan_out, fan_out))
            case _:
                ds = getattr(ds, kind)(*arguments)
    return ds


def slices_a_shuffle(steps: list[tuple[Any, ...]]) -> bool:
    """Whether Grain's slice may have other records in its later epochs."""
    kinds = [step[0] for step in steps]
    return "shuffle" in kinds and "slice" in kinds[kinds.index("shuffle") :]


def sensible(steps: list[tuple[Any, ...]]) -> bool:
    """Batches of what may be absent or ragged are refused; other tests hold how."""
    kinds = [step[0] for step in steps]
    if slices_a_shuffle(steps):
        repeats = [step for step in steps[kinds.index("slice") :] if step[0] == "repeat"]
        if any(count > 1 and reseed for _, count, reseed in repeats):
            return False
    if kinds.count("batch") > 1 or kinds.count("flat_map") > 1:
        return False
    gaps = [place for place, kind in enumerate(kinds) if kind in ("filter", "flat_map")]
    return "batch" not in kinds or not gaps or kinds.index("batch") < gaps[0]


@settings(max_examples=200)
@given(n=st.integers(1, 12), steps=st.lists(STEPS, max_size=6), data=st.data())
def test_any_pipeline_equals_grain(
    reference_grain: ModuleType, n: int, steps: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    assume(sensible(steps))
    theirs = reference_grain.MapDataset.range(n)
    for place in range(len(steps) + 1):
        theirs = build(reference_grain, n, steps[:place])
        assume(len(theirs) > 0)
    ours = build(grain_jax, n, steps)
    length = len(theirs)
    assert len(ours) == length
    assert plain_list(ours) == plain_list(theirs)
    low, high = (0, length - 1) if slices_a_shuffle(steps) else (-2 * length, 3 * length)
    indices = data.draw(st.lists(st.integers(low, high), max_size=8))
    assert [plain(ours[i]) for i in indices] == [plain(theirs[i]) for i in indices]


@pytest.mark.parametrize(
    "arguments", [(10,), (2, 10), (2, 10, 3), (10, 2, -3), (10, 2), (0,), (-3,)], ids=str
)
def test_range(reference_grain: ModuleType, arguments: tuple[int, ...]) -> None:
    ours, theirs = (lib.MapDataset.range(*arguments) for lib in (grain_jax, reference_grain))
    assert len(ours) == len(theirs)
    assert list(ours) == list(theirs)


@pytest.mark.parametrize(
    "source", [[3, None, 5], np.arange(6).reshape(3, 2), range(4, 9)], ids=repr
)
def test_source(reference_grain: ModuleType, source: Any) -> None:
    ours, theirs = (lib.MapDataset.source(source) for lib in (grain_jax, reference_grain))
    assert len(ours) == len(theirs)
    assert plain_list(ours) == plain_list(theirs)


@pytest.mark.parametrize("depth", range(4))
def test_one_seed_for_several_shuffles(reference_grain: ModuleType, depth: int) -> None:
    def pipeline(library: ModuleType) -> Any:
        ds = library.MapDataset.range(50).map(str).seed(2**32 - 1).shuffle()
        for _ in range(depth):
            ds = ds.map(lambda x: x)
        return ds.repeat(2).shuffle().filter(lambda x: x != "7").shuffle().repeat(2)

    assert plain_list(pipeline(grain_jax)) == plain_list(pipeline(reference_grain))


def test_endless_pipelines(reference_grain: ModuleType) -> None:
    def pipeline(library: ModuleType) -> Any:
        return (
            library.MapDataset.range(7)
            .shuffle(seed=3)
            .repeat()
            .batch(4)
            .map_with_index(lambda i, x: (i, x))
        )

    ours, theirs = pipeline(grain_jax), pipeline(reference_grain)
    assert len(ours) == len(theirs)
    for index in (0, 1, 5, 10**9):
        assert plain(ours[index]) == plain(theirs[index])
    assert plain_list(ours[2:9]) == plain_list(theirs[2:9])


def test_large_shuffles(reference_grain: ModuleType) -> None:
    ours, theirs = (
        lib.MapDataset.range(1_000_000).seed(1).shuffle() for lib in (grain_jax, reference_grain)
    )
    for index in (0, 1, 999_999, 1_000_000, 5_123_456, -1):
        assert ours[index] == theirs[index]


@pytest.mark.parametrize(
    "batch_fn", [list, sum, lambda rows: {"first": rows[0], "count": len(rows)}]
)
def test_batch_functions(reference_grain: ModuleType, batch_fn: Any) -> None:
    ours, theirs = (
        lib.MapDataset.range(5).batch(2, batch_fn=batch_fn) for lib in (grain_jax, reference_grain)
    )
    assert plain_list(ours) == plain_list(theirs)


@pytest.mark.parametrize(
    "records",
    [
        [{"x": np.float32(i), "y": [np.arange(3) + i, i]} for i in range(5)],
        [(np.full((2, 2), i, np.uint8), {"a": bool(i % 2)}) for i in range(5)],
        [f"text {i}" for i in range(5)],
        [bytes([65 + i]) for i in range(5)],
        [1.5 * i for i in range(5)],
    ],
    ids=["dict", "tuple", "text", "bytes", "float"],
)
def test_batches_of_trees(reference_grain: ModuleType, records: list[Any]) -> None:
    ours, theirs = (lib.MapDataset.source(records).batch(2) for lib in (grain_jax, reference_grain))
    assert len(ours) == len(theirs)
    for mine, reference in zip(ours, theirs, strict=True):
        assert describe(mine) == describe(reference)


def describe(tree: Any) -> Any:
    """Kind and contents of every leaf; how text is held is ours to choose."""
    if isinstance(tree, dict):
        return {key: describe(value) for key, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return type(tree)(describe(value) for value in tree)
    array = np.asarray(tree)
    return "|O" if array.dtype.kind in "US" else array.dtype.str, array.tolist()


def attempt(call: Any) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ds: ds.shuffle(),
        lambda ds: ds.shuffle(seed=-1),
        lambda ds: ds.shuffle(seed=2**32),
        lambda ds: ds.random_map(lambda x, rng: x),
        lambda ds: ds.repeat(0),
        lambda ds: ds.repeat(-1),
        lambda ds: ds.batch(0),
        lambda ds: ds.batch(-2),
        lambda ds: ds.filter(lambda x: x % 2).batch(2),
        lambda ds: ds["a"],
        lambda ds: len(ds.to_iter_dataset()),
        lambda ds: ds.map(lambda x: 1 // 0)[0],
    ],
)
def test_errors_can_be_caught_as_grains(reference_grain: ModuleType, wrong: Any) -> None:
    theirs = attempt(lambda: wrong(reference_grain.MapDataset.range(5)))
    ours = attempt(lambda: wrong(grain_jax.MapDataset.range(5)))
    assert theirs is not None
    assert ours is not None
    assert issubclass(ours, theirs)


def test_random_steps_repeat_as_grains_do(reference_grain: ModuleType) -> None:
    def draw(x: Any, rng: np.random.Generator) -> int:
        return int(rng.integers(2**40))

    for library in (grain_jax, reference_grain):
        ds = library.MapDataset.range(4).seed(1).random_map(draw)
        once = [ds[i] for i in range(8)]
        assert once == [ds[i] for i in range(8)]
        assert len(set(once)) == 8
        assert list(ds.repeat(2)) == once
        same = list(ds.repeat(2, reseed_each_epoch=False))
        assert same == once[:4] * 2


@settings(max_examples=25)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    data=st.data(),
    shuffled=st.booleans(),
)
def test_merges_equal_grains(
    reference_grain: ModuleType, lengths: list[int], data: st.DataObject, shuffled: bool
) -> None:
    weight = st.sampled_from([1, 2, 3, 0.5, 0.3, 7])
    weights = data.draw(st.none() | st.lists(weight, min_size=len(lengths), max_size=len(lengths)))

    def merged(library: ModuleType) -> list[Any]:
        parts = [library.MapDataset.range(100 * i, 100 * i + n) for i, n in enumerate(lengths)]
        if shuffled:
            parts = [part.shuffle(seed=i) for i, part in enumerate(parts)]
        return [
            library.MapDataset.mix(parts, weights),
            library.MapDataset.concatenate(parts),
            library.MapDataset.mix(parts, weights).batch(2),
            library.MapDataset.mix([library.MapDataset.concatenate(parts), parts[0]]),
        ]

    for ours, theirs in zip(merged(grain_jax), merged(reference_grain), strict=True):
        assert len(ours) == len(theirs)
        count = 3 * len(ours)
        assert [plain(ours[i]) for i in range(count)] == [plain(theirs[i]) for i in range(count)]
        assert plain_list(ours.to_iter_dataset()) == plain_list(theirs.to_iter_dataset())
