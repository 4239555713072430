"""The training script of the campaign that kills it: saves often, resumes, and writes all it sees.

    python -m tests.faults.trainer FOLDER STEPS

It prints nothing. `FOLDER/log` gets one line a step: number, records, digest of the contents. With
GRAIN_JAX_KILL=N in the environment it kills itself at the Nth step of writing the data's state.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp

import grain_jax as grain

__all__ = ["RECORDS", "batches", "main", "step_of"]

RECORDS = 64
_EVERY = 3  # steps between saves


class _Image(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {"n": element, "image": rng.random((40, 100), np.float32)}


class _Some(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(element["n"] % 5)


def batches(workers: int, source: Any = range(RECORDS)) -> grain.DataLoader:
    """Returns the loader of the run."""
    return grain.DataLoader(
        data_source=source,
        sampler=grain.samplers.IndexSampler(RECORDS, shuffle=True, seed=9, num_epochs=100),
        operations=[_Image(), _Some(), grain.transforms.Batch(4)],
        worker_count=workers,
    )


def step_of(batch: Any, parameters: Any) -> tuple[str, Any]:
    """Returns what the log says of a batch, and the parameters after it."""
    images = np.asarray(batch["image"])
    digest = hashlib.sha256(images.tobytes()).hexdigest()[:16]
    records = ",".join(str(int(n)) for n in np.asarray(batch["n"]))
    return f"{records} {digest}", parameters * np.float32(0.9) + jnp.asarray(images.mean(0))


def _kill_inside_saves(calls: int) -> None:
    """Makes the `calls`-th of the calls that write a file the last thing this process does."""
    left = calls

    def counted(call: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return run

    for name in ("fsync", "replace", "rename"):
        setattr(os, name, counted(getattr(os, name)))


def main(folder: Path, steps: int) -> None:
    """Trains up to a number of steps, from the last checkpoint if there is one."""
    if "GRAIN_JAX_KILL" in os.environ:
        _kill_inside_saves(int(os.environ["GRAIN_JAX_KILL"]))
    shared = grain.sources.SharedMemoryDataSource(np.arange(RECORDS))
    parameters = jnp.zeros((40, 100))
    start = 0
    options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
    with (
        ocp.CheckpointManager(folder / "checkpoints", options=options) as manager,
        grain.prefetch_to_device(batches(2, shared), remainder="drop") as stage,
    ):
        latest = manager.latest_step()
        if latest is not None:
            restored = manager.restore(
                latest,
                args=ocp.args.Composite(
                    model=ocp.args.StandardRestore({"w": parameters}),
                    data=grain.checkpoint.CheckpointRestore(stage),
                ),
            )
            parameters, start = restored["model"]["w"], latest
        with open(folder / "log", "a") as log:
            for step in range(start + 1, steps + 1):
                text, parameters = step_of(next(stage), parameters)
                log.write(f"{step} {text}\n")
                log.flush()
                if step % _EVERY == 0:
                    manager.save(
                        step,
                        args=ocp.args.Composite(
                            model=ocp.args.StandardSave({"w": parameters}),
                            data=grain.checkpoint.CheckpointSave(stage),
                        ),
                    )
    (folder / "parameters").write_bytes(np.asarray(parameters).tobytes())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
