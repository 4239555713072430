"""What becomes of a script that was written for Grain: its import changes, and lines go.

`pipeline` is the script's. It is given the library, and runs with both: the batches are the same.
Then a checkpoint that Grain has written is restored here, and goes on with the same batches.
"""

from __future__ import annotations

import types
from typing import Any

import grain
import numpy as np

import grain_jax

SOURCE = [{"x": np.float32(i), "y": np.float32(i * i)} for i in range(1000)]


def pipeline(grain: types.ModuleType, **more: Any) -> Any:
    class Scale(grain.transforms.Map):
        def map(self, record: dict[str, Any]) -> dict[str, Any]:
            return {"x": record["x"] / 1000, "y": record["y"] / 1e6}

    return grain.DataLoader(
        data_source=SOURCE,
        sampler=grain.samplers.IndexSampler(len(SOURCE), shuffle=True, seed=7, num_epochs=2),
        operations=[Scale(), grain.transforms.Batch(64, drop_remainder=True)],
        **more,
    )


def equal(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> bool:
    return len(ours) == len(theirs) > 0 and all(
        np.array_equal(one[name], other[name])
        for one, other in zip(ours, theirs, strict=True)
        for name in ("x", "y")
    )


def main() -> None:
    theirs = list(pipeline(grain))
    ours = list(pipeline(grain_jax))
    print(f"{len(ours)} batches, as with Grain: {equal(ours, theirs)}")

    # With workers Grain's script has to be started behind a `__main__` guard and to parse absl's
    # flags, and its order depends on their number. Here it does not:
    with pipeline(grain_jax, worker_count=2) as loader:
        print(f"with 2 workers, the same: {equal(list(loader), ours)}")
    # Who wants the order that Grain has with 2 workers says so: lanes=2.

    # A run that Grain has begun goes on.
    iterator = iter(pipeline(grain))
    for _ in range(10):
        next(iterator)
    state = iterator.get_state()
    rest = iter(pipeline(grain_jax))
    rest.set_state(state)
    print(f"goes on at Grain's checkpoint: {equal(list(rest), theirs[10:])}")


if __name__ == "__main__":
    main()
