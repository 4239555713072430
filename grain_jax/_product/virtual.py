"""Virtual shards: how many shards a stream that counts as it comes is dealt out over.

Each virtual shard counts for itself, and a process runs several of them as one: so a run may begin
on fewer processes than it goes on with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grain_jax._datasets.stages import Stage
from grain_jax._execution.joining import counts_that_work
from grain_jax._execution.layout import Layout
from grain_jax._values import errors, options

__all__ = ["dealt"]


def dealt(layout: Layout, given: int | None, stages: Sequence[Stage]) -> Layout:
    """Returns the layout of a process that runs its part of the virtual shards.

    A stream whose counts are known in advance needs none: one number says where it stands, for any
    number of processes.

    Args:
      layout: with the process's shard.
      given: how many virtual shards there are; None for one in each process.
      stages: those that run; none where an operation of the user's own follows.

    Raises:
      InvalidValueError: if they cannot be dealt out over the processes, or one batch cannot be made
        of an equal share of each.
    """
    if given is None:
        return layout
    count = options.check_count("virtual_shards", given, minimum=1)
    shards = layout.shard[1]
    if count % shards:
        raise errors.InvalidValueError(
            f"virtual_shards={count} cannot be dealt out over the {shards} shards of shard_options."
            f" Give a multiple of {shards}, or run on {counts_that_work(count)}."
        )
    if layout.sampler_shard[1] > 1:
        raise errors.InvalidValueError(
            f"virtual_shards={count} are dealt out by the loader, and here the sampler shards. Give"
            " shard_options to the loader."
        )
    if stages and layout.is_elastic(list(stages)):
        return layout
    joined = count // shards
    virtual = dataclasses.replace(layout, virtual=count, joined=joined)
    if count > 1 and not (stages and virtual.is_joinable(list(stages))):
        raise errors.InvalidValueError(
            f"virtual_shards={count} run as one where a batch takes an equal share of each, and"
            " this pipeline does not end by one Batch of single records, without lanes and without"
            " operations of your own. Let one Batch follow the steps that change counts."
        )
    if joined > 1 and stages[-1].unit % joined:
        size = stages[-1].unit
        raise errors.InvalidValueError(
            f"a batch of {size} cannot be made of equal shares of {joined} virtual shards, which"
            f" this process has of virtual_shards={count}. Give a batch size that {joined} divides."
        )
    return virtual
