"""Virtual shards: how many shards a stream that counts as it comes is dealt out over.

Each virtual shard counts for itself, and a process runs several of them as one: so a run may begin
on fewer processes than it goes on with.
"""

from __future__ import annotations

import dataclasses

from grain_jax._datasets.plan import Branch, Grouped, Plan, Root, Upstream, has_positions
from grain_jax._execution.joining import counts_that_work
from grain_jax._execution.layout import Layout
from grain_jax._values import errors, options

__all__ = ["dealt", "of_tree"]


def of_tree(layout: Layout, plan: Plan) -> Layout:
    """Returns the layout of a process's part of a dataset.

    Args:
      layout: that of the whole of it.
      plan: the dataset, which says over which shards it is dealt out.

    Raises:
      InvalidTypeError: for an iterable of the user's own, of which nobody knows a part.
      InvalidValueError: if something in it cannot be dealt out over so many shards.
    """
    assert plan.shards is not None
    own = plan.shards.own
    if own.is_given:
        shard = (own.shard_index, own.shard_count)
        layout = dataclasses.replace(layout, shard=shard, even=own.drop_remainder)
    layout = dealt(layout, plan.shards.virtual, plan.branch())
    if layout.shards > 1:
        for part in plan.walk():
            _check_part(part.root, layout.shards)
    return layout


def _check_part(root: Root | Upstream | Grouped, shards: int) -> None:
    """Refuses what cannot be dealt out."""
    if isinstance(root, Grouped):
        root.grouping.of_shard(shards)
    elif isinstance(root, Upstream):
        raise errors.InvalidTypeError(
            f"{root.title} has no positions, so that it cannot be dealt out over {shards} shards:"
            " each would read all of it. Leave shard out and let each process read a part of its"
            " own, by its shard_index; or begin with a MapDataset, whose records have positions."
        )


def dealt(layout: Layout, given: int | None, branch: Branch | None) -> Layout:
    """Returns the layout of a process that runs its part of the virtual shards.

    A stream whose counts are known in advance needs none: one number says where it stands, for any
    number of processes.

    Args:
      layout: with the process's shard.
      given: how many virtual shards there are; None for one in each process.
      branch: what runs; None where an operation of the user's own follows.

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
    if branch and has_positions(branch.plan.root) and layout.is_elastic(branch.stages):
        return layout
    joined = count // shards
    virtual = dataclasses.replace(layout, virtual=count, joined=joined)
    if count == 1:
        return virtual
    shared = branch.shared if branch is not None and virtual.is_joinable(branch) else None
    if branch is None or shared is None:
        raise errors.InvalidValueError(
            f"virtual_shards={count} run as one where a batch takes an equal share of each, and"
            " this pipeline does not end by one Batch, without lanes, without map_with_index just"
            " before it and without operations of your own. Let one Batch follow all that"
            " filters, merges, packs or reorders."
        )
    size = branch.behind[shared].unit
    if size % joined:
        raise errors.InvalidValueError(
            f"a batch of {size} cannot be made of equal shares of {joined} virtual shards, which"
            f" this process has of virtual_shards={count}. Give a batch size that {joined} divides."
        )
    return virtual
