from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import grain_jax
from tests.compat.pairs import flat_map, plain_list

TRANSFORMATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("map"), st.integers(1, 5)),
        st.tuples(st.just("filter"), st.integers(2, 4)),
        st.tuples(st.just("flat_map"), st.integers(1, 3)),
    ),
    max_size=3,
)


def transformation(library: ModuleType, kind: str, number: int) -> Any:
    transforms = library.transforms

    class Scale(transforms.Map):  # type: ignore[misc, name-defined]
        def map(self, element: Any) -> Any:
            return element * number + 1

    class Keep(transforms.Filter):  # type: ignore[misc, name-defined]
        def filter(self, element: Any) -> bool:
            return int(np.sum(element)) % number != 0

    match kind:
        case "map":
            return Scale()
        case "filter":
            return Keep()
        case _:
            return flat_map(library, number, number)


def loader(library: ModuleType, n: int, operations: list[Any], **settings: Any) -> Any:
    sampler = library.samplers.IndexSampler(
        n,
        shuffle=settings.pop("shuffle", False),
        num_epochs=settings.pop("num_epochs", 1),
        seed=settings.pop("seed", None),
        shard_options=library.sharding.ShardOptions(*settings.pop("sampler_shard", (0, 1))),
    )
    return library.DataLoader(
        data_source=range(100, 100 + n),
        sampler=sampler,
        operations=operations,
        # Without threads Grain starts quicker.
        read_options=library.ReadOptions(num_threads=0),
        **settings,
    )


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 30),
    epochs=st.integers(1, 3),
    shuffle=st.booleans(),
    before=TRANSFORMATIONS,
    batch=st.one_of(st.none(), st.tuples(st.integers(1, 5), st.booleans())),
    after=TRANSFORMATIONS,
)
def test_any_loader_equals_grain(
    reference_grain: ModuleType,
    n: int,
    epochs: int,
    shuffle: bool,
    before: list[tuple[str, int]],
    batch: tuple[int, bool] | None,
    after: list[tuple[str, int]],
) -> None:
    assume([kind for kind, _ in before + after].count("flat_map") <= 2)

    def stream(library: ModuleType) -> list[Any]:
        operations = [transformation(library, *each) for each in before]
        if batch is not None:
            operations.append(library.transforms.Batch(*batch))
        operations += [transformation(library, *each) for each in after]
        return plain_list(
            loader(library, n, operations, num_epochs=epochs, shuffle=shuffle, seed=n)
        )

    assert stream(grain_jax) == stream(reference_grain)


@pytest.mark.parametrize("where", ["loader", "sampler"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_even_shards_equal_grain(reference_grain: ModuleType, where: str, shuffle: bool) -> None:
    def stream(library: ModuleType, index: int) -> list[Any]:
        if where == "loader":
            given = {"shard_options": library.sharding.ShardOptions(index, 3)}
        else:
            given = {"sampler_shard": (index, 3)}
        batch = library.transforms.Batch(2)
        return plain_list(
            loader(library, 12, [batch], num_epochs=2, shuffle=shuffle, seed=3, **given)
        )

    for index in range(3):
        assert stream(grain_jax, index) == stream(reference_grain, index)


def test_load_equals_grain(reference_grain: ModuleType) -> None:
    def stream(library: ModuleType) -> list[Any]:
        loaded = library.load(
            np.arange(20) * 1.5,
            num_epochs=2,
            shuffle=True,
            seed=9,
            transformations=[transformation(library, "map", 3)],
            batch_size=6,
            drop_remainder=True,
        )
        return plain_list(loaded)

    assert stream(grain_jax) == stream(reference_grain)


def test_load_reads_without_end_unless_told(reference_grain: ModuleType) -> None:
    for library in (grain_jax, reference_grain):
        iterator = iter(library.load(range(3)))
        assert [next(iterator) for _ in range(8)] == [0, 1, 2, 0, 1, 2, 0, 1]


def test_sequential_sampler(reference_grain: ModuleType) -> None:
    ours, theirs = (
        library.DataLoader(
            data_source=range(7), sampler=library.samplers.SequentialSampler(7), operations=[]
        )
        for library in (grain_jax, reference_grain)
    )
    assert list(ours) == list(theirs)


class Watch:
    """An operation that notes the metadata of what passes."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def __call__(self, records: Any) -> Any:
        for record in records:
            self.seen.append((record.metadata.index, record.metadata.record_key))
            yield record


class Pairs:
    """An operation that makes one record of two, and drops a single one at the end."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library

    def __call__(self, records: Any) -> Any:
        held = None
        for record in records:
            if held is None:
                held = record
                continue
            metadata = self.library.RecordMetadata(index=record.metadata.index)
            yield self.library.Record(metadata, held.data + record.data)
            held = None


def legacy(library: ModuleType, which: str) -> list[Any]:
    python = importlib.import_module(f"{library.__name__}.python")
    pairs: Any = Pairs(library)
    return {
        "map": [python.MapOperation(map_function=lambda x: x * 2)],
        "filter": [python.FilterOperation(condition_function=lambda x: x % 2 == 0)],
        "batch": [python.BatchOperation(batch_size=3)],
        "batch_drop": [python.BatchOperation(3, drop_remainder=True)],
        "batch_fn": [python.BatchOperation(2, batch_fn=list)],
        "pairs": [pairs],
        "pairs_batch": [pairs, library.transforms.Batch(2)],
        "filter_pairs": [transformation(library, "filter", 3), pairs],
        "pairs_filter_batch": [
            pairs,
            transformation(library, "filter", 3),
            python.BatchOperation(2),
        ],
    }[which]


@pytest.mark.parametrize(
    "which",
    [
        "map",
        "filter",
        "batch",
        "batch_drop",
        "batch_fn",
        "pairs",
        "pairs_batch",
        "filter_pairs",
        "pairs_filter_batch",
    ],
)
def test_legacy_operations_equal_grain(reference_grain: ModuleType, which: str) -> None:
    ours, theirs = (
        plain_list(loader(library, 11, legacy(library, which)))
        for library in (grain_jax, reference_grain)
    )
    assert ours == theirs
