"""Worker processes as the executor of a plan, where the platform offers any."""

from __future__ import annotations

import warnings

from grain_jax._datasets import iterators
from grain_jax._datasets.program import Program
from grain_jax._execution import inline
from grain_jax._execution.engine import launch, pool

__all__ = ["Keeper", "executor", "supported"]

supported = launch.supported


def executor(program: Program, setup: iterators.Setup) -> inline.Executor:
    """Returns worker processes for a program, or this process where the platform has none."""
    chosen = setup.options
    if not launch.supported():
        warnings.warn(
            f"num_workers={chosen.num_workers}: this platform offers no worker processes to "
            "grain_jax, so the work is done in this process; the stream is the same.",
            stacklevel=2,
        )
        return inline.Inline(program)
    return pool.Pool(
        program,
        workers=chosen.num_workers,
        buffer=chosen.per_worker_buffer_size,
        max_worker_restarts=chosen.max_worker_restarts,
        stall_timeout=chosen.stall_timeout,
        memory_limit=chosen.memory_limit,
        init=chosen.worker_init_fn,
        ignored=tuple(chosen.ignore_globals),
    )


class Keeper:
    """Keeps what starting workers costs most, between two iterations of one loader."""

    def __init__(self) -> None:
        self._handle: launch.Handle | None = None

    def keep(self) -> None:
        """Starts keeping, once; not in a worker that imports what makes an iterator."""
        if self._handle is None and launch.supported() and launch.possible():
            self._handle = launch.keep_alive()

    def close(self) -> None:
        """Lets go; idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()
