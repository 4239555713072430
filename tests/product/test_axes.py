"""Rows along any axis, sequences over devices, microbatches: values equal NumPy's."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grain_jax import prefetch_to_device
from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from tests.product.jobs import job, results

pytestmark = pytest.mark.timeout(300)

GRID = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "seq"))


def on(*axes: Any) -> NamedSharding:
    return NamedSharding(GRID, P(*axes))


def all_of(batches: list[Any], sharding: Any, **more: Any) -> list[Any]:
    with prefetch_to_device(batches, sharding, **more) as iterator:
        return list(iterator)


@pytest.mark.parametrize(
    ("sharding", "axis"),
    [
        (on("data"), 0),
        (on("data", "seq"), 0),
        (on(None, "data"), 1),
        (on("seq", "data"), 1),
        (on(None, "seq", "data"), 2),
        (on(("data", "seq")), 0),
        (on(None, ("seq", "data")), 1),
        (on(), 0),
        (on(), 1),
    ],
)
def test_any_sharding_and_axis_in_one_process(sharding: NamedSharding, axis: int) -> None:
    x = np.arange(4 * 8 * 4, dtype=np.float32).reshape(4, 8, 4)
    (batch,) = all_of([{"x": x, "n": np.float32(3)}], sharding, axis=axis)
    np.testing.assert_array_equal(batch["x"], x)
    assert batch["x"].sharding == sharding
    for shard in batch["x"].addressable_shards:
        np.testing.assert_array_equal(shard.data, x[shard.index])
    assert batch["n"] == 3


@pytest.mark.parametrize("short", [(1, 8), (2, 6), (1, 6)])
def test_the_mask_has_all_axes_up_to_that_of_the_rows(short: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    shapes = [(2, 8), short]
    batches = [{"x": rng.normal(size=(*shape, 3)).astype(np.float32)} for shape in shapes]
    got = all_of(batches, on(None, "data"), axis=1, remainder="pad")
    for batch, given, shape in zip(got, batches, shapes, strict=True):
        whole, mask = np.zeros((2, 8, 3), np.float32), np.zeros((2, 8), bool)
        whole[: shape[0], : shape[1]], mask[: shape[0], : shape[1]] = given["x"], True
        np.testing.assert_array_equal(batch["x"], whole)
        np.testing.assert_array_equal(batch["mask"], mask)
        assert batch["mask"].sharding == on(None, "data")


@pytest.mark.parametrize("short", [(1, 8), (2, 6)])
def test_short_along_any_axis_up_to_that_of_the_rows(short: tuple[int, int]) -> None:
    batches = [np.ones((2, 8)), np.ones(short)]
    assert len(all_of(batches, on(None, "data"), axis=1, remainder="drop")) == 1
    text = f"has {short[0]} x {short[1]} rows .* in a stream of batches with 2 x 8 rows"
    with pytest.raises(InvalidValueError, match=text):
        all_of(batches, on(None, "data"), axis=1)


def test_the_rows_of_a_full_batch_are_part_of_the_state() -> None:
    class Batches:
        def __init__(self) -> None:
            self.step = 0

        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            if self.step == 2:
                raise StopIteration
            self.step += 1
            return {"x": np.ones((3 - self.step, 4), np.float32)}

        def get_state(self) -> Any:
            return {"step": self.step}

        def set_state(self, state: Any) -> None:
            self.step = state["step"]

    def iterate() -> Any:
        return prefetch_to_device(Batches(), on(None, "data"), axis=1, remainder="pad")

    with iterate() as iterator:
        next(iterator)
        state = iterator.get_state()
    assert state == {"batch_rows": [2, 4], "source": {"step": 1}}
    with iterate() as iterator:
        iterator.set_state(state)
        np.testing.assert_array_equal(next(iterator)["mask"], [[1] * 4, [0] * 4])


@pytest.mark.parametrize(("axis", "error"), [(-1, InvalidValueError), ("x", InvalidTypeError)])
def test_an_axis_is_a_whole_number(axis: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="axis="):
        prefetch_to_device([], axis=axis)


def test_specs_of_the_first_batch_leave_it_the_first() -> None:
    batches = [{"x": np.full((4, 2), i), "n": i, "text": np.array(["a"] * 4)} for i in range(2)]
    with prefetch_to_device([{**b, "who": "me"} for b in batches], on("data")) as iterator:
        spec = iterator.element_spec
        assert spec["x"] == jax.ShapeDtypeStruct((4, 2), np.int32, sharding=on("data"))
        assert spec["n"] == jax.ShapeDtypeStruct((), np.int32, sharding=on())
        assert (spec["text"].shape, spec["text"].sharding) == ((4,), None)
        assert spec["who"] is str
        assert [int(batch["n"]) for batch in iterator] == [0, 1]
        assert iterator.element_spec == spec


def test_specs_of_nothing() -> None:
    with prefetch_to_device([]) as iterator:
        with pytest.raises(InvalidValueError, match="no batch left to take the specs from"):
            iterator.element_spec  # noqa: B018
        assert list(iterator) == []


def test_an_error_at_the_specs_comes_again_with_the_batch() -> None:
    class Failing:
        def __iter__(self) -> Any:
            return self

        def __next__(self) -> Any:
            raise OSError("no")

    with prefetch_to_device(Failing()) as iterator:
        with pytest.raises(OSError, match="no"):
            iterator.element_spec  # noqa: B018
        with pytest.raises(OSError, match="no"):
            next(iterator)


@pytest.fixture(scope="module")
def seen() -> list[dict[str, Any]]:
    """What each of two processes saw, by mesh and scene; one job plays all of them."""
    with job("tests.product.axes_job", 2) as processes:
        return results(processes)


MESHES = {
    "data": [[0, 2], [1, 2]],
    "data, in another order": [[0, 2], [1, 2]],
    "data, backwards": [[1, 2], [0, 2]],
    "data over processes, model inside": [[0, 2], [1, 2]],
    "model over processes": [[0, 1], [0, 1]],
    "model over processes, crosswise": [[0, 1], [0, 1]],
}


@pytest.mark.parametrize("mesh", MESHES)
def test_two_processes_load_what_their_devices_hold(seen: list[Any], mesh: str) -> None:
    for scene in seen[0][mesh]:
        played = [s[mesh][scene] for s in seen]
        assert [s["shard"] for s in played] == (
            [[0, 1], [0, 1]] if scene == "replicated" else MESHES[mesh]
        )
        assert played[0]["batches"] == played[1]["batches"]
        size, steps = (16, 2) if scene == "microbatches" else (8, 3)
        assert len(played[0]["batches"]) == steps
        for k, batch in enumerate(played[0]["batches"]):
            check(scene, batch, set(range(k * size, min((k + 1) * size, 24))))


def check(scene: str, batch: dict[str, Any], records: set[int]) -> None:
    """Every record of the step is there once, whole, and beside its own label."""
    tokens, labels = np.array(batch["tokens"]), np.array(batch["label"])
    if scene == "time first":
        tokens = tokens.T
        assert (labels == labels[0]).all()
        labels = labels[0]
    if scene == "microbatches":
        mask = np.array(batch["mask"]).astype(bool)
        assert mask.shape == labels.shape == (2, 8)
        assert not tokens[~mask].any()
        tokens, labels = tokens[mask], labels[mask]
    assert tokens.shape == (len(records), 8)
    assert sorted(labels.tolist()) == sorted(records)
    np.testing.assert_array_equal(tokens, 100 * labels[:, None] + np.arange(8))
    if "table" in batch:
        assert batch["table"] == [0, 1, 2]
