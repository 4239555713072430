"""Which part of the data one of several processes takes."""

from __future__ import annotations

import dataclasses

from grain_jax._values.errors import InvalidValueError
from grain_jax._values.options import check_count

__all__ = ["NoSharding", "ShardByJaxProcess", "ShardOptions", "even_split"]

_OWN_INDEX = "Every process gives its own index, counted from 0, and the same count."


@dataclasses.dataclass(frozen=True, eq=False)
class ShardOptions:
    """This process is shard `shard_index` of `shard_count`.

    Two of them are equal if their numbers are, however they were made.

    Attributes:
      shard_index: which shard this is, from 0 to `shard_count - 1`.
      shard_count: into how many shards the data is divided, at least 1.
      drop_remainder: whether what does not divide evenly over the shards is left out, so that all
        shards have the same length.
    """

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    def __post_init__(self) -> None:
        count = check_count(
            "shard_count", self.shard_count, minimum=1, hint="NoSharding() reads all of the data."
        )
        index = check_count("shard_index", self.shard_index, minimum=0, hint=_OWN_INDEX)
        if index >= count:
            raise InvalidValueError(
                f"shard_index must be below shard_count={count}, got {index}. {_OWN_INDEX}"
            )
        object.__setattr__(self, "shard_index", index)
        object.__setattr__(self, "shard_count", count)
        object.__setattr__(self, "drop_remainder", bool(self.drop_remainder))

    @property
    def is_given(self) -> bool:
        """Whether this divides the data at all: one shard of one does not."""
        return self.shard_count > 1

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ShardOptions):
            return NotImplemented
        return dataclasses.astuple(self) == dataclasses.astuple(other)

    def __hash__(self) -> int:
        return hash(dataclasses.astuple(self))


class NoSharding(ShardOptions):
    """Every process reads all of the data."""

    def __init__(self) -> None:
        super().__init__(shard_index=0, shard_count=1)


class ShardByJaxProcess(ShardOptions):
    """One shard for each JAX process: its index and count come from `jax` when this is made.

    In a program of several processes call `jax.distributed.initialize()` before.
    """

    def __init__(self, drop_remainder: bool = False) -> None:
        import jax  # here, since data pipelines without it must not pay for the import

        super().__init__(jax.process_index(), jax.process_count(), drop_remainder)


def even_split(num_examples: int, options: ShardOptions) -> tuple[int, int]:
    """The block `start, stop` of `range(num_examples)` that is this shard's.

    Blocks follow each other in the order of the shards. What does not divide evenly goes to the
    first shards, one for each, or is left out at the end with `drop_remainder`.

    >>> [even_split(11, ShardOptions(shard, 3)) for shard in range(3)]
    [(0, 4), (4, 8), (8, 11)]
    >>> [even_split(11, ShardOptions(shard, 3, drop_remainder=True)) for shard in range(3)]
    [(0, 3), (3, 6), (6, 9)]
    """
    size, rest = divmod(num_examples, options.shard_count)
    if options.drop_remainder:
        rest = 0
    index = options.shard_index
    start = index * size + min(index, rest)
    return start, start + size + (index < rest)
