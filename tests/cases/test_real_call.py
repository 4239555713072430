"""What users write at the call, and what they meet: lengths, truth, functions, errors."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from grain_jax import errors, transforms
from tests import devices
from tests.cases import callables
from tests.product.pieces import Odd, plain

Batch = transforms.Batch
IndexSampler = grain.samplers.IndexSampler
pytestmark = pytest.mark.usefixtures("no_process_left")


@pytest.fixture(scope="module", autouse=True)
def processes_are_kept() -> Iterator[None]:
    """What all loaders share stays, which makes each start in milliseconds."""
    with grain.load([0], worker_count=1) as idle:
        iter(idle)
        yield


def _loader(*operations: Any, records: int = 10, epochs: int | None = 1, **more: Any) -> Any:
    return grain.DataLoader(
        data_source=range(records),
        sampler=IndexSampler(records, num_epochs=epochs),
        operations=operations,
        **more,
    )


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_true_where_its_length_is_unknown(workers: int) -> None:
    with (
        _loader(Batch(2), epochs=None, worker_count=workers) as endless,
        _loader(Odd(), worker_count=workers) as filtered,
    ):
        for loader in (endless, filtered):
            assert loader
            assert iter(loader)
            assert grain.prefetch_to_device(loader, devices.first())
            assert grain.experimental.device_put(loader, devices.first())
            with pytest.raises(TypeError, match="unknown"):
                len(loader)


def test_a_loader_of_nothing_is_false_and_its_iterator_is_not() -> None:
    nothing = _loader(Batch(20, drop_remainder=True))
    assert len(nothing) == 0
    assert not nothing
    assert not grain.experimental.device_put(nothing, devices.first())
    iterator = iter(nothing)
    assert len(iterator) == 0
    assert iterator
    assert grain.prefetch_to_device(nothing, devices.first())


def test_endless_datasets_are_true() -> None:
    dataset = grain.MapDataset.range(4).repeat()
    assert dataset
    assert iter(dataset)
    stream = dataset.to_iter_dataset().filter(lambda x: x > 2)
    assert stream
    assert iter(stream)
    assert grain.prefetch_to_device(stream.batch(2), devices.first())


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("lanes", [1, 2])
def test_the_length_of_each_epoch(workers: int, drop: bool, lanes: int) -> None:
    with _loader(Batch(3, drop), epochs=3, lanes=lanes, worker_count=workers) as loader:
        per_lane = [5, 5] if lanes == 2 else [10]
        expected = sum(n // 3 if drop else -(-n // 3) for n in per_lane)
        for epoch in loader.epochs():
            assert len(epoch) == expected
            next(epoch)
            assert len(epoch) == expected  # of the whole pass, as behind the device stage
            assert len(list(epoch)) == expected - 1
        iterator = iter(loader)
        assert len(iterator) == len(loader)


def test_the_length_of_an_iterator_goes_with_the_device_stage() -> None:
    for epoch in _loader(Batch(4), epochs=2).epochs():
        with grain.prefetch_to_device(epoch, devices.first(), remainder="drop") as batches:
            assert len(batches) == 2
            assert len(list(batches)) == 2


def test_the_length_of_an_epoch_is_unknown_behind_a_filter() -> None:
    (epoch,) = _loader(Odd(), Batch(2)).epochs()
    with pytest.raises(TypeError, match=r"len\(\) of this iterator is unknown; a filter"):
        len(epoch)


def test_epochs_that_would_be_empty_are_refused() -> None:
    loader = _loader(Batch(16, drop_remainder=True), epochs=None)
    with pytest.raises(errors.InvalidValueError) as caught:
        loader.epochs()
    assert str(caught.value) == (
        "an epoch by itself yields nothing: drop_remainder drops all of its 10 records, which do "
        "not fill one batch of 16. Use a smaller batch or drop_remainder=False; or iterate over "
        "the loader instead, where batches reach from one epoch into the next."
    )
    assert plain(next(iter(loader))) == [*range(10), *range(6)]


@pytest.mark.parametrize(
    ("records", "shards", "drop", "even", "refused"),
    [
        (10, 2, True, False, True),  # 5 for each of two, and batches of 6
        (12, 2, True, False, False),
        (10, 2, False, False, False),
        (2, 3, False, True, True),  # nothing is left that divides evenly
        (2, 3, False, False, False),  # two shards have a record, the third has none
    ],
)
def test_epochs_of_shards_that_would_be_empty(
    records: int, shards: int, drop: bool, even: bool, refused: bool
) -> None:
    found: list[int] = []
    for index in range(shards):
        loader = _loader(
            Batch(6, drop),
            records=records,
            epochs=2,
            shard_options=grain.sharding.ShardOptions(index, shards, even),
        )
        if refused:
            with pytest.raises(errors.InvalidValueError, match=f"dealt out over {shards} shards"):
                loader.epochs()
        else:
            found += [int(row) for epoch in loader.epochs() for batch in epoch for row in batch]
    assert sorted(found) == ([] if refused else sorted([*range(records)] * 2))


CALLABLES = {
    "lambda": lambda element: element + 1,
    "partial": functools.partial(callables.plus, 1),
    "method": callables.Adds().add,
    "object": callables.Adds(),
    "cached": callables.cached,
    "universal function": np.positive,
    "vectorized": np.vectorize(lambda element: element + 1),
    "builtin": abs,
    "array function": np.asarray,
    "dict": lambda element: {"x": element},
    "nothing": lambda element: None,
}


def callable_of(kind: str) -> Any:
    """One of them, or what JAX makes of one, which workers do not import for the others."""
    if kind == "jitted":
        import jax

        return jax.jit(lambda element: element + 1)
    return CALLABLES[kind]


@pytest.mark.filterwarnings("ignore:Python iterable type 'generator' is treated as a leaf")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["jitted", *CALLABLES])
def test_any_callable_among_the_transformations_gets_the_hint(kind: str, workers: int) -> None:
    with (
        grain.load([1, 2], transformations=[callable_of(kind)], worker_count=workers) as loader,
        pytest.raises(TypeError) as caught,
    ):
        next(iter(loader))
    first, hint = caught.value.__notes__[-2:]
    assert first.startswith("in step 1: operation(")
    assert "at its start" in first
    assert hint == (
        "A function, or any callable, among the transformations or operations of a loader is "
        "called once, with an iterator of records. To call it with each element, write "
        "grain_jax.python.MapOperation(function), derive from grain_jax.transforms.Map, or use "
        "MapDataset.map."
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["jitted", *CALLABLES])
def test_what_the_hint_says_works_with_any_callable(kind: str, workers: int) -> None:
    function = callable_of(kind)
    operation = grain.python.MapOperation(function)
    options = grain.MultiprocessingOptions(num_workers=workers)
    stream = grain.MapDataset.source([1, 2]).map(function).to_iter_dataset().mp_prefetch(options)
    with grain.load([1, 2], num_epochs=1, transformations=[operation], worker_count=workers) as it:
        for elements in (it, stream):
            if kind == "nothing":
                with pytest.raises(ValueError, match="returned None"):
                    list(elements)
            else:
                assert list(elements) == [function(1), function(2)]


@pytest.mark.parametrize("given", [str, int, callables.Adds])
def test_a_class_among_the_transformations_is_refused(given: type) -> None:
    with pytest.raises(errors.InvalidTypeError, match="is no transformation"):
        grain.load([1, 2], transformations=[given])


def test_an_operation_that_fails_later_gets_no_hint() -> None:
    class Fails:
        def __call__(self, stream: Iterator[Any]) -> Iterator[Any]:
            return map(self._one, stream)

        def _one(self, record: Any) -> Any:
            if record.data == 2:
                raise OSError("disk")
            return record

    def fails(stream: Iterator[Any]) -> Iterator[Any]:
        for _ in stream:
            raise OSError("disk")
        yield

    for operation, before in ((Fails(), [1]), (fails, [])):
        iterator = iter(grain.load([1, 2], transformations=[operation]))
        assert [next(iterator) for _ in before] == before
        with pytest.raises(OSError, match="disk") as caught:
            next(iterator)
        assert len(caught.value.__notes__) == 1


@pytest.mark.parametrize("memory", ["", "file"])
def test_what_a_transform_raises_as_it_is_pickled_is_raised_as_itself(
    memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refuses(transforms.Map):
        def map(self, element: Any) -> Any:
            return element

        def __getstate__(self) -> Any:
            raise ValueError("no")

    if memory:
        monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", memory)
    with grain.load([1, 2], num_epochs=1, transformations=[Refuses()]) as loader:
        assert list(loader) == [1, 2]
    loader = grain.load([1, 2], transformations=[Refuses()], worker_count=2)
    batches = grain.prefetch_to_device(loader, devices.first())
    with loader, batches:
        for iterator in (iter(loader), batches):
            with pytest.raises(ValueError, match="no") as caught:
                next(iterator)
            assert type(caught.value) is ValueError
            assert str(caught.value) == "no"
            notes = "\n".join(caught.value.__notes__)
            assert "Refuses.map" in notes
            assert "in __getstate__" in notes
            assert "worker_count=0" in notes


def _keys(stream: Iterator[Any]) -> Iterator[Any]:
    """Yields the keys of records, as text."""
    for record in stream:
        yield type(record)(record.metadata, str(record.metadata.record_key))


def _same(stream: Iterator[Any]) -> Iterator[Any]:
    yield from stream


def _legacy(library: Any) -> dict[str, list[Any]]:
    class Map(library.MapTransform):  # type: ignore[misc, name-defined]
        def map(self, element: Any) -> Any:
            return element

    return {
        "none": [],
        "map": [library.MapOperation(lambda x: x)],
        "filter": [library.FilterOperation(lambda x: True)],
        "random map": [library.RandomMapOperation(lambda x, rng: x)],
        "batch": [library.BatchOperation(1)],
        "a transformation": [Map()],
        "a transformation behind a map": [library.MapOperation(lambda x: x), Map()],
    }


@pytest.mark.parametrize("kind", _legacy(grain.python))
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_behind_legacy_operations_records_have_no_key_as_in_grain(
    kind: str, begins: bool, workers: int, reference_grain: ModuleType
) -> None:
    import grain.python as other

    found = []
    for library, count in ((other, 0), (grain.python, workers)):
        shards = library.NoSharding()
        sampler = library.IndexSampler(3, shards, shuffle=True, num_epochs=1, seed=4)
        operations = [_same] * begins + [*_legacy(library)[kind], _keys]
        loader = library.DataLoader(
            data_source=range(3), sampler=sampler, operations=operations, worker_count=count
        )
        found.append(list(loader))
    assert found[0] == found[1]
    has_keys = kind in ("none", "a transformation")
    assert found[0] == (["1", "0", "2"] if has_keys else ["None"] * 3)


def test_a_sampler_smaller_than_its_source_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(3):
        grain.DataLoader(data_source=range(1_234), sampler=IndexSampler(1_230, num_epochs=1))
    grain.DataLoader(data_source=range(1_234), sampler=IndexSampler(1_234, num_epochs=1))
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("grain_jax", "WARNING")
    assert record.getMessage() == (
        "the sampler has num_records=1230, and the source (range of length 1234) has 1234 "
        "records: the last 4 of them are never read. Write num_records=len(source) to read all."
    )


def test_drop_remainder_is_in_texts() -> None:
    dataset = grain.MapDataset.range(5)
    assert repr(dataset.batch(2)).endswith(".batch(2)")
    assert repr(dataset.batch(2, drop_remainder=True)).endswith(".batch(2, drop_remainder=True)")
    stream = dataset.to_iter_dataset().batch(2, drop_remainder=True)
    assert repr(stream).endswith(".batch(2, drop_remainder=True)")
    ragged = grain.MapDataset.source([np.zeros(2), np.zeros(3)]).batch(2, drop_remainder=True)
    with pytest.raises(errors.StackError) as caught:
        ragged[0]
    assert "batch(2, drop_remainder=True)" in caught.value.__notes__[0]


MIXED = {
    "shapes": [np.zeros(2), np.zeros(3)],
    "structures": [{"x": 1}, {"y": 1}],
    "dates and numbers": [np.datetime64(1, "s"), 3],
    "records of other fields": [np.zeros(1, [("a", "i4")])[0], np.zeros(1, [("b", "i4")])[0]],
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["keys and numbers", *MIXED])
def test_what_does_not_stack_is_the_built_in_that_grain_raises(
    kind: str, workers: int, reference_grain: ModuleType
) -> None:
    import jax

    elements = [jax.random.key(0), 1] if kind == "keys and numbers" else MIXED[kind]
    with pytest.raises((ValueError, TypeError)) as caught:
        reference_grain.MapDataset.source(elements).batch(2)[0]
    built_in = TypeError if isinstance(caught.value, TypeError) else ValueError
    with (
        grain.load(elements, num_epochs=1, batch_size=2, worker_count=workers) as loader,
        pytest.raises(errors.StackError) as ours,
    ):
        next(iter(loader))
    assert isinstance(ours.value, built_in)
    assert isinstance(ours.value, ValueError)


@pytest.mark.parametrize("nested", [False, True])
def test_a_list_of_devices_says_what_to_write_and_shows_no_data(nested: bool) -> None:
    import jax

    source = {"x": np.full((8, 100), 77)}
    all_devices = jax.devices()
    sharding = {"x": all_devices} if nested else all_devices
    loader = grain.load(source, num_epochs=1, batch_size=4)
    with grain.prefetch_to_device(loader, sharding) as batches:
        with pytest.raises(errors.InvalidValueError) as caught:
            next(batches)
        text = str(caught.value)
        assert "77" not in text
        assert "NamedSharding(Mesh(devices, ('data',)), PartitionSpec('data'))" in text
        assert len(text) < 400
    # What it says works.
    rows = jax.sharding.NamedSharding(
        jax.sharding.Mesh(all_devices, ("data",)), jax.sharding.PartitionSpec("data")
    )
    batch = next(grain.prefetch_to_device(loader, rows))
    assert batch["x"].sharding == rows


def test_a_mesh_is_no_sharding() -> None:
    import jax

    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    with pytest.raises(errors.InvalidTypeError, match=r"NamedSharding\(mesh, PartitionSpec\('dat"):
        grain.prefetch_to_device([np.zeros(4)], mesh)
