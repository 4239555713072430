"""What a loader takes from its sampler: seed, shards and epochs."""

from __future__ import annotations

import dataclasses
import functools
import logging
import warnings
from collections.abc import Callable
from typing import Any

from grain_jax._algebra import access, samplers
from grain_jax._datasets import sampled
from grain_jax._execution.layout import Layout
from grain_jax._values import errors, sharding

__all__ = [
    "BUILT_IN",
    "check_random",
    "check_sampler",
    "epoch_layouts",
    "layout_of",
    "seed_of",
]

BUILT_IN = (samplers.IndexSampler, samplers.SequentialSampler)
"""Samplers that say what their seed, shards and epochs are."""

_logger = logging.getLogger("grain_jax")


def check_sampler(sampler: Any, source: access.Source) -> None:
    """Refuses what is no sampler, or one for more records than the source has.

    Raises:
      InvalidTypeError, InvalidValueError: naming it.
    """
    if not hasattr(sampler, "__getitem__"):
        raise errors.InvalidTypeError(
            f"sampler must give a RecordMetadata for each index, got {sampler!r} of type "
            f"{type(sampler).__name__}. Write grain_jax.samplers.IndexSampler(num_records=...)."
        )
    if not isinstance(sampler, BUILT_IN) or sampler.num_records == source.length:
        return
    if sampler.num_records > source.length:
        raise errors.InvalidValueError(
            f"the sampler has num_records={sampler.num_records}, and the source "
            f"({source.description}) has {source.length} records. Write "
            f"num_records={source.length}, or len(source)."
        )
    _log_unread(source.description, source.length, sampler.num_records)


@functools.lru_cache
def _log_unread(source: str, length: int, read: int) -> None:
    """Says, once, that a sampler leaves records out: for a part of a source that is meant."""
    _logger.warning(
        "the sampler has num_records=%d, and the source (%s) has %d records: the last %d of them "
        "are never read. Write num_records=len(source) to read all.",
        read,
        source,
        length,
        length - read,
    )


def seed_of(sampler: Any) -> int | None:
    """Returns the seed of the pipeline; None where the sampler does not say."""
    return sampler.seed if isinstance(sampler, BUILT_IN) else None


def layout_of(sampler: Any, given: sharding.ShardOptions | None, lanes: int) -> Layout:
    """Decides who shards: the loader, the sampler, or nobody."""
    if given is not None and not isinstance(given, sharding.ShardOptions):
        raise errors.InvalidTypeError(
            f"shard_options must be a ShardOptions or None, got {given!r} of type "
            f"{type(given).__name__}. Write sharding.ShardOptions(index, count)."
        )
    own = sampler.shard_options if isinstance(sampler, BUILT_IN) else None
    own = own if own is not None and own.is_given else None
    given = given if given is not None and given.is_given else None
    if (
        own
        and given
        and (own.shard_index, own.shard_count) != (given.shard_index, given.shard_count)
    ):
        raise errors.InvalidValueError(
            f"sharding is given twice: shard {given.shard_index} of {given.shard_count} to the "
            f"loader, shard {own.shard_index} of {own.shard_count} to the sampler. Give it once; "
            "shard_options of the loader keep a run restorable on another number of processes."
        )
    if own and given:
        warnings.warn(
            "sharding is given to the sampler and to the loader; the sampler's is used. Give it "
            "once: to the loader, so that a run can be restored on another number of processes.",
            stacklevel=3,
        )
    if own or type(sampler) in BUILT_IN:
        length: int | None = sampler.length
    else:
        length = sampled.length_of(sampler)
        if length is None and (given or lanes > 1):
            raise errors.InvalidTypeError(
                f"sampler {type(sampler).__name__} has no __len__, and shards or lanes need to "
                "know where the stream ends. Give it one."
            )
    if own:
        return Layout(length, sampler_shard=(own.shard_index, own.shard_count), lanes=lanes)
    if given is None:
        return Layout(length, lanes=lanes)
    shard = (given.shard_index, given.shard_count)
    return Layout(length, shard=shard, lanes=lanes, even=given.drop_remainder)


def check_random(title: str, sampler: Any) -> None:
    """Refuses a random step where neither the sampler nor its records have a seed.

    Args:
      title: the step's.
      sampler: what the loader was given.

    Raises:
      InvalidValueError: naming the step.
    """
    if seed_of(sampler) is not None:
        return
    if not isinstance(sampler, BUILT_IN):
        try:
            if sampler[0].rng is not None:
                return
        except IndexError:
            return
    raise errors.InvalidValueError(
        f"{title} draws random numbers, and the sampler has no seed. Write "
        f"{type(sampler).__name__}(..., seed=0)."
    )


def epoch_layouts(sampler: Any, layout: Layout) -> tuple[int, Callable[[int], Layout], int | None]:
    """Returns the records of an epoch, the layout of each by its number, and how many there are."""
    if not isinstance(sampler, BUILT_IN):
        raise errors.InvalidTypeError(
            f"epochs() needs a sampler that knows its epochs, and {type(sampler).__name__} is "
            "one of your own. Iterate over the loader instead."
        )
    count: int | None = 1
    if isinstance(sampler, samplers.IndexSampler):
        count = sampler.num_epochs
        once = samplers.IndexSampler(sampler.num_records, sampler.shard_options, num_epochs=1)
        records = once.length or 0
    else:
        records = sampler.length

    def of(number: int) -> Layout:
        return dataclasses.replace(layout, start=number * records, length=(number + 1) * records)

    return records, of, count
