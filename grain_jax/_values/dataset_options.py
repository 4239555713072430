"""Options that hold for all transformations of a dataset."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

from grain_jax._values import errors, notices, options

__all__ = ["DatasetOptions", "ExecutionTrackingMode"]


class ExecutionTrackingMode(enum.Enum):
    """Which statistics of a run are collected: none, or where the time of each step goes.

    With `STAGE_TIMING` the iterators' `stats()` says so, and the log of `grain_jax` once a minute.

    Example:
      >>> ExecutionTrackingMode.STAGE_TIMING.name
      'STAGE_TIMING'
    """

    DISABLED = enum.auto()
    STAGE_TIMING = enum.auto()


@dataclasses.dataclass(frozen=True)
class _Default:
    """The value of an option that nobody has given."""

    value: Any


_WARN: Any = _Default(0.9)
_NONE: Any = _Default(None)
_DISABLED: Any = _Default(ExecutionTrackingMode.DISABLED)
_ZERO: Any = _Default(0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetOptions:
    """Options for all transformations of a dataset; see `WithOptionsIterDataset`.

    Filters are looked at for each 1,000 elements that they see; windows begin anew where an
    iterator starts or is restored. The filters of a `MapDataset` count together, where it becomes a
    stream.

    Attributes:
      filter_warn_threshold_ratio: a filter that drops at least this part of a window is logged,
        once an iterator; None or 0 for never.
      filter_raise_threshold_ratio: the same is an error, in place of the window's last element.
      execution_tracking_mode: whether the time of each step is measured.
      min_shm_size: accepted for compatibility: all arrays travel in shared memory, in slots that
        are used again.

    Example:
      >>> import grain_jax as grain
      >>> options = DatasetOptions(filter_raise_threshold_ratio=0.5)
      >>> ds = grain.MapDataset.range(4_000).to_iter_dataset().filter(lambda x: x < 1_200)
      >>> ds = grain.experimental.WithOptionsIterDataset(ds, options)
      >>> try:
      ...     list(ds)
      ... except ValueError as error:
      ...     print(str(error).partition(".")[0])
      step 1: filter(<lambda>) dropped 80 % of the last 1000 elements
    """

    filter_warn_threshold_ratio: float | None = _WARN
    filter_raise_threshold_ratio: float | None = _NONE
    execution_tracking_mode: ExecutionTrackingMode = _DISABLED
    min_shm_size: int = _ZERO
    _given: frozenset[str] = dataclasses.field(init=False, repr=False)

    @notices.constructing("options")
    def __post_init__(self) -> None:
        given = set()
        for field in dataclasses.fields(self):
            if not field.init:
                continue
            value = getattr(self, field.name)
            if isinstance(value, _Default):
                object.__setattr__(self, field.name, value.value)
            else:
                given.add(field.name)
        object.__setattr__(self, "_given", frozenset(given))
        for name in ("filter_warn_threshold_ratio", "filter_raise_threshold_ratio"):
            if (ratio := getattr(self, name)) is not None:
                options.check_fraction(
                    name,
                    ratio,
                    also=", or be None for no check",
                    hint="Write 0.9 for nine of ten elements.",
                )
        options.check_count("min_shm_size", self.min_shm_size, minimum=0)
        if not isinstance(self.execution_tracking_mode, ExecutionTrackingMode):
            raise errors.InvalidTypeError(
                "execution_tracking_mode must be an ExecutionTrackingMode, got "
                f"{self.execution_tracking_mode!r}. Write ExecutionTrackingMode.DISABLED."
            )

    def merge(self, other: DatasetOptions | None) -> DatasetOptions:
        """Returns these options, and of another's those that are not given here.

        Example:
          >>> one = DatasetOptions(min_shm_size=1_024)
          >>> both = one.merge(DatasetOptions(min_shm_size=512, filter_warn_threshold_ratio=None))
          >>> both.min_shm_size, both.filter_warn_threshold_ratio
          (1024, None)
        """
        if other is None:
            return self
        given: dict[str, Any] = {}
        for one in (other, self):
            given |= {name: getattr(one, name) for name in one._given}
        return DatasetOptions(**given)
