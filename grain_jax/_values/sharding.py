"""Which part of the data one of several processes takes."""

from __future__ import annotations

import dataclasses
from typing import Any

from grain_jax._values import notices
from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from grain_jax._values.options import check_count
from grain_jax._values.row_shards import Interval, row_shards

__all__ = [
    "NoSharding",
    "ShardByJaxProcess",
    "ShardBySharding",
    "ShardOptions",
    "even_split",
    "rows_of_devices",
]

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

    Example:
      >>> import grain_jax as grain
      >>> [
      ...     list(grain.load(range(5), num_epochs=1, shard_options=ShardOptions(shard, 2)))
      ...     for shard in range(2)
      ... ]
      [[0, 2, 4], [1, 3]]
    """

    shard_index: int
    shard_count: int
    drop_remainder: bool = False

    @notices.constructing("shard")
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
    """Every process reads all of the data.

    Example:
      >>> NoSharding().shard_index, NoSharding().shard_count
      (0, 1)
    """

    def __init__(self) -> None:
        super().__init__(shard_index=0, shard_count=1)


class ShardByJaxProcess(ShardOptions):
    """One shard for each JAX process: its index and count come from `jax` when this is made.

    In a program of several processes call `jax.distributed.initialize()` before.

    Example:
      >>> options = ShardByJaxProcess()  # after jax.distributed.initialize(), on many hosts
      >>> options.shard_index, options.shard_count
      (0, 1)
    """

    @notices.constructing("shard")
    def __init__(self, drop_remainder: bool = False) -> None:
        import jax  # here, since data pipelines without it must not pay for the import

        super().__init__(jax.process_index(), jax.process_count(), drop_remainder)


class ShardBySharding(ShardOptions):
    """The shard of this process, from the sharding that the global batch will have.

    Processes whose devices hold the same rows of the batch load the same shard: those that a model
    or sequence axis of the mesh spans. A process whose devices hold several blocks of rows loads
    all of them as one shard. Each process gives its loader `global_batch // shard_count` rows.

    In a program of several processes call `jax.distributed.initialize()` before.

    Example:
      >>> import jax
      >>> import numpy as np
      >>> grid = np.array(jax.devices()).reshape(2, 2)
      >>> mesh = jax.sharding.Mesh(grid, ("data", "model"))
      >>> sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
      >>> ShardBySharding(sharding)
      ShardBySharding(shard_index=0, shard_count=1, drop_remainder=False)

    Args:
      sharding: a `jax.sharding.Sharding`, on all devices of the mesh, those of other processes
        included.
      axis: the axis of the batch's arrays along which its rows lie.
      drop_remainder: as in `ShardOptions`.

    Raises:
      InvalidTypeError: if this is no sharding.
      InvalidValueError: if this process holds nothing of the batch, or if no shards of equal size
        give each process its rows; names the processes and their rows.
    """

    @notices.constructing("shard")
    def __init__(self, sharding: Any, *, axis: int = 0, drop_remainder: bool = False) -> None:
        import jax  # here, since data pipelines without it must not pay for the import

        axis = check_count("axis", axis, minimum=0, hint="Axes are counted from 0.")
        rows = rows_of_devices(sharding, axis)
        shards = row_shards(rows, {device: device.process_index for device in rows})
        process = jax.process_index()
        if process not in shards:
            raise InvalidValueError(
                f"process {process} of {jax.process_count()} has no device of the sharding"
                f" {sharding}, so that it holds no row of the batch. Load data on the processes"
                f" that do ({len(shards)}, among them process {min(shards)}), or use a mesh over"
                " jax.devices()."
            )
        super().__init__(*shards[process], drop_remainder)


def rows_of_devices(sharding: Any, axis: int) -> dict[Any, Interval]:
    """The rows of each device, in the smallest batch that any sharding over these devices cuts."""
    if not hasattr(sharding, "devices_indices_map") or not hasattr(sharding, "device_set"):
        raise InvalidTypeError(
            f"sharding must be a jax.sharding.Sharding, got {sharding!r} of type"
            f" {type(sharding).__name__}. Write jax.sharding.NamedSharding(mesh, spec)."
        )
    devices = len(sharding.device_set)
    # Every number of parts divides the number of devices, so this shape can be cut.
    rank = max(axis + 1, len(getattr(sharding, "spec", ())))
    indices = sharding.devices_indices_map((devices,) * rank)
    return {d: index[axis].indices(devices)[:2] for d, index in indices.items()}


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
