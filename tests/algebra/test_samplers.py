from __future__ import annotations

import pickle
from collections import Counter
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grain_jax._algebra.samplers import IndexSampler, Sampler, SequentialSampler
from grain_jax._values.errors import InvalidTypeError, InvalidValueError, OutOfRangeError
from grain_jax._values.randomness import generator
from grain_jax._values.records import RecordMetadata
from grain_jax._values.sharding import NoSharding, ShardByJaxProcess, ShardOptions, even_split


def own_positions(sampler: IndexSampler | SequentialSampler) -> np.ndarray:
    shard = sampler.shard_options
    assert sampler.length is not None
    return shard.shard_index + shard.shard_count * np.arange(sampler.length)


def read(metadata: Any) -> tuple[int, int]:
    return metadata.index, metadata.record_key


@st.composite
def settings_of_samplers(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 60))
    count = draw(st.integers(1, min(n, 5)))
    return {
        "num_records": n,
        "shard_options": (draw(st.integers(0, count - 1)), count, draw(st.booleans())),
        "shuffle": draw(st.booleans()),
        "num_epochs": draw(st.integers(1, 4)),
        "seed": draw(st.integers(0, 2**32 - 1)),
    }


@settings(max_examples=25)
@given(chosen=settings_of_samplers())
def test_index_sampler_equals_grain(reference_grain: ModuleType, chosen: dict[str, Any]) -> None:
    shard = chosen.pop("shard_options")
    ours = IndexSampler(shard_options=ShardOptions(*shard), **chosen)
    theirs = reference_grain.samplers.IndexSampler(
        shard_options=reference_grain.sharding.ShardOptions(*shard), **chosen
    )
    assert repr(ours) == repr(theirs)
    assert len(ours) == len(theirs)
    # Grain ends every shard at the same position, whatever the size of its block.
    both = min(len(theirs), own_positions(ours)[-1] + 1)
    assert [read(ours[i]) for i in range(both)] == [read(theirs[i]) for i in range(both)]
    assert ours.keys(np.arange(both)).tolist() == [theirs[i].record_key for i in range(both)]


@pytest.mark.parametrize("n", [65_536, 65_537, 65_538, 262_145])
def test_large_shuffles_are_grains_and_lose_nothing(reference_grain: ModuleType, n: int) -> None:
    ours = IndexSampler(n, shuffle=True, seed=5, num_epochs=1)
    theirs = reference_grain.samplers.IndexSampler(n, shuffle=True, seed=5, num_epochs=1)
    keys = ours.keys(np.arange(n))
    assert np.array_equal(np.sort(keys), np.arange(n))
    some = np.random.default_rng(0).integers(0, n - 1, 300).tolist()
    if n in (65_537, 262_145):
        assert keys[n - 1] == n - 1
    else:
        some.append(n - 1)
    assert [int(keys[i]) for i in some] == [theirs[i].record_key for i in some]
    assert [ours[i].record_key for i in some] == [int(keys[i]) for i in some]


