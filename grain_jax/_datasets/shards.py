"""Shards: how the records of a dataset are dealt out over processes, as its description says."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from grain_jax._values import errors, options, sharding

__all__ = ["Shards", "alike", "checked"]


@dataclasses.dataclass(frozen=True)
class Shards:
    """How the records of a pipeline are dealt out over processes.

    Attributes:
      own: which part this process takes.
      virtual: over how many shards that count for themselves they are; None for one in each process
        of the run that begins.
    """

    own: sharding.ShardOptions
    virtual: int | None = None


def checked(shard_options: sharding.ShardOptions, virtual_shards: int | None) -> Shards:
    """Returns what a user gave.

    Raises:
      InvalidTypeError, InvalidValueError: for what can be neither.
    """
    if not isinstance(shard_options, sharding.ShardOptions):
        raise errors.InvalidTypeError(
            f"shard takes a ShardOptions, got {shard_options!r}. Write "
            "sharding.ShardByJaxProcess(), or sharding.ShardOptions(index, count)."
        )
    if virtual_shards is not None:
        virtual_shards = options.check_count("virtual_shards", virtual_shards, minimum=1)
    return Shards(shard_options, virtual_shards)


def alike(parts: Sequence[Shards | None], text: str) -> Shards | None:
    """Returns how all parts of a stream are dealt out; None if they are not.

    Raises:
      InvalidValueError: if they differ; `text` names what is made of them.
    """
    first, *others = parts
    if any(other != first for other in others):
        raise errors.InvalidValueError(
            f"some of the streams of {text} are dealt out over shards by shard(...), and others are"
            " not, or otherwise. Write shard once, behind it."
        )
    return first
