"""Options for reading and for worker processes, checked where they are given."""

from __future__ import annotations

import dataclasses
import math
import numbers
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Literal

from grain_jax._values import errors, notices

__all__ = [
    "ErrorPolicy",
    "MultiprocessingOptions",
    "ReadOptions",
    "check_any_seed",
    "check_count",
    "check_fraction",
    "check_seed",
    "check_worker_count",
    "usable_cores",
]

_MAX_AUTOMATIC_WORKERS = 16


def check_count(name: str, value: Any, *, minimum: int, hint: str = "") -> int:
    """Returns `value` as an int, or raises an error that names it.

    Args:
      name: what the user calls the value.
      value: what the user gave.
      minimum: the smallest value that works.
      hint: what to write instead, if there is more to say than the minimum.
    """
    tail = f" {hint}" if hint else ""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise errors.InvalidTypeError(
            f"{name} must be a whole number, got {value!r} of type {type(value).__name__}.{tail}"
        )
    if value < minimum:
        raise errors.InvalidValueError(f"{name} must be at least {minimum}, got {value}.{tail}")
    return int(value)


def check_fraction(name: str, value: Any, *, also: str = "", hint: str) -> None:
    """Refuses what is no number from 0 to 1.

    Args:
      name: of the argument.
      value: what was given.
      also: what else it may be, for the message.
      hint: what to write instead.
    """
    text = f"{name} must lie between 0 and 1{also}, got {value!r}. {hint}"
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise errors.InvalidTypeError(text)
    if not 0 <= float(value) <= 1:  # not a number is not, either
        raise errors.InvalidValueError(text)


def check_seed(value: Any) -> int:
    """Returns the seed of a permutation, of 32 bits, or raises an error that names it."""
    seed = check_any_seed(value)
    if seed >= 2**32:
        raise errors.InvalidValueError(
            f"seed must fit into 32 bits (0 to {2**32 - 1}), got {seed}. "
            f"Write seed={seed % 2**32} for its lower 32 bits."
        )
    return seed


def check_any_seed(value: Any) -> int:
    """Returns a seed of any size, from 0, or raises an error that names it."""
    return check_count("seed", value, minimum=0)


def usable_cores() -> int:
    """Returns how many cores this process may use: affinity and cgroup limits count."""
    cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, _cgroup_cores()))


def _cgroup_cores() -> int:
    """Returns the cores that a cgroup grants, rounded up; a large number if unlimited."""
    unlimited = 1 << 20
    try:
        quota, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        try:
            folder = pathlib.Path("/sys/fs/cgroup/cpu")
            quota = folder.joinpath("cpu.cfs_quota_us").read_text().strip()
            period = folder.joinpath("cpu.cfs_period_us").read_text().strip()
        except OSError:
            return unlimited
    if quota == "max" or int(quota) <= 0:
        return unlimited
    return max(1, math.ceil(int(quota) / int(period)))


def check_worker_count(name: str, value: Any) -> int:
    """Returns the number of workers; None means the usable cores, at most 16."""
    if value is None:
        return min(usable_cores(), _MAX_AUTOMATIC_WORKERS)
    return check_count(
        name, value, minimum=0, hint="0 works in this process; None picks the usable cores."
    )


@dataclasses.dataclass(frozen=True)
class ReadOptions:
    """How records are read from the source.

    Attributes:
      num_threads: threads that read records; 0 reads in the calling thread; a number above 1 says
        that several threads may be inside the source at once. None decides by what the first reads
        cost, and uses threads only where the source certainly holds nothing that they would share,
        such as an open file, a connection, or a buffer of its own.
      prefetch_buffer_size: with threads, and no worker processes, how many records to read ahead;
        None means two batches. Workers read for as many elements as are buffered for them.

    Example:
      >>> ReadOptions(num_threads=16).num_threads
      16
    """

    num_threads: int | None = None
    prefetch_buffer_size: int | None = None

    @notices.constructing("options")
    def __post_init__(self) -> None:
        for name in ("num_threads", "prefetch_buffer_size"):
            value = getattr(self, name)
            if value is not None:
                check_count(name, value, minimum=0, hint="None decides automatically.")


@dataclasses.dataclass(frozen=True)
class ErrorPolicy:
    """Leaves out records whose reading or transformation fails, within a budget.

    What is left out is counted, listed by the iterator's `skipped`, logged once for each kind, and
    part of the state. The stream is the same for every number of workers: a batch is made of the
    records that are left. An error in or after a batch is raised.

    Attributes:
      skip: the exceptions that leave a record out; others are raised.
      max_count: how many records may be left out; None for any number.
      max_fraction: which fraction of the records seen may be left out, looked at from the 100th
        record on; None for any.

    Example:
      >>> policy = ErrorPolicy(skip=(OSError, ValueError), max_count=1_000)
    """

    skip: type[Exception] | tuple[type[Exception], ...] = Exception
    max_count: int | None = None
    max_fraction: float | None = None

    @notices.constructing("options")
    def __post_init__(self) -> None:
        kinds = self.kinds
        if not kinds or not all(isinstance(k, type) and issubclass(k, Exception) for k in kinds):
            raise errors.InvalidTypeError(
                f"skip must be an exception class or a tuple of them, got {self.skip!r}. Write "
                "skip=ValueError."
            )
        if self.max_count is not None:
            check_count("max_count", self.max_count, minimum=0, hint="None sets no limit.")
        if self.max_fraction is not None:
            hint = "Write 0.01 for one record in a hundred."
            check_fraction("max_fraction", self.max_fraction, hint=hint)

    @property
    def kinds(self) -> tuple[type[Exception], ...]:
        """The exceptions of `skip`, as a tuple."""
        return self.skip if isinstance(self.skip, tuple) else (self.skip,)


