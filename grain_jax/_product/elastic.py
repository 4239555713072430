"""ElasticIterator: batches of a dataset dealt out over shards, by the name that Grain gives it."""

from __future__ import annotations

from typing import Any

from grain_jax._datasets import iterators
from grain_jax._datasets.iter_dataset import plan_of
from grain_jax._datasets.map_dataset import MapDataset
from grain_jax._datasets.plan import has_positions
from grain_jax._execution.iterator import PipelineIterator
from grain_jax._execution.layout import Layout
from grain_jax._values import errors, notices, options, sharding

__all__ = ["ElasticIterator"]

_GRAIN_STATE = "global_next_index"


class ElasticIterator(PipelineIterator[Any]):
    """Batches of one shard, whose state restores on any number of shards and global batch size.

    Of each global batch, shard s of S takes elements s, s + S, …; an incomplete last one is
    dropped. The state is the same on all shards. Those of Grain's iterator can be set, too.

    A loader with `shard_options`, and a `prefetch_to_device` of it, do the same and more.

    Example:
      >>> import grain_jax as grain
      >>> ds = grain.MapDataset.range(9)
      >>> it = grain.experimental.ElasticIterator(ds, 4, grain.sharding.ShardOptions(1, 2))
      >>> [batch.tolist() for batch in it]
      [[1, 3], [5, 7]]

    Args:
      ds: a dataset that is neither batched nor sharded.
      global_batch_size: elements of all shards together in one step.
      shard_options: which shard this is, and of how many.
      read_options: how records are read.
      multiprocessing_options: worker processes; None works in this one.

    Raises:
      InvalidTypeError: if `ds` is no `MapDataset`, or another argument is of the wrong kind.
      InvalidValueError: if the batch does not divide over the shards, or `ds` has a filter.
    """

    @notices.constructing("iterator")
    def __init__(
        self,
        ds: MapDataset[Any],
        global_batch_size: int,
        shard_options: sharding.ShardOptions,
        *,
        read_options: options.ReadOptions | None = None,
        multiprocessing_options: options.MultiprocessingOptions | None = None,
    ) -> None:
        if not isinstance(ds, MapDataset):
            raise errors.InvalidTypeError(
                f"ElasticIterator takes a MapDataset, got {type(ds).__name__}: only where elements"
                " can be counted does every shard know where the others stand."
            )
        if not isinstance(shard_options, sharding.ShardOptions):
            raise errors.InvalidTypeError(
                f"shard_options must be a ShardOptions, got {shard_options!r}. Write"
                " sharding.ShardByJaxProcess(), or sharding.ShardOptions(index, count)."
            )
        size = options.check_count("global_batch_size", global_batch_size, minimum=1)
        count = shard_options.shard_count
        if size % count:
            raise errors.InvalidValueError(
                f"global_batch_size={size} does not divide over {count} shards. Use"
                f" {size // count * count or count} or {size // count * count + count}."
            )
        setup = iterators.Setup(multiprocessing_options or options.MultiprocessingOptions())
        if (setup.options.lanes or 1) > 1:
            raise errors.InvalidValueError(
                f"lanes={setup.options.lanes} give each shard an order of its own. Leave lanes out."
            )
        stream = ds.to_iter_dataset(read_options).batch(size // count, drop_remainder=True)
        plan = plan_of(stream)
        assert has_positions(plan.root)
        if plan.root.has_gaps:
            raise errors.InvalidValueError(
                "ElasticIterator does not take a dataset with a filter: nobody can know how many"
                " elements the other shards have left. Filter before, or mask what is not wanted."
            )
        shard = (shard_options.shard_index, count)
        super().__init__(plan, setup, Layout(plan.root.length, shard=shard))

    def _go_to(self, state: Any) -> None:
        if isinstance(state, dict) and state.keys() == {_GRAIN_STATE}:
            state = {**self._state(), "elastic": True, "position": state[_GRAIN_STATE]}
        super()._go_to(state)
