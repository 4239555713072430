"""Elements that threads make ahead."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._datasets.plan import Grouped, Root, Upstream
from grain_jax._datasets.roots import NodeRoot
from grain_jax._values import errors, options

__all__ = ["ThreadPrefetchIterDataset", "multithread_prefetch"]

T = TypeVar("T", covariant=True)

_Root = TypeVar("_Root", bound=Root | Upstream | Grouped)


class ThreadPrefetchIterDataset(IterDataset[T]):
    """The same stream, which a thread of its iterators makes ahead, with all that stands behind.

    Order and states are those of the stream without it.

    Args:
      parent: the stream.
      prefetch_buffer_size: how many elements may wait; 0 makes none ahead.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(4).to_iter_dataset().map(lambda x: x + 1)
      >>> list(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2))
      [1, 2, 3, 4]
    """

    def __init__(self, parent: IterDataset[T], *, prefetch_buffer_size: int) -> None:
        super().__init__(parent)
        size = options.check_count("prefetch_buffer_size", prefetch_buffer_size, minimum=0)
        if not isinstance(parent, IterDataset):
            raise errors.InvalidTypeError(
                f"ThreadPrefetchIterDataset takes an IterDataset, got {parent!r}. Write "
                "ds.to_iter_dataset() for a MapDataset."
            )
        ahead = max(size, parent._description.ahead)
        self._be(parent._then(f"thread_prefetch({size})", ahead=ahead))


def multithread_prefetch(
    ds: IterDataset[T], num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset[T]:
    """Returns the same stream, made ahead by a thread, with records read by several.

    Order and states are those of the stream without it.

    Args:
      ds: the stream.
      num_threads: threads that read records, which may be inside the source at once; where the
        stream says otherwise in `read_options`, that holds. 0 returns `ds`.
      buffer_size: how many elements may wait for each thread.
      sequential_slice: accepted for compatibility: the order does not depend on the threads.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(4).to_iter_dataset().map(lambda x: x + 1)
      >>> list(multithread_prefetch(ds, num_threads=2, buffer_size=4))
      [1, 2, 3, 4]
    """
    count = options.check_count("num_threads", num_threads, minimum=0)
    size = options.check_count("buffer_size", buffer_size, minimum=0)
    if not count:
        return ds
    made: IterDataset[T] = ThreadPrefetchIterDataset(ds, prefetch_buffer_size=count * size)
    about = made._description
    made._description = dataclasses.replace(about, root=_read_by(about.root, count))
    return made


def _read_by(root: _Root, threads: int) -> _Root:
    """Returns a root that so many threads read, unless the user has said how many do."""
    found: Any = root
    if isinstance(root, NodeRoot):
        found = root.read_by(threads)
    elif isinstance(root, Grouped):
        parents = tuple(
            dataclasses.replace(plan, root=_read_by(plan.root, threads)) for plan in root.parents
        )
        found = dataclasses.replace(root, parents=parents)
    return found  # type: ignore[no-any-return]