@settings(max_examples=50)
@given(
    n=st.integers(1, 60),
    count=st.integers(1, 6),
    shuffle=st.booleans(),
    epochs=st.integers(1, 3),
    drop=st.booleans(),
)
def test_every_record_once_an_epoch_over_all_shards(
    n: int, count: int, shuffle: bool, epochs: int, drop: bool
) -> None:
    count = min(n, count)
    seen: Counter[int] = Counter()
    for index in range(count):
        shard = ShardOptions(index, count, drop)
        sampler = IndexSampler(n, shard, shuffle=shuffle, num_epochs=epochs, seed=1)
        start, stop = even_split(n, shard)
        assert sampler.length == epochs * (stop - start)
        keys = sampler.keys(own_positions(sampler))
        for epoch in keys.reshape(epochs, -1):
            assert sorted(epoch.tolist()) == list(range(start, stop))
        seen.update(keys.tolist())
    assert set(seen.values()) == {epochs}
    assert len(seen) == (n // count * count if drop else n)


@given(n=st.integers(1, 60), count=st.integers(1, 6), drop=st.booleans())
def test_sequential_shards_are_strided_and_complete(n: int, count: int, drop: bool) -> None:
    count = min(n, count)
    seen = []
    for index in range(count):
        sampler = SequentialSampler(n, ShardOptions(index, count, drop))
        assert len(sampler) == (n // count * count if drop else n)
        keys = sampler.keys(own_positions(sampler)).tolist()
        assert keys == list(range(index, len(sampler), count))
        assert [sampler[i].record_key for i in keys] == keys
        seen += keys
    assert sorted(seen) == list(range(len(sampler)))


def test_sequential_sampler_equals_grain(reference_grain: ModuleType) -> None:
    theirs = reference_grain.samplers.SequentialSampler(num_records=10, seed=3)
    ours = SequentialSampler(num_records=10, seed=3)
    assert repr(ours) == repr(theirs)
    assert len(ours) == len(theirs)
    assert [read(ours[i]) for i in range(10)] == [read(theirs[i]) for i in range(10)]


def test_generators_are_keyed_by_seed_and_position() -> None:
    sampler = IndexSampler(10, shuffle=True, seed=42)
    for position in (0, 9, 10, 25):
        rng = sampler[position].rng
        assert rng is not None
        assert rng.bit_generator.state["state"]["key"].tolist() == [42, position]
        assert rng.integers(2**62) == generator(42, position).integers(2**62)
    rng = SequentialSampler(10, seed=42)[7].rng
    assert rng is not None
    assert rng.integers(2**62) == generator(42, 7).integers(2**62)


def test_without_a_seed_there_is_no_generator() -> None:
    assert IndexSampler(10)[3] == RecordMetadata(index=3, record_key=3, rng=None)
    assert SequentialSampler(10)[3].rng is None


def test_endless_samplers_have_no_length() -> None:
    sampler = IndexSampler(10, shuffle=True, seed=0)
    assert sampler.length is None
    with pytest.raises(InvalidTypeError, match="without num_epochs has no end"):
        len(sampler)
    assert sampler[10**15].index == 10**15
    assert sampler.keys([10**15]).tolist() == [sampler[10**15].record_key]


def test_numpy_numbers_work_and_become_plain() -> None:
    sampler = IndexSampler(np.int64(10), num_epochs=np.int32(2), seed=np.uint32(3), shuffle=True)
    assert repr(sampler).endswith("shuffle=True, num_epochs=2, seed=3)")
    metadata = sampler[np.int64(4)]
    assert type(metadata.index) is int
    assert type(metadata.record_key) is int


def test_anything_with_one_method_is_a_sampler() -> None:
    class Mine:
        def __getitem__(self, index: int) -> RecordMetadata:
            return RecordMetadata(index, record_key=0)

    assert isinstance(Mine(), Sampler)
    assert isinstance(IndexSampler(3), Sampler)
    assert isinstance(SequentialSampler(3), Sampler)
    assert not isinstance(object(), Sampler)


def test_survives_pickling() -> None:
    sampler = IndexSampler(10, ShardByJaxProcess(), shuffle=True, num_epochs=2, seed=1)
    copy = pickle.loads(pickle.dumps(sampler))
    assert repr(copy) == repr(sampler)
    assert np.array_equal(copy.keys(np.arange(20)), sampler.keys(np.arange(20)))


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        ({"num_records": 0}, InvalidValueError, "num_records must be at least 1, got 0.*empty"),
        ({"num_records": -1}, InvalidValueError, "num_records must be at least 1, got -1"),
        ({"num_records": 2.5}, InvalidTypeError, "num_records must be a whole number, got 2.5"),
        ({"num_records": 9, "shuffle": True}, InvalidValueError, "needs a seed.*seed=0"),
        ({"num_records": 9, "seed": -1}, InvalidValueError, "seed must be at least 0, got -1"),
        ({"num_records": 9, "seed": 2**32}, InvalidValueError, "32 bits.*got 4294967296.*seed=0"),
        ({"num_records": 9, "seed": 1.5}, InvalidTypeError, "seed must be a whole number"),
        ({"num_records": 9, "num_epochs": 0}, InvalidValueError, "num_epochs.*got 0.*Write None"),
        ({"num_records": 9, "num_epochs": -2}, InvalidValueError, "num_epochs.*got -2"),
        ({"num_records": 9, "num_epochs": 1.5}, InvalidTypeError, "num_epochs.*got 1.5"),
        ({"num_records": 9, "shard_options": (0, 2)}, InvalidTypeError, r"got \(0, 2\).*NoShard"),
        (
            {"num_records": 2, "shard_options": ShardOptions(2, 3)},
            InvalidValueError,
            "leaves nothing of num_records=2 for some shards. Use at most 2 shards",
        ),
        (
            {"num_records": 2, "shard_options": ShardOptions(0, 3)},
            InvalidValueError,
            "leaves nothing of num_records=2 for some shards. Use at most 2 shards",
        ),
        (
            {"num_records": 2, "shard_options": ShardOptions(0, 3, drop_remainder=True)},
            InvalidValueError,
            "leaves nothing of num_records=2",
        ),
    ],
)
def test_refuses_impossible_settings(
    arguments: dict[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        IndexSampler(**arguments)
    if arguments.keys() <= {"num_records", "shard_options", "seed"}:
        with pytest.raises(kind, match=message):
            SequentialSampler(**arguments)


@pytest.mark.parametrize(
    "sampler",
    [
        SequentialSampler(20),
        IndexSampler(10, num_epochs=2),
        IndexSampler(11, ShardOptions(1, 2), num_epochs=2),
        IndexSampler(11, ShardOptions(1, 2, drop_remainder=True), num_epochs=2),
        IndexSampler(5, NoSharding(), shuffle=True, num_epochs=4, seed=0),
    ],
    ids=repr,
)
def test_refuses_positions_outside(sampler: IndexSampler | SequentialSampler) -> None:
    for index in (-1, 20):
        with pytest.raises(OutOfRangeError, match=f"positions 0 to 19; got {index}"):
            sampler[index]
    with pytest.raises(OutOfRangeError, match="positions 0 to 19; got 3 to 20"):
        sampler.keys([20, 3])
    with pytest.raises(InvalidTypeError, match=r"whole number; got 1\.5 of type float"):
        sampler[1.5]  # type: ignore[index]
