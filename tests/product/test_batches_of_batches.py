"""Two `Batch` steps behind the device stage, with records that do not fill the last element."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import grain_jax as grain
from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from tests.product.pieces import All, Double

pytestmark = pytest.mark.usefixtures("no_process_left")

DATA = NamedSharding(Mesh(np.array(jax.devices()[:2]), ("data",)), P(None, "data"))
FIRST = NamedSharding(DATA.mesh, P("data"))


def record(i: int) -> dict[str, Any]:
    return {"x": np.full(3, i, np.float32), "id": i, "name": f"r{i}"}


def stream(count: int, workers: int, *steps: Any) -> Any:
    return grain.DataLoader(
        data_source=[record(i) for i in range(count)],
        sampler=grain.samplers.SequentialSampler(count),
        operations=steps,
        worker_count=workers,
    )


def expected(count: int, outer: int = 2, inner: int = 4) -> list[dict[str, np.ndarray[Any, Any]]]:
    """Zeros, with the records in order."""
    size = outer * inner
    elements = -(-count // size)
    x, ids = np.zeros((elements * size, 3), np.float32), np.zeros(elements * size, np.int32)
    names, mask = np.full(elements * size, None, object), np.zeros(elements * size, bool)
    for i in range(count):
        x[i], ids[i], names[i], mask[i] = i, i, f"r{i}", True
    lead = (elements, outer, inner)
    return [
        {"x": a, "id": b, "name": c, "mask": d}
        for a, b, c, d in zip(
            x.reshape(*lead, 3),
            ids.reshape(lead),
            names.reshape(lead),
            mask.reshape(lead),
            strict=True,
        )
    ]


def assert_equal(got: list[Any], right: list[Any]) -> None:
    assert len(got) == len(right)
    for one, other in zip(got, right, strict=True):
        assert one.keys() == other.keys()
        for name, array in other.items():
            assert one[name].shape == array.shape
            np.testing.assert_array_equal(np.asarray(one[name]), array)
            assert isinstance(one[name], jax.Array) or name == "name"


BATCHES = [grain.transforms.Batch(4), grain.transforms.Batch(2)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize(("sharding", "axis"), [(DATA, 1), (FIRST, 0)])
def test_rows_and_micro_batches_are_padded(
    workers: int, known: bool, sharding: Any, axis: int
) -> None:
    before = [] if known else [All()]
    for count in (22,) if workers else (22, 24, 20, 18, 17, 5):
        loader = stream(count, workers, *before, *BATCHES)
        with grain.prefetch_to_device(loader, sharding, remainder="pad", axis=axis) as batches:
            if known:
                assert len(batches) == -(-count // 8)
            got = list(batches)
        assert_equal(got, expected(count))
        assert {batch["x"].sharding for batch in got} == {sharding}
        assert {batch["mask"].sharding for batch in got} == {sharding}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("before", [[], [All()]])
@pytest.mark.parametrize(
    "steps",
    [
        BATCHES,
        [BATCHES[0], Double(), BATCHES[1]],
        [*BATCHES, Double()],
        [grain.transforms.Batch(4, drop_remainder=True), grain.transforms.Batch(2)],
    ],
)
def test_an_incomplete_element_is_dropped(workers: int, before: Any, steps: Any) -> None:
    factor = 1 + any(isinstance(step, Double) for step in steps)
    for count in (22,) if workers else (22, 20, 18):
        loader = stream(count, workers, *before, *steps)
        with grain.prefetch_to_device(loader, DATA, remainder="drop", axis=1) as batches:
            got = list(batches)
        right = expected(16)
        for batch in right:
            del batch["mask"]
            batch["x"] *= factor
        assert_equal(got, right)


def test_where_the_end_is_known_an_error_comes_before_the_first_batch() -> None:
    with pytest.raises(InvalidValueError, match=r"last batch has 6 rows .* the others have 2 x 4"):
        grain.prefetch_to_device(stream(22, 0, *BATCHES), DATA, axis=1)
    between = stream(22, 0, BATCHES[0], Double(), BATCHES[1])
    for rule in ("pad", "error"):
        with pytest.raises(InvalidValueError, match=r"and Batch\(2\) has 6 records of 8"):
            grain.prefetch_to_device(between, DATA, axis=1, remainder=rule)
    with grain.prefetch_to_device(stream(24, 0, *BATCHES), DATA, axis=1) as batches:
        assert len(list(batches)) == 3
    even = stream(24, 0, BATCHES[0], Double(), BATCHES[1])
    with grain.prefetch_to_device(even, DATA, axis=1, remainder="pad") as batches:
        assert [batch["mask"].shape for batch in batches] == [(2, 4)] * 3


def test_without_the_stage_and_where_nobody_knows_they_fail_to_stack() -> None:
    with pytest.raises(ValueError, match=r"shape \(4, 3\) in element 0 .* \(2, 3\) in element 1"):
        list(stream(22, 0, *BATCHES))
    stage = grain.prefetch_to_device(stream(22, 0, All(), *BATCHES), DATA, axis=1)
    with stage, pytest.raises(ValueError, match=r"shape \(4, 3\) in element 0"):
        list(stage)


def test_more_levels() -> None:
    loader = stream(31, 0, *BATCHES, grain.transforms.Batch(3))
    with grain.prefetch_to_device(loader, jax.devices()[0], remainder="pad") as batches:
        got = list(batches)
    assert len(got) == 2
    mask = (np.arange(48) < 31).reshape(2, 3, 2, 4)
    ids = np.where(mask, np.arange(48).reshape(2, 3, 2, 4), 0)
    for i, batch in enumerate(got):
        np.testing.assert_array_equal(batch["mask"], mask[i])
        np.testing.assert_array_equal(batch["id"], ids[i])


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_that_has_begun_and_a_state(workers: int) -> None:
    iterator = iter(stream(22, workers, *BATCHES))
    next(iterator)
    with grain.prefetch_to_device(iterator, DATA, remainder="pad", axis=1) as batches:
        next(batches)
        state = batches.get_state()
        last = next(batches)
        end = batches.get_state()
    iterator.close()
    assert_equal([last], expected(22)[2:])
    with grain.prefetch_to_device(
        stream(22, workers, *BATCHES), DATA, remainder="pad", axis=1
    ) as batches:
        batches.set_state(state)
        assert_equal(list(batches), expected(22)[2:])
        batches.set_state(end)
        assert list(batches) == []


def test_what_has_no_zeros_is_refused() -> None:
    def keyed(i: Any) -> Any:
        return {"key": jax.random.key(i), "x": i}

    dataset = grain.MapDataset.range(6).map(keyed).to_iter_dataset().batch(2).batch(4)
    stage = grain.prefetch_to_device(dataset, remainder="pad")
    with stage, pytest.raises(InvalidTypeError, match="key<fry>, for which there are no zeros"):
        next(stage)


@pytest.mark.parametrize(("index", "counts"), [(0, [8, 3]), (1, [8, 3])])
def test_each_shard_fills_its_own(index: int, counts: list[int]) -> None:
    loader = grain.DataLoader(
        data_source=[record(i) for i in range(22)],
        sampler=grain.samplers.SequentialSampler(22),
        operations=BATCHES,
        shard_options=grain.sharding.ShardOptions(index, 2),
        worker_count=0,
    )
    with grain.prefetch_to_device(loader, jax.devices()[0], remainder="pad") as batches:
        got = list(batches)
    assert [int(batch["mask"].sum()) for batch in got] == counts
    taken = np.concatenate([np.asarray(b["id"])[np.asarray(b["mask"])] for b in got])
    assert taken.tolist() == list(range(index, 22, 2))
