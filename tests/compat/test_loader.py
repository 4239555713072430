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


@settings(max_examples=100)
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


class Metadata:
    """An operation that replaces data by index and record key."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library

    def __call__(self, records: Any) -> Any:
        for record in records:
            data = (record.metadata.index, record.metadata.record_key)
            yield self.library.Record(record.metadata, data)


@pytest.mark.parametrize("where", ["loader", "sampler", "nowhere"])
@pytest.mark.parametrize("after", ["nothing", "map", "filter", "batch"])
def test_operations_see_grains_metadata(
    reference_grain: ModuleType, where: str, after: str
) -> None:
    def seen(library: ModuleType) -> list[tuple[int, int | None]]:
        given: dict[str, Any] = {"shuffle": True, "seed": 1, "num_epochs": 2}
        if where == "loader":
            given["shard_options"] = library.sharding.ShardOptions(1, 2)
        elif where == "sampler":
            given["sampler_shard"] = (1, 2)
        before = {
            "nothing": [],
            "map": [transformation(library, "map", 2)],
            "filter": [transformation(library, "filter", 3)],
            "batch": [library.transforms.Batch(4)],
        }[after]
        return list(loader(library, 12, [*before, Metadata(library)], **given))

    assert seen(grain_jax) == seen(reference_grain)


class OwnSampler:
    """Every third record, for eight positions."""

    def __init__(self, library: ModuleType) -> None:
        self.library = library

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < 8:
            raise IndexError(index)
        return self.library.RecordMetadata(index=index, record_key=index * 3 % 10)


@pytest.mark.parametrize("shard", [(0, 1), (0, 2), (1, 2)])
def test_samplers_of_the_users_own(reference_grain: ModuleType, shard: tuple[int, int]) -> None:
    ours, theirs = (
        library.DataLoader(
            data_source=range(100, 110),
            sampler=OwnSampler(library),
            operations=[library.transforms.Batch(2)],
            # Grain insists on them.
            shard_options=library.sharding.ShardOptions(*shard),
        )
        for library in (grain_jax, reference_grain)
    )
    assert plain_list(ours) == plain_list(theirs)


def attempt(call: Any) -> type[BaseException] | None:
    try:
        call()
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize(
    "wrong",
    [
        lambda library: library.load([1, 2], shuffle=True),
        lambda library: library.load([1, 2], shuffle=True, seed=-1),
        lambda library: library.load([1, 2], shuffle=True, seed=2**32),
        lambda library: library.load([1, 2], num_epochs=0),
        lambda library: list(library.load([1, 2], num_epochs=1, batch_size=0)),
        lambda library: library.load([1, 2], worker_count=-1),
        lambda library: len(library.load([1, 2])),
        lambda library: loader(library, 4, [], worker_buffer_size=-1),
        lambda library: list(loader(library, 4, [3])),
        lambda library: list(loader(library, 4, None)),
        lambda library: list(loader(library, 4, [transformation(library, "map", None)])),
        lambda library: list(library.load([np.zeros(3), np.zeros(2)], num_epochs=1, batch_size=2)),
        lambda library: list(library.load([{"a": 1}, {"b": 1}], num_epochs=1, batch_size=2)),
        lambda library: library.sharding.ShardOptions(2, 2),
        lambda library: library.sharding.ShardOptions(0, 0),
        lambda library: iter(library.load([1, 2])).set_state(b""),
        lambda library: iter(library.load([1, 2])).set_state(b"no state"),
        lambda library: iter(library.load([1, 2])).set_state(
            iter(library.load([1, 2, 3])).get_state()
        ),
        lambda library: library.samplers.SequentialSampler(3)[3],
        lambda library: library.samplers.IndexSampler(3)[-1],
        lambda library: library.transforms.Map(),
        lambda library: importlib.import_module(f"{library.__name__}.python").BatchOperation(0),
    ],
)
def test_errors_can_be_caught_as_grains(reference_grain: ModuleType, wrong: Any) -> None:
    theirs, ours = (attempt(lambda lib=lib: wrong(lib)) for lib in (reference_grain, grain_jax))
    assert theirs is not None
    assert ours is not None
    # Grain's own kinds of a built-in, say JSONDecodeError, count as the built-in.
    built_in = next(kind for kind in theirs.__mro__ if kind.__module__ == "builtins")
    assert issubclass(ours, built_in)


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
