"""Indices: the position of an iterator as the number of the element that comes next."""

from __future__ import annotations

from typing import Any

from grain_jax._execution.iterator import PipelineIterator
from grain_jax._execution.pipeline import Pipeline
from grain_jax._execution.threaded import ThreadPrefetchDatasetIterator
from grain_jax._values import errors, options

__all__ = ["get_next_index", "set_next_index"]


def get_next_index(ds_iter: Any) -> int:
    """Returns how many elements come before the one that a dataset's iterator returns next.

    Args:
      ds_iter: of a stream whose elements can be counted: random access, maps and batches.

    Raises:
      InvalidTypeError: for an iterator of another one.

    Example:
      >>> import grain_jax as grain
      >>> iterator = iter(grain.MapDataset.range(5).to_iter_dataset())
      >>> next(iterator), get_next_index(iterator)
      (0, 1)
    """
    state, unit = _counted(ds_iter)
    return -(-int(state["position"]) // unit)


def set_next_index(ds_iter: Any, index: int) -> None:
    """Lets a dataset's iterator go on with the element of a number.

    Args:
      ds_iter: as for `get_next_index`.
      index: from 0 up to the number of elements, which is the end.

    Raises:
      InvalidTypeError: as for `get_next_index`.
      OutOfRangeError: for a number above that.

    Example:
      >>> import grain_jax as grain
      >>> iterator = iter(grain.MapDataset.range(5).to_iter_dataset())
      >>> set_next_index(iterator, 3)
      >>> next(iterator), get_next_index(iterator)
      (3, 4)
    """
    state, unit = _counted(ds_iter)
    index = options.check_count("index", index, minimum=0)
    layout = _pipeline(ds_iter).layout
    end = layout.end
    if end is not None and index > -(-end // unit):
        raise errors.OutOfRangeError(f"index {index} is beyond the {-(-end // unit)} elements.")
    position = index * unit if end is None else min(index * unit, end)
    ds_iter.set_state({**state, "position": position})


def _pipeline(ds_iter: Any) -> Pipeline:
    """Returns what an iterator runs."""
    inner = getattr(ds_iter, "_iterator", ds_iter)
    pipeline: Pipeline = inner._pipeline
    return pipeline


def _counted(ds_iter: Any) -> tuple[dict[str, Any], int]:
    """Returns an iterator's state, and how many positions an element is made of."""
    if isinstance(ds_iter, (PipelineIterator, ThreadPrefetchDatasetIterator)):
        state = ds_iter.get_state()
        if state["elastic"]:
            stages = _pipeline(ds_iter).stages
            return state, stages[0].unit if stages else 1
    raise errors.InvalidTypeError(
        f"{type(ds_iter).__name__} counts no elements. Take the iterator of a MapDataset, or of "
        "its to_iter_dataset() with maps and batches behind it and no filter, flat-map or merge. "
        "Of others save and restore get_state()."
    )
