"""States of Grain's `DataLoader`, written out here: where they go on, and what is refused.

That Grain writes such states, and yields the same records, is held by tests/compat.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grain_jax as grain
from grain_jax.errors import StateError
from tests.product.pieces import Odd, plain_list

Batch = grain.transforms.Batch
ShardOptions = grain.sharding.ShardOptions


def load(*operations: Any, records: int = 11, epochs: int = 2, **given: Any) -> grain.DataLoader:
    own = given.pop("own", grain.sharding.NoSharding())
    sampler = grain.samplers.IndexSampler(records, own, num_epochs=epochs)
    return grain.DataLoader(
        data_source=range(records), sampler=sampler, operations=operations, **given
    )


def state(seen: dict[str, Any], turn: int = -1, workers: int = 0, **changes: Any) -> bytes:
    fields = {
        "version": 2,
        "last_seen_indices": seen,
        "last_worker_index": turn,
        "worker_count": workers,
        "sampler": "IndexSampler(num_records=11, shard_options=ShardOptions(shard_index=0, "
        "shard_count=1, drop_remainder=False), shuffle=False, num_epochs=1, seed=None)",
        "data_source": "RangeDataSource(start=0, stop=11, step=1)",
    }
    fields.update(changes)
    return json.dumps({k: v for k, v in fields.items() if v is not None}, indent=4).encode()


def restored(loader: grain.DataLoader, given: bytes) -> list[Any]:
    iterator = iter(loader)
    iterator.set_state(given)
    # Its own state says the same from there on.
    again = iter(loader)
    again.set_state(iterator.get_state())
    found = plain_list(iterator)
    assert plain_list(again) == found
    return found


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("last", [-1, 0, 5, 10, 21])
def test_records_of_one_worker(workers: int, last: int) -> None:
    found = restored(load(), state({"0": last}, workers=workers))
    assert found == [*range(11), *range(11)][last + 1 :]


def test_a_state_of_one_worker_is_elastic_here() -> None:
    iterator = iter(load(Batch(2)))
    iterator.set_state(state({"0": 3}))
    assert json.loads(iterator.get_state())["position"] == 4


def test_batches_of_three_workers() -> None:
    # Lanes 0 3 6 9.., 1 4 7 10.., 2 5 8..: the first two lanes have given one batch of two each.
    found = restored(load(Batch(2), epochs=1), state({"0": 3, "1": 4, "2": -1}, turn=1, workers=3))
    assert found == [[2, 5], [6, 9], [7, 10], [8]]


def test_a_filter_counts_what_was_read() -> None:
    found = restored(load(Odd(), Batch(2), epochs=1), state({"0": -2, "1": 3}, turn=-1, workers=2))
    # Lane 0 has the even positions, of which none survives.
    assert found == [[5, 7], [9]]


def test_shards_of_the_loader_and_of_the_sampler() -> None:
    sharded = state({"0": 5}, sampler=None)
    loader = load(records=12, epochs=1, shard_options=ShardOptions(1, 2))
    assert restored(loader, sharded) == [7, 9, 11]
    assert restored(load(records=12, epochs=1, own=ShardOptions(1, 2)), sharded) == [9, 10, 11]


REFUSED: dict[str, tuple[bytes, str]] = {
    "another version": (state({"0": 1}, version=3), r"version 3, not 2.*Grain 0\.2"),
    "fields missing": (state({"0": 1}, version=None), r"lacks \['version'\]"),
    "too few workers": (state({"0": 1}, workers=2), r"last_seen_indices.*each of 2 workers"),
    "too many workers": (state({"0": 1, "1": 2}), r"last_seen_indices.*each of 1 workers"),
    "an absurd count": (state({"0": 1}, workers=10**9), r"each of 1000000000 workers"),
    "a negative count": (state({"0": 1}, workers=-1), r"'worker_count'.*-1"),
    "a turn of nobody": (state({"0": 1}, turn=4), r"'last_worker_index'.*4"),
    "no index": (state({"0": "a"}), r"holds 'a'"),
    "no indices": (state([1]), r"last_seen_indices.*\[1\]"),  # type: ignore[arg-type]
    "before the start": (state({"0": -3}), r"saw index -3, which is not one that it takes"),
    "beyond the end": (state({"0": 22}), r"saw index 22.*as many epochs as before"),
    "beyond all measure": (state({"0": 10**30}), r"holds 1000000"),
    "a flat map": (
        b'{"parent": {"next_index": 2}, "next_index_in_buffer": 1}',
        r"FlatMap.*Start the epoch again",
    ),
    "another sampler": (
        state({"0": 1}, sampler="IndexSampler(num_records=5, shuffle=True, seed=3)"),
        r"num_records=5.*num_records=11.*sampler of the state",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_and_nothing_lost(name: str) -> None:
    given, message = REFUSED[name]
    iterator = iter(load())
    assert next(iterator) == 0
    with pytest.raises(StateError, match=message):
        iterator.set_state(given)
    assert next(iterator) == 1


def test_refused_on_the_wrong_shard() -> None:
    iterator = iter(load(records=12, shard_options=ShardOptions(0, 2)))
    with pytest.raises(StateError, match=r"saw index 5.*shard 0 of 2"):
        iterator.set_state(state({"0": 5}, sampler=None))


def test_refused_inside_an_epoch() -> None:
    epochs = load().epochs(start=1)
    with pytest.raises(StateError, match=r"loader\.epochs.*iter\(loader\)"):
        next(epochs).set_state(state({"0": 5}))
    next(load().epochs()).set_state(state({"0": 5}))


def test_refused_where_a_flat_map_is_or_an_operation() -> None:
    class Twice(grain.transforms.FlatMap):
        max_fan_out = 2

        def flat_map(self, element: Any) -> list[Any]:
            return [element, element]

    class Same:
        def __call__(self, records: Any) -> Any:
            return records

    with pytest.raises(StateError, match="FlatMap"):
        iter(load(Twice())).set_state(state({"0": 1}))
    with pytest.raises(StateError, match="no operation of your own"):
        iter(load(Same())).set_state(state({"0": 1}))


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["0", "1", "2", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(data=st.data())
def test_damaged_states_restore_or_are_refused(data: st.DataObject) -> None:
    value = json.loads(state({"0": 3, "1": 4}, turn=0, workers=2))
    field = data.draw(st.sampled_from(sorted(value)))
    value[field] = data.draw(_VALUES)
    loader = load(Batch(2))
    iterator = iter(loader)
    first = next(iterator).tolist()
    try:
        iterator.set_state(json.dumps(value).encode())
    except StateError:
        assert [first, *plain_list(iterator)] == plain_list(loader)
    else:
        plain_list(iterator)
