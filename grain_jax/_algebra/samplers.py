"""Samplers: which record stands at which position of the stream."""

from __future__ import annotations

import operator
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from grain_jax._values import notices
from grain_jax._values.errors import InvalidTypeError, InvalidValueError, OutOfRangeError
from grain_jax._values.options import check_count, check_seed
from grain_jax._values.permutation import permute_epochs, permute_one
from grain_jax._values.randomness import generator
from grain_jax._values.records import RecordMetadata
from grain_jax._values.sharding import NoSharding, ShardOptions, even_split

__all__ = ["IndexSampler", "Sampler", "SequentialSampler"]

Int64s = npt.NDArray[np.int64]

_NOTHING_TO_READ = "There is nothing to read from an empty source."
# Positions are int64; endless samplers stop counting here, before sums overflow.
_LAST_POSITION = 1 << 62


@runtime_checkable
class Sampler(Protocol):
    """The order in which records are read: any object with this one method.

    Example:
      >>> import grain_jax as grain
      >>> class Backwards:
      ...     def __len__(self):
      ...         return 3
      ...     def __getitem__(self, position):
      ...         return grain.RecordMetadata(index=position, record_key=2 - position)
      >>> list(grain.DataLoader(data_source=["a", "b", "c"], sampler=Backwards()))
      ['c', 'b', 'a']
    """

    def __getitem__(self, index: int) -> RecordMetadata:
        """Returns which record stands at position `index`, counted from 0 over all epochs.

        Raises `IndexError` beyond the end, if there is one.
        """


class SequentialSampler:
    """Reads the records one after the other, once.

    With `shard_options` shard s of S takes positions s, s + S, and so on.

    Args:
      num_records: how many records there are.
      shard_options: which shard this process is.
      seed: of the generators for random steps, 0 to 2**32 - 1. None where there are none.

    >>> SequentialSampler(10)[3].record_key
    3
    """

    @notices.constructing("sampler")
    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008 - frozen, and shown in signatures
        seed: int | None = None,
    ) -> None:
        self._num_records = check_count(
            "num_records", num_records, minimum=1, hint=_NOTHING_TO_READ
        )
        self._shard_options = _checked_shard(shard_options, self._num_records)
        self._seed = None if seed is None else check_seed(seed)
        if self._shard_options.drop_remainder:
            count = self._shard_options.shard_count
            self._end = self._num_records // count * count
        else:
            self._end = self._num_records

    @property
    def num_records(self) -> int:
        """How many records there are, over all shards."""
        return self._num_records

    @property
    def shard_options(self) -> ShardOptions:
        """Which shard this process is."""
        return self._shard_options

    @property
    def seed(self) -> int | None:
        """The seed of the generators for random steps."""
        return self._seed

    @property
    def length(self) -> int:
        """How many positions are this shard's.

        They are shard_index, shard_index + shard_count, shard_index + 2 * shard_count, …
        """
        start, stop = even_split(self._end, self._shard_options)
        return stop - start

    def __len__(self) -> int:
        """How many positions there are, over all shards."""
        return self._end

    def __getitem__(self, index: int) -> RecordMetadata:
        index = _checked_index(index, self._end)
        return RecordMetadata(index=index, record_key=index, rng=_rng(self._seed, index))

    def keys(self, positions: npt.ArrayLike) -> Int64s:
        """The record keys at an array of positions, as int64."""
        return _checked_positions(positions, self._end).copy()

    def __repr__(self) -> str:
        return (
            f"SequentialSampler(num_records={self._num_records}, "
            f"shard_options={self._shard_options!r})"
        )


