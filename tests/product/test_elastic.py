"""ElasticIterator: Grain's batches, and the same stream on any number of shards."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
import pytest

from grain_jax import MapDataset, MultiprocessingOptions, prefetch_to_device
from grain_jax._values.errors import InvalidTypeError, InvalidValueError, StateError
from grain_jax.experimental import ElasticIterator
from grain_jax.sharding import ShardOptions


def draw(x: int, rng: np.random.Generator) -> Any:
    return {"x": x, "draw": rng.random()}


def dataset(records: int = 50) -> MapDataset[Any]:
    return MapDataset.range(records).shuffle(seed=3).seed(5).random_map(draw).repeat(2)


def iterators(ds: Any, batch: int, count: int, **more: Any) -> list[ElasticIterator]:
    return [ElasticIterator(ds, batch, ShardOptions(s, count), **more) for s in range(count)]


def step(shards: list[ElasticIterator]) -> set[tuple[int, float]]:
    """The elements of one step of all shards together."""
    batches = [next(shard) for shard in shards]
    return {pair for b in batches for pair in zip(b["x"].tolist(), b["draw"], strict=True)}


@pytest.mark.parametrize("count", [1, 2, 4])
def test_batches_of_grain(reference_grain: ModuleType, count: int) -> None:
    for records in (0, 7, 22, 24):
        for index in range(count):
            theirs = reference_grain.experimental.ElasticIterator(
                reference_grain.MapDataset.range(records).shuffle(seed=1),
                8,
                reference_grain.sharding.ShardOptions(index, count),
            )
            ours = ElasticIterator(
                MapDataset.range(records).shuffle(seed=1), 8, ShardOptions(index, count)
            )
            expected = [batch.tolist() for batch in theirs]
            # There a shard that can fill its part of the last global batch takes that step alone.
            assert [batch.tolist() for batch in ours] == expected[: records // 8]


def test_a_state_of_grain_goes_on_there(reference_grain: ModuleType) -> None:
    theirs = reference_grain.experimental.ElasticIterator(
        reference_grain.MapDataset.range(24), 8, reference_grain.sharding.ShardOptions(1, 2)
    )
    next(theirs)
    ours = ElasticIterator(MapDataset.range(24), 4, ShardOptions(0, 4))
    ours.set_state(theirs.get_state())
    assert next(ours).tolist() == [8]
    with pytest.raises(StateError, match="position"):
        ours.set_state({"global_next_index": 25})


def test_case_8_shards_come_and_go() -> None:
    whole = iterators(dataset(), 12, 1)
    expected = [step(whole) for _ in range(8)]
    state, seen = whole[0].get_state(), []
    shards = iterators(dataset(), 12, 1)
    for count in (4, 2, 3, 1):
        states = [shard.get_state() for shard in shards]
        assert all(state == states[0] for state in states)
        shards = iterators(dataset(), 12, count)
        for shard in shards:
            shard.set_state(states[0])
        seen += [step(shards) for _ in range(2)]
    assert seen == expected
    assert shards[0].get_state() == state


def test_workers_change_nothing() -> None:
    with ElasticIterator(
        dataset(),
        8,
        ShardOptions(1, 2),
        multiprocessing_options=MultiprocessingOptions(num_workers=2),
    ) as ours:
        got = [batch["draw"].tolist() for batch in ours]
    expected = ElasticIterator(dataset(), 8, ShardOptions(1, 2))
    assert got == [batch["draw"].tolist() for batch in expected]
    assert len(got) == 100 // 8


def test_on_devices() -> None:
    with prefetch_to_device(ElasticIterator(dataset(), 16, ShardOptions(0, 2))) as iterator:
        shapes = [batch["x"].shape for batch in iterator]
        assert shapes == [(8,)] * (100 // 16)
        assert iterator.get_state()["position"] == 96


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((MapDataset.range(9), 9, ShardOptions(0, 2)), InvalidValueError, "Use 8 or 10"),
        ((MapDataset.range(9), 1, ShardOptions(0, 2)), InvalidValueError, "Use 2 or 2"),
        ((MapDataset.range(9), 0, ShardOptions(0, 2)), InvalidValueError, "global_batch_size"),
        ((MapDataset.range(9), 4, (0, 2)), InvalidTypeError, "must be a ShardOptions"),
        (
            (MapDataset.range(9).to_iter_dataset(), 4, ShardOptions(0, 2)),
            InvalidTypeError,
            "takes a MapDataset, got IterDataset",
        ),
        (
            (MapDataset.range(9).filter(bool), 4, ShardOptions(0, 2)),
            InvalidValueError,
            "does not take a dataset with a filter",
        ),
    ],
)
def test_what_cannot_work(arguments: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ElasticIterator(*arguments)


def test_lanes_are_refused() -> None:
    lanes = MultiprocessingOptions(lanes=2)
    with pytest.raises(InvalidValueError, match="Leave lanes out"):
        ElasticIterator(MapDataset.range(9), 2, ShardOptions(0, 2), multiprocessing_options=lanes)
