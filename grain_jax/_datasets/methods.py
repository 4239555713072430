"""Methods of datasets that are operators: each makes what a class in `operators` is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from grain_jax import _lazy
from grain_jax._algebra import pieces
from grain_jax._datasets import epochs, iterators, lineage, operators, sequences, shards
from grain_jax._values import errors, options, seeds, sharding

if TYPE_CHECKING:
    from grain_jax._datasets.iter_dataset import IterDataset
    from grain_jax._datasets.map_dataset import MapDataset

__all__ = ["MapMethods", "StreamMethods", "random_seed", "seed_for"]

Self = TypeVar("Self", bound="StreamMethods")
M = TypeVar("M", bound="MapMethods")


class StreamMethods(sequences.StreamSequences):
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
        result: IterDataset[tuple[Any, ...]] = operators.made(
            "zip:ZipIterDataset", datasets, strict=strict
        )
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
        result: IterDataset[Any] = operators.made(
            "interleave:InterleaveIterDataset", datasets, cycle_length=cycle_length
        )
        return result

    def cache(self: Self) -> Self:
        """Returns the stream, whose elements are kept in memory for the `repeat` behind it."""
        result: Self = operators.made("cache:CacheIterDataset", self)
        return result

    def explain(self, *, sample: bool = False) -> str:
        """Returns the pipeline as a tree, what is done last on top.

        It says what each step makes, where it runs, what sharding does, and what a state holds.

        Args:
          sample: whether to make a first element after each step whose result nothing describes,
            which runs the user's code.

        Example:
          >>> import grain_jax as grain
          >>> ds = grain.MapDataset.range(8).to_iter_dataset().filter(lambda x: x > 2).batch(2)
          >>> ds.explain()
          IterDataset: elements are counted as they come
          └─ step 2: batch(2) → int64[?]  [trainer]
             └─ step 1: filter(<lambda>) → int64[]  [trainer]
                └─ source: range, 8 records → int64[]  [trainer]
          sharding: none: each process that runs this has all of it
          state: a place in the stream; any number of workers, the same number of processes
        """
        of_dataset = _lazy.fetch("grain_jax._execution.explaining:of_dataset")
        found: str = of_dataset(self, sample=sample)
        return found

    def epochs(self, start: int = 0) -> epochs.Epochs[iterators.DatasetIterator[Any]]:
        """Yields one iterator per epoch: each has the order of its epoch, and ends with it.

        There are as many as `repeat` says of the MapDataset that the stream begins with, and one
        without it. No batch reaches from one into the next.

        Args:
          start: the first epoch, from 0. What is returned has a state, too, of the epoch and the
            place in it: see `Epochs`.

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

        def make(number: int) -> iterators.DatasetIterator[Any]:
            return self._run((number * length, (number + 1) * length))

        return epochs.Epochs(make, start, count)

    def limit(self: Self, count: int) -> Self:
        """Returns the stream of the first `count` elements; no other is asked for."""
        result: Self = operators.made("limit:LimitIterDataset", self, count)
        return result

    def repeat(self: Self, num_epochs: int | None = None) -> Self:
        """Returns the stream over and over, in the same order; None: without an end.

        Random steps behind it draw anew in each epoch, those before it draw the same again. Where
        the stream begins with a MapDataset, `repeat` that one: its epochs have orders of their own.
        """
        result: Self = operators.made("repeat:RepeatIterDataset", self, num_epochs)
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
        result: Self = operators.made(
            "windows:WindowShuffleIterDataset", self, window_size=window_size, seed=seed
        )
        return result

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> IterDataset[Any]:
        """Returns batches of `batch_size` rows, of the rows of a stream of batches of any sizes."""
        result: IterDataset[Any] = operators.made(
            "rebatch:RebatchIterDataset", self, batch_size, drop_remainder
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


class MapMethods(sequences.Sequences):
    """What reorders random-access datasets."""

    _seed: int | None
    _depth: int
    to_iter_dataset: Callable[[], Any]

    def explain(self, *, sample: bool = False) -> str:
        """Returns the pipeline as a tree; see `IterDataset.explain`."""
        found: str = self.to_iter_dataset().explain(sample=sample)
        return found

    def epochs(self, start: int = 0) -> epochs.Epochs[iterators.DatasetIterator[Any]]:
        """Yields one iterator per epoch; see `IterDataset.epochs`."""
        found: epochs.Epochs[iterators.DatasetIterator[Any]] = self.to_iter_dataset().epochs(start)
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
        result: IterDataset[Any] = operators.made(
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
        result: M = operators.made(
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
    return seeds.derive_seed(random_seed(what, None, seed), number)


def random_seed(what: str, given: int | None, seed: int | None) -> int:
    """Returns the seed of a random step: the one that is given, or else that of the dataset.

    Args:
      what: the operator, for error texts.
      given: what the user gave; None for nothing.
      seed: that of the dataset; None if it has none.

    Raises:
      InvalidValueError: if there is neither.
    """
    chosen = options.check_any_seed(given) if given is not None else seed
    if chosen is None:
        raise errors.InvalidValueError(
            f"{what} needs a seed. Write `ds.seed(...)` before it, or pass seed=...."
        )
    return chosen
