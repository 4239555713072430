"""Methods of datasets that are operators: each makes what a class in `operators` is."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from grain_jax import _lazy
from grain_jax._algebra import padding as pads
from grain_jax._algebra import pieces
from grain_jax._datasets import fluent, iterators, lineage, shards
from grain_jax._values import errors, options, seeds, sharding

if TYPE_CHECKING:
    from grain_jax._datasets.iter_dataset import IterDataset
    from grain_jax._datasets.map_dataset import MapDataset

__all__ = ["MapMethods", "StreamMethods", "seed_for"]

_OPERATORS = "grain_jax._datasets.operators"

A = TypeVar("A", bound="Methods")
Self = TypeVar("Self", bound="StreamMethods")
M = TypeVar("M", bound="MapMethods")


class Methods(fluent.Fluent):
    """What both kinds of datasets have."""

    def pad(
        self: A,
        lengths: Mapping[str, int],
        *,
        padding: Any = 0,
        truncate: bool = False,
        mask: bool = True,
    ) -> A:
        """Returns the dataset with features padded to one length each, and masks of what is real.

        Elements are dicts; a feature `x` becomes an array of shape (length, ...), and `x_mask`, of
        bools and shape (length,), is added. All other features stay as they are.

        Args:
          lengths: the length of each feature that is padded.
          padding: the value behind a sequence: one, or a dict with one for each feature.
          truncate: whether longer sequences are cut; otherwise they are an error.
          mask: whether masks are added.

        Raises:
          InvalidValueError: if a length is below 1; and as elements come, for a sequence that is
            longer, a feature that is missing, or a padding that its dtype does not hold.

        Example:
          >>> import grain_jax as grain, numpy as np
          >>> ds = grain.MapDataset.source([{"x": np.array([5, 6])}]).pad({"x": 3})
          >>> ds[0]["x"], ds[0]["x_mask"]
          (array([5, 6, 0]), array([ True,  True, False]))
        """
        function = pads.padding_of(lengths, padding, truncate, mask)
        result: A = self.map(function)  # type: ignore[attr-defined]
        return result


class StreamMethods(Methods):
    """What counts, merges, reorders or packs the elements of streams."""

    _description: Any
    _run: Callable[[tuple[int, int] | None], iterators.DatasetIterator[Any]]
    _then: Any

    def shard(
        self: Self, shard_options: sharding.ShardOptions, *, virtual_shards: int | None = None
    ) -> Self:
        """Returns this process's part of the stream, wherever in the pipeline this is written.

        Of every source that is read, shard s of S takes the records at positions s, s + S, …; all
        else each shard does for itself, up to a last `batch`, which has equal shares of those
        that a process joins. Its states restore on other numbers of processes: docs/multihost.md.

        Args:
          shard_options: which shard this process is, and of how many.
          virtual_shards: V shards, a part of them in every process: the run may begin on any number
            of processes that divides V, and go on with any other. None means one in each process.

        Raises:
          InvalidTypeError, InvalidValueError: here for other arguments; where iteration begins, for
            what cannot be dealt out.

        Example:
          >>> import grain_jax as grain
          >>> odd = grain.MapDataset.range(12).to_iter_dataset().filter(lambda x: x % 3 > 0)
          >>> one = odd.batch(2).shard(grain.sharding.ShardOptions(1, 2))
          >>> [batch.tolist() for batch in one]
          [[1, 5], [7, 11]]
        """
        if self._description.shards is not None:
            raise errors.InvalidValueError(
                f"{self!r} is dealt out over shards already. Write shard once."
            )
        chosen = shards.checked(shard_options, virtual_shards)
        own = f"{shard_options.shard_index}, {shard_options.shard_count}"
        more = "" if virtual_shards is None else f", virtual_shards={virtual_shards}"
        result: Self = self._then(f"shard({own}{more})", shards=chosen)
        return result

    @staticmethod
    def zip(
        datasets: Sequence[IterDataset[Any]], *, strict: bool = True
    ) -> IterDataset[tuple[Any, ...]]:
        """Returns tuples of one element of each stream.

        Args:
          datasets: the streams.
          strict: whether a stream of another length than the others is an error, behind the last
            tuple; False ends with the shortest one.

        Example:
          >>> import grain_jax as grain
          >>> odd = grain.MapDataset.range(6).to_iter_dataset().filter(lambda x: x % 2)
          >>> list(grain.IterDataset.zip([odd, odd.map(lambda x: 10 * x)]))
          [(1, 10), (3, 30), (5, 50)]
        """
        result: IterDataset[tuple[Any, ...]] = _made("zip:ZipIterDataset", datasets, strict=strict)
        return result

    @staticmethod
    def interleave(
        datasets: Sequence[IterDataset[Any] | MapDataset[Any]] | MapDataset[Any],
        *,
        cycle_length: int,
    ) -> IterDataset[Any]:
        """Returns elements of datasets in turn, of which `cycle_length` are open at a time.

        Args:
          datasets: the datasets, or a `MapDataset` of them.
          cycle_length: 1 for one after the other.
        """
        result: IterDataset[Any] = _made(
            "interleave:InterleaveIterDataset", datasets, cycle_length=cycle_length
        )
        return result

    def cache(self: Self) -> Self:
        """Returns the stream, whose elements are kept in memory for the `repeat` behind it."""
        result: Self = _made("cache:CacheIterDataset", self)
        return result

    def epochs(self, start: int = 0) -> Iterator[iterators.DatasetIterator[Any]]:
        """Yields one iterator per epoch: each has the order of its epoch, and ends with it.

        There are as many as `repeat` says of the MapDataset that the stream begins with, and one
        without it. No batch reaches from one into the next.

        Args:
          start: the first epoch, from 0; to resume inside one, begin there and set its state.

        Raises:
          InvalidValueError: where epochs cannot be told apart; and as one begins, if it is too
            short to yield anything.

        Example:
          >>> import grain_jax as grain
          >>> ds = grain.MapDataset.range(3).repeat(2).to_iter_dataset().batch(2)
          >>> [[batch.tolist() for batch in epoch] for epoch in ds.epochs()]
          [[[0, 1], [2]], [[0, 1], [2]]]
        """
        start = options.check_count("start", start, minimum=0)
        node = getattr(self._description.root, "node", None)
        if node is None:
            raise errors.InvalidValueError(
                "epochs() needs a stream that begins with one MapDataset, and this one is "
                f"{self!r}. Iterate over it; its parts may be repeated."
            )
        length, count = lineage.epochs(node)
        numbers = itertools.count(start) if count is None else range(start, count)
        return (self._run((number * length, (number + 1) * length)) for number in numbers)

    def limit(self: Self, count: int) -> Self:
        """Returns the stream of the first `count` elements; no other is asked for."""
        result: Self = _made("limit:LimitIterDataset", self, count)
        return result

    def repeat(self: Self, num_epochs: int | None = None) -> Self:
        """Returns the stream over and over, in the same order; None: without an end.

        Random steps behind it draw anew in each epoch, those before it draw the same again. Where
        the stream begins with a MapDataset, `repeat` that one: its epochs have orders of their own.
        """
        result: Self = _made("repeat:RepeatIterDataset", self, num_epochs)
        return result

    def window_shuffle(self: Self, window_size: int, *, seed: int | None = None) -> Self:
        """Returns the stream in windows of neighbours, each in an order of its own.

        Args:
          window_size: elements of a window, all of which are held at once.
          seed: 32 bits; None takes one that follows from the seed of `seed()`.

        Raises:
          InvalidValueError: if there is no seed.
        """
        about = self._description
        seed = seed_for("window_shuffle", seed, about.seed, about.numbered + 1)
        result: Self = _made(
            "windows:WindowShuffleIterDataset", self, window_size=window_size, seed=seed
        )
        return result

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> IterDataset[Any]:
        """Returns batches of `batch_size` rows, of the rows of a stream of batches of any sizes."""
        result: IterDataset[Any] = _made(
            "rebatch:RebatchIterDataset", self, batch_size, drop_remainder
        )
        return result

    def bucket_by_length(
        self,
        length: str | Callable[[Any], int],
        boundaries: Sequence[int],
        batch_sizes: int | Sequence[int],
        *,
        features: Sequence[str] | None = None,
        padding: Any = 0,
        mask: bool = True,
        window: int = 4096,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> IterDataset[Any]:
        """Returns batches of elements of similar length.

        Bucket k has lengths up to `boundaries[k]`, and above those of the one before. A batch goes
        out when its bucket has `batch_sizes[k]` elements, in the order in which they came. Features
        that are padded are as long as the boundary says, of shape (rows, boundary, ...), and get a
        mask `x_mask` of bools, of shape (rows, boundary); those above the last boundary are as long
        as the longest of the batch.

        No element waits for ever: with `window` later ones read, its batch goes out as it is. So do
        those that are left at the end, that with the oldest element first. With `drop_remainder`
        both are dropped, so that every batch of a bucket has one shape. A restored stream reads the
        last `window` elements again, at most.

        Args:
          length: the feature whose length counts, or a function that returns that of an element.
          boundaries: the longest length of each bucket, growing.
          batch_sizes: elements of a batch: one number, or one for each bucket, and one more for
            elements above the last boundary, which are an error otherwise.
          features: which are padded; None for the one whose length counts, if that is a name.
          padding: the value behind a sequence: one, or a dict with one for each of `features`.
          mask: whether masks are added.
          window: how many later elements an element waits for.
          drop_remainder: whether batches that are not full are dropped.
          batch_fn: makes the batch of a list of elements, instead of padding and stacking.

        Raises:
          InvalidValueError: if a number is below 1, boundaries do not grow, or there are not as
            many sizes; and as elements come, for one that is too long.

        Example:
          >>> import grain_jax as grain, numpy as np
          >>> tokens = [{"x": np.arange(1, n + 1)} for n in (2, 4, 1, 3)]
          >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
          >>> for batch in ds.bucket_by_length("x", [2, 4], batch_sizes=2):
          ...     print(batch["x"].tolist())
          [[1, 2], [1, 0]]
          [[1, 2, 3, 4], [1, 2, 3, 0]]
        """
        result: IterDataset[Any] = _made(
            "buckets:BucketIterDataset",
            self,
            length,
            boundaries,
            batch_sizes,
            features=features,
            padding=padding,
            mask=mask,
            window=window,
            drop_remainder=drop_remainder,
            batch_fn=batch_fn,
        )
        return result

    def unbatch(self) -> IterDataset[Any]:
        """Returns the rows of a stream of batches, one by one.

        A batch is a tree of arrays that have equally many rows: their first axes.

        Example:
          >>> import grain_jax as grain
          >>> ds = grain.MapDataset.range(5).to_iter_dataset().batch(2)
          >>> [int(x) for x in ds.unbatch()]
          [0, 1, 2, 3, 4]
        """
        result: IterDataset[Any] = self.flat_map(pieces.unbatch)  # type: ignore[attr-defined]
        return result

    def pack(
        self,
        length_struct: Mapping[str, int],
        *,
        num_packing_bins: int,
        fit: Literal["first", "best"] = "first",
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Mapping[str, int] | None = None,
        padding_struct: Mapping[str, Any] | None = None,
        max_sequences_per_bin: int | None = None,
    ) -> IterDataset[Any]:
        """Returns rows of sequences that stay whole, with ids of segments and positions in them.

        Args:
          length_struct: the length of each feature.
          num_packing_bins: rows that are filled side by side.
          fit: whether an element goes into the first row that has room for it, or into the fullest.
          seed: for the order in which rows go out.
          shuffle_bins: whether rows that go out together do so in a random order.
          shuffle_bins_group_by_feature: a feature of numbers that sorts such rows.
          meta_features: features without segment ids and positions.
          pack_alignment_struct: for each feature, what places are multiples of.
          padding_struct: for each feature, the value between and behind the sequences.
          max_sequences_per_bin: elements of a row at most; None for any number.

        `experimental.FirstFitPackIterDataset` says more of them.

        Example:
          >>> import grain_jax as grain, numpy as np
          >>> tokens = [{"x": np.array(x)} for x in ([1, 2, 3], [4, 5, 6, 7], [8])]
          >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
          >>> ds = ds.pack({"x": 5}, num_packing_bins=2, shuffle_bins=False)
          >>> [row["x"].tolist() for row in ds]
          [[1, 2, 3, 8, 0], [4, 5, 6, 7, 0]]
        """
        kinds = {"first": "FirstFitPackIterDataset", "best": "BestFitPackIterDataset"}
        if fit not in kinds:
            raise errors.InvalidValueError(f'fit must be "first" or "best", got {fit!r}.')
        result: IterDataset[Any] = _made(
            f"packing:{kinds[fit]}",
            self,
            length_struct=length_struct,
            num_packing_bins=num_packing_bins,
            seed=seed,
            shuffle_bins=shuffle_bins,
            shuffle_bins_group_by_feature=shuffle_bins_group_by_feature,
            meta_features=meta_features,
            pack_alignment_struct=pack_alignment_struct,
            padding_struct=padding_struct,
            max_sequences_per_bin=max_sequences_per_bin,
        )
        return result

    def concat_then_split(
        self,
        length_struct: Mapping[str, int],
        *,
        meta_features: Collection[str] = (),
        split_full_length_features: bool = True,
        bos_handling: Any = None,
        bos_features: Collection[str] = (),
        bos_token_id: int | None = None,
    ) -> IterDataset[Any]:
        """Returns rows of sequences one behind the other, cut wherever a row is full.

        Args:
          length_struct: the length of each feature.
          meta_features: features that are not cut.
          split_full_length_features: whether elements of exactly a row's length are cut as others.
          bos_handling: a `BOSHandling`: what becomes of the first token of each segment.
          bos_features: in which features.
          bos_token_id: the token that replaces it.

        `experimental.ConcatThenSplitIterDataset` says more of them.

        Example:
          >>> import grain_jax as grain, numpy as np
          >>> tokens = [{"x": np.array(x)} for x in ([1, 2, 3], [4, 5, 6, 7], [8])]
          >>> ds = grain.MapDataset.source(tokens).to_iter_dataset()
          >>> [row["x"].tolist() for row in ds.concat_then_split({"x": 4})]
          [[1, 2, 3, 4], [5, 6, 7, 8]]
        """
        result: IterDataset[Any] = _made(
            "splitting:ConcatThenSplitIterDataset",
            self,
            length_struct=length_struct,
            meta_features=meta_features,
            split_full_length_features=split_full_length_features,
            bos_features=bos_features,
            bos_token_id=bos_token_id,
            **({} if bos_handling is None else {"bos_handling": bos_handling}),
        )
        return result


class MapMethods(Methods):
    """What reorders random-access datasets."""

    _seed: int | None
    _depth: int
    to_iter_dataset: Callable[[], Any]

    def epochs(self, start: int = 0) -> Iterator[iterators.DatasetIterator[Any]]:
        """Yields one iterator per epoch; see `IterDataset.epochs`."""
        found: Iterator[iterators.DatasetIterator[Any]] = self.to_iter_dataset().epochs(start)
        return found

    def interleave(self, *, cycle_length: int) -> IterDataset[Any]:
        """Returns elements in turn of the datasets that are the elements of this one.

        Args:
          cycle_length: how many are open at a time; 1 for one after the other.

        Example:
          >>> import grain_jax as grain
          >>> parts = grain.MapDataset.source([3, 2]).map(grain.MapDataset.range)
          >>> list(parts.interleave(cycle_length=2))
          [0, 0, 1, 1, 2]
        """
        result: IterDataset[Any] = _made(
            "interleave:InterleaveIterDataset", self, cycle_length=cycle_length
        )
        return result

    def window_shuffle(self: M, window_size: int, *, seed: int | None = None) -> M:
        """Returns the dataset in windows of neighbours, each in an order of its own in each epoch.

        Args:
          window_size: elements of a window.
          seed: 32 bits; None takes one that follows from the seed of `seed()`.

        Raises:
          InvalidValueError: if there is no seed.
        """
        seed = seed_for("window_shuffle", seed, self._seed, self._depth + 1)
        result: M = _made(
            "windows:WindowShuffleMapDataset", self, window_size=window_size, seed=seed
        )
        return result


def seed_for(what: str, given: int | None, seed: int | None, number: int) -> int:
    """Returns the seed of an operator: the one that is given, or one that follows from another.

    Args:
      what: the operator, for error texts.
      given: what the user gave; None for nothing.
      seed: that of the dataset; None if it has none.
      number: which of the dataset's steps the operator is.

    Raises:
      InvalidValueError: if there is neither.
    """
    if given is not None:
        return options.check_seed(given)
    if seed is None:
        raise errors.InvalidValueError(
            f"{what} needs a seed. Write `ds.seed(...)` before it, or pass seed=...."
        )
    return seeds.derive_seed(seed, number)


def _made(name: str, *args: Any, **kwargs: Any) -> Any:
    """Returns what a class of an operator makes, which is derived from what has the method."""
    return _lazy.fetch(f"{_OPERATORS}.{name}")(*args, **kwargs)
