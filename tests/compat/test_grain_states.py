"""A state that Grain's `DataLoader` wrote is continued with Grain's records and batches."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest

import grain_jax
from grain_jax.errors import StateError
from tests.compat.pairs import plain, plain_list

# Spread unevenly over the lanes of two and of three workers.
KEPT = frozenset([0, 1, 2, 4, 6, 7, 8, 9, 10, 12, 13, 14, 17, 22])


@dataclasses.dataclass(frozen=True)
class Case:
    n: int
    batch: int | None = None
    drop: bool = False
    filter: bool = False
    epochs: int = 1
    seed: int | None = None
    loader_shard: tuple[int, int] | None = None
    sampler_shard: tuple[int, int] = (0, 1)


# Lengths divide over the shards: Grain loses records where they do not.
CASES = {
    "records": Case(7),
    "batches": Case(11, batch=2),
    "dropped": Case(11, batch=2, drop=True),
    "shuffled epochs": Case(9, batch=4, epochs=3, seed=5),
    "filter": Case(23, filter=True),
    "filtered batches": Case(23, filter=True, batch=2),
    "loader shard": Case(16, batch=3, loader_shard=(1, 2)),
    "sampler shard": Case(16, batch=3, sampler_shard=(1, 2), epochs=2, seed=8),
    "nothing": Case(2, batch=4, drop=True),
}


def loader(library: ModuleType, case: Case, operations: Any = (), **settings: Any) -> Any:
    class Keep(library.transforms.Filter):  # type: ignore[misc, name-defined]
        kept = KEPT

        def filter(self, element: Any) -> bool:
            return element in self.kept

    operations = [*operations]
    if case.filter:
        operations.append(Keep())
    if case.batch:
        operations.append(library.transforms.Batch(case.batch, case.drop))
    shards = library.sharding.ShardOptions
    if case.loader_shard:
        settings["shard_options"] = shards(*case.loader_shard)
    return library.DataLoader(
        data_source=range(case.n),
        sampler=library.samplers.IndexSampler(
            case.n,
            shuffle=case.seed is not None,
            seed=case.seed,
            num_epochs=case.epochs,
            shard_options=shards(*case.sampler_shard),
        ),
        operations=operations,
        **settings,
    )


def run(library: ModuleType, case: Case, **settings: Any) -> tuple[list[bytes], list[Any]]:
    """The states before each element and at the end, and the elements."""
    iterator = iter(loader(library, case, **settings))
    states, elements = [iterator.get_state()], []
    for element in iterator:
        elements.append(plain(element))
        states.append(iterator.get_state())
    states.append(iterator.get_state())
    return states, elements


def check(reference_grain: ModuleType, case: Case, workers: int) -> None:
    states, elements = run(reference_grain, case, worker_count=workers)
    assert plain_list(loader(grain_jax, case, lanes=max(workers, 1))) == elements
    for number, state in enumerate(states):
        iterator = iter(loader(grain_jax, case))
        iterator.set_state(state)
        assert plain_list(iterator) == elements[number:]
        # And on from our own state.
        iterator = iter(loader(grain_jax, case))
        iterator.set_state(state)
        plain(next(iterator, None))
        again = iter(loader(grain_jax, case))
        again.set_state(iterator.get_state())
        assert plain_list(again) == elements[number + 1 :]


@pytest.mark.parametrize("name", CASES)
def test_without_workers(reference_grain: ModuleType, name: str) -> None:
    check(reference_grain, CASES[name], workers=0)


@pytest.mark.parametrize(
    ("name", "workers"),
    [
        ("dropped", 1),
        ("filter", 2),
        ("filtered batches", 2),
        ("loader shard", 2),
        ("batches", 3),
    ],
)
def test_with_workers_as_lanes(reference_grain: ModuleType, name: str, workers: int) -> None:
    check(reference_grain, CASES[name], workers)


def state_of(reference_grain: ModuleType, case: Case, **settings: Any) -> bytes:
    iterator = iter(loader(reference_grain, case, **settings))
    next(iterator)
    state: bytes = iterator.get_state()
    return state


@pytest.mark.parametrize(
    ("saved", "restored", "message"),
    [
        (Case(8, sampler_shard=(1, 2)), Case(8), r"shard 1 of 2.*shard 0 of 1"),
        (Case(8, sampler_shard=(1, 2)), Case(8, sampler_shard=(0, 2)), r"shard 1 of 2.*0 of 2"),
        (Case(8, sampler_shard=(1, 2)), Case(8, loader_shard=(1, 2)), r"shard 1 of 2.*sampler"),
        (Case(8, seed=1), Case(8, seed=2), r"seed=1.*seed=2"),
        (Case(8, seed=1), Case(8), r"shuffle=True.*shuffle=False"),
        (Case(8), Case(9), r"num_records=8.*num_records=9"),
    ],
    ids=["no shards", "other shard", "sharded by the loader", "seed", "shuffle", "length"],
)
def test_refuses_states_of_other_samplers(
    reference_grain: ModuleType, saved: Case, restored: Case, message: str
) -> None:
    state = state_of(reference_grain, saved)
    iterator = iter(loader(grain_jax, restored))
    with pytest.raises(StateError, match=message):
        iterator.set_state(state)
    # Nothing is lost: the iterator stands where it stood.
    assert plain_list(iterator) == plain_list(loader(grain_jax, restored))


def test_a_state_of_one_loader_shard_is_not_anothers(reference_grain: ModuleType) -> None:
    state = state_of(reference_grain, Case(16, loader_shard=(1, 2)))
    with pytest.raises(StateError, match="shard 0 of 2"):
        iter(loader(grain_jax, Case(16, loader_shard=(0, 2)))).set_state(state)


def test_more_epochs_may_follow(reference_grain: ModuleType) -> None:
    state = state_of(reference_grain, Case(4, seed=3))
    iterator = iter(loader(grain_jax, Case(4, seed=3, epochs=2)))
    iterator.set_state(state)
    assert list(iterator) == list(loader(grain_jax, Case(4, seed=3, epochs=2)))[1:]


def test_lanes_asked_for_must_be_grains_workers(reference_grain: ModuleType) -> None:
    state = state_of(reference_grain, Case(8))
    with pytest.raises(StateError, match=r"worker_count=0.*lanes=2"):
        iter(loader(grain_jax, Case(8), lanes=2)).set_state(state)