class IndexSampler:
    """Reads the records for a number of epochs, shuffled anew in each one if asked.

    With `shard_options` each shard owns a contiguous block of the records and shuffles inside it.
    Positions count over all shards: shard s of S takes s, s + S, and so on, and sees each record of
    its block once in every epoch.

    Args:
      num_records: how many records there are.
      shard_options: which shard this process is.
      shuffle: whether the order is random. It depends on the seed and the epoch alone, and is that
        of Grain 0.2.18.
      num_epochs: how often the records are read; None means without end.
      seed: of the order and of the generators for random steps, 0 to 2**32 - 1. Needed to shuffle.

    >>> sampler = IndexSampler(4, shuffle=True, seed=0, num_epochs=2)
    >>> sorted(sampler[position].record_key for position in range(4, 8))
    [0, 1, 2, 3]
    """

    @notices.constructing("sampler")
    def __init__(
        self,
        num_records: int,
        shard_options: ShardOptions = NoSharding(),  # noqa: B008 - frozen, and shown in signatures
        shuffle: bool = False,
        num_epochs: int | None = None,
        seed: int | None = None,
    ) -> None:
        self._num_records = check_count(
            "num_records", num_records, minimum=1, hint=_NOTHING_TO_READ
        )
        self._shard_options = _checked_shard(shard_options, self._num_records)
        self._shuffle = bool(shuffle)
        self._num_epochs = num_epochs
        if num_epochs is not None:
            self._num_epochs = check_count(
                "num_epochs", num_epochs, minimum=1, hint="Write None to read without end."
            )
        self._seed = None if seed is None else check_seed(seed)
        if self._shuffle and self._seed is None:
            raise InvalidValueError(
                "shuffle=True needs a seed, so that the order can be had again. Write, for "
                "instance, seed=0."
            )
        self._block = even_split(self._num_records, self._shard_options)

    @property
    def num_records(self) -> int:
        """How many records an epoch has, over all shards."""
        return self._num_records

    @property
    def shard_options(self) -> ShardOptions:
        """Which shard this process is."""
        return self._shard_options

    @property
    def shuffle(self) -> bool:
        """Whether the order is random."""
        return self._shuffle

    @property
    def num_epochs(self) -> int | None:
        """How often the records are read; None means without end."""
        return self._num_epochs

    @property
    def seed(self) -> int | None:
        """The seed of the order and of the generators for random steps."""
        return self._seed

    @property
    def length(self) -> int | None:
        """How many positions are this shard's, over all epochs; None means without end.

        They are shard_index, shard_index + shard_count, shard_index + 2 * shard_count, …
        """
        if self._num_epochs is None:
            return None
        start, stop = self._block
        return (stop - start) * self._num_epochs

    def __len__(self) -> int:
        """How many records are read in all, over all shards and epochs."""
        if self._num_epochs is None:
            raise InvalidTypeError("A sampler without num_epochs has no end, and so no length.")
        records = self._num_records
        if self._shard_options.drop_remainder:
            records -= records % self._shard_options.shard_count
        return records * self._num_epochs

    def __getitem__(self, index: int) -> RecordMetadata:
        index = _checked_index(index, self._end)
        start, stop = self._block
        size = stop - start
        epoch, inside = divmod(index // self._shard_options.shard_count, size)
        if self._shuffle:
            assert self._seed is not None
            inside = permute_one(inside, size, self._seed + epoch)
        return RecordMetadata(index, record_key=start + inside, rng=_rng(self._seed, index))

    def keys(self, positions: npt.ArrayLike) -> Int64s:
        """The record keys at an array of positions, as int64."""
        found = _checked_positions(positions, self._end)
        start, stop = self._block
        found = found // self._shard_options.shard_count
        if self._shuffle:
            assert self._seed is not None
            return start + permute_epochs(found, stop - start, self._seed)
        return start + found % (stop - start)

    @property
    def _end(self) -> int:
        """The first position after those of this shard; any below counts as part of it."""
        length = self.length
        return _LAST_POSITION if length is None else length * self._shard_options.shard_count

    def __repr__(self) -> str:
        return (
            f"IndexSampler(num_records={self._num_records}, shard_options={self._shard_options!r}, "
            f"shuffle={self._shuffle}, num_epochs={self._num_epochs}, seed={self._seed})"
        )


def _rng(seed: int | None, position: int) -> np.random.Generator | None:
    return None if seed is None else generator(seed, position)


def _checked_shard(options: Any, num_records: int) -> ShardOptions:
    if not isinstance(options, ShardOptions):
        raise InvalidTypeError(
            f"shard_options must be a ShardOptions; got {options!r} of type "
            f"{type(options).__name__}. Write NoSharding() to read everything."
        )
    # On every shard alike: a process that failed alone would let the others wait.
    if num_records < options.shard_count:
        raise InvalidValueError(
            f"{options!r} leaves nothing of num_records={num_records} for some shards. Use at most "
            f"{num_records} shards."
        )
    return options


def _checked_index(index: Any, end: int) -> int:
    try:
        number = operator.index(index)
    except TypeError:
        raise InvalidTypeError(
            f"A sampler is asked for a whole number; got {index!r} of type {type(index).__name__}."
        ) from None
    if 0 <= number < end:
        return number
    raise OutOfRangeError(f"The sampler has positions 0 to {end - 1}; got {number}.")


def _checked_positions(positions: npt.ArrayLike, end: int) -> Int64s:
    found = np.asarray(positions, dtype=np.int64)
    if found.size and (found.min() < 0 or found.max() >= end):
        raise OutOfRangeError(
            f"The sampler has positions 0 to {end - 1}; got {found.min()} to {found.max()}."
        )
    return found
