"""`device_map`: a function on each batch once it is on the devices."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import grain_jax as grain

pytestmark = pytest.mark.usefixtures("no_process_left")

WORKERS = pytest.mark.parametrize("workers", [0, 2])


def images() -> Any:
    return {"x": np.arange(32 * 3, dtype=np.uint8).reshape(32, 3), "id": np.arange(32)}


def scaled(batch: Any) -> Any:
    return batch | {"x": batch["x"] / np.float32(255)}


def shifted(batch: Any) -> Any:
    return batch | {"x": batch["x"] + 1}


@WORKERS
def test_batches_are_what_the_functions_make_and_states_are_the_same(workers: int) -> None:
    loader = grain.load(images(), num_epochs=1, batch_size=8, worker_count=workers)
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data"))
    with grain.prefetch_to_device(loader, sharding) as batches:
        assert batches.device_map(scaled).device_map(jax.jit(shifted)) is batches
        assert batches.element_spec["x"].dtype == np.float32
        found = [next(batches), next(batches)]
        state = batches.get_state()
        rest = list(batches)
        batches.set_state(state)
        again = list(batches)
    loader.close()
    for number, batch in enumerate([*found, *rest]):
        rows = images()["x"][8 * number : 8 * number + 8]
        np.testing.assert_allclose(batch["x"], rows / np.float32(255) + 1, rtol=1e-6)
        assert batch["x"].sharding.is_equivalent_to(sharding, 2)
    for one, other in zip(rest, again, strict=True):
        assert np.array_equal(one["x"], other["x"])


def test_remainders_are_padded_before() -> None:
    loader = grain.load(images(), num_epochs=1, batch_size=24)
    with grain.prefetch_to_device(loader, remainder="pad") as batches:
        batches.device_map(lambda batch: (batch["id"] * batch["mask"]).sum())
        assert [int(total) for total in batches] == [sum(range(24)), sum(range(24, 32))]


def test_errors_say_what_the_function_was_given_and_what_to_write() -> None:
    batches = grain.prefetch_to_device([{"x": np.ones((8, 2)), "name": "a"}])
    with batches, pytest.raises(TypeError) as caught:
        next(batches.device_map(scaled))
    assert any(
        "'x': 'float32[8, 2]'" in note and "str (on the host: drop it before the stage)" in note
        for note in caught.value.__notes__
    )
    batches = grain.prefetch_to_device(np.ones((2, 8, 2)))
    with pytest.raises(TypeError, match=r"device_map takes a function of a batch .* got 3"):
        batches.device_map(3)  # type: ignore[arg-type]
    next(batches)
    with batches, pytest.raises(ValueError, match=r"too late: .* ahead of the first next"):
        batches.device_map(scaled)