@dataclasses.dataclass(frozen=True)
class MultiprocessingOptions:
    """How worker processes run a pipeline. Worker count and buffer sizes never change the stream.

    Attributes:
      num_workers: worker processes; 0 works in this process.
      per_worker_buffer_size: finished elements to keep ready per worker.
      enable_profiling: measures where the time goes: `stats()` of the iterators says so, and, once
        a minute, the log of `grain_jax`, at level INFO.
      lanes: number of interleaved streams that fix the order; see `DataLoader`. None means one, or
        what a restored state says.
      strict: whether a state of a different pipeline is refused.
      on_error: what an exception in user code does: "raise", or an `ErrorPolicy`.
      max_worker_restarts: how often one task may lose its worker before that is an error.
      stall_timeout: seconds that workers may be silent before that is an error; None waits on.
      memory_limit: bytes that elements which wait for others (of a batch behind a filter, a window,
        a pack) may take in this process beside the shared memory; None for an eighth of the
        machine's. Beyond it there is an error.
      worker_init_fn: called as `worker_init_fn(index, count)` in every worker, also in one that
        replaces a dead one, before the pipeline is loaded or a module of its imported: the place
        for what a library keeps in globals. Not called with 0 workers: there, set it yourself.
      ignore_globals: modules, and variables and functions of modules, that may differ between this
        process and workers: `("config",)`, `("config.DEBUG",)`; and random generators that may be
        held, though each worker has a copy: `("module.rng",)`, `("Augment.rng",)`.

    Example:
      >>> options = MultiprocessingOptions(num_workers=4, per_worker_buffer_size=2)
      >>> MultiprocessingOptions(num_workers=-1)
      Traceback (most recent call last):
          ...
      grain_jax._values.errors.InvalidValueError: num_workers must be at least 0, got -1...
    """

    num_workers: int = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False
    _: dataclasses.KW_ONLY
    lanes: int | None = None
    strict: bool = True
    on_error: Literal["raise"] | ErrorPolicy = "raise"
    max_worker_restarts: int = 3
    stall_timeout: float | None = None
    memory_limit: int | None = None
    worker_init_fn: Callable[[int, int], None] | None = None
    ignore_globals: Sequence[str] = ()

    @notices.constructing("options")
    def __post_init__(self) -> None:
        check_count("num_workers", self.num_workers, minimum=0)
        check_count("per_worker_buffer_size", self.per_worker_buffer_size, minimum=1)
        check_count("max_worker_restarts", self.max_worker_restarts, minimum=0)
        if self.lanes is not None:
            check_count("lanes", self.lanes, minimum=1)
        if self.on_error != "raise" and not isinstance(self.on_error, ErrorPolicy):
            raise errors.InvalidValueError(
                f"on_error={self.on_error!r} is not known. Write on_error='raise', or "
                "on_error=grain_jax.ErrorPolicy(max_count=...) to leave faulty records out."
            )
        if self.stall_timeout is not None:
            _check_seconds("stall_timeout", self.stall_timeout)
        if self.memory_limit is not None:
            check_count("memory_limit", self.memory_limit, minimum=0, hint="It counts bytes.")
        if self.worker_init_fn is not None and not callable(self.worker_init_fn):
            raise errors.InvalidTypeError(
                "worker_init_fn must be a function of a worker's index and the number of workers, "
                f"or None, got {self.worker_init_fn!r}. Write worker_init_fn=lambda index, count: "
                "..."
            )
        _check_names("ignore_globals", self.ignore_globals)

    @property
    def skips(self) -> tuple[type[Exception], ...]:
        """The exceptions that leave a record out; none where all are raised."""
        return self.on_error.kinds if isinstance(self.on_error, ErrorPolicy) else ()


def _check_names(name: str, value: Any) -> None:
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        hint = f"({value!r},)" if isinstance(value, str) else "('module.NAME',)"
        raise errors.InvalidTypeError(
            f"{name} must be a tuple of names, got {value!r}. Write {name}={hint}."
        )


def _check_seconds(name: str, value: Any) -> None:
    text = f"{name} must be a positive number of seconds or None, got {value!r}."
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise errors.InvalidTypeError(text)
    if not float(value) > 0:  # not a number is not, either
        raise errors.InvalidValueError(text)
