"""DataLoader: a source, a sampler and operations, read as one stream."""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal

from grain_jax._algebra import access, index_maps, operations, samplers, sources, steps, transforms
from grain_jax._datasets import iterators, nodes, roots, sampled
from grain_jax._datasets.epochs import Epochs
from grain_jax._datasets.plan import Plan
from grain_jax._datasets.stages import Stage
from grain_jax._execution import explaining, virtual, workers
from grain_jax._execution.layout import Layout
from grain_jax._execution.serial import Own
from grain_jax._product import sampling
from grain_jax._product.loader_iterator import DataLoaderIterator, Description
from grain_jax._values import closing, errors, forks, notices, options, sharding

__all__ = ["DataLoader", "DataLoaderIterator", "load"]


class DataLoader(closing.Closing):
    """Loads and transforms records; iterating gives a `DataLoaderIterator`.

    The stream depends on source, sampler, operations, shard and lanes, and on nothing else:
    `worker_count=0` defines it.

    Args:
      data_source: anything with `__len__` and `__getitem__`; see `sources.RandomAccessDataSource`.
      sampler: in which order records are read.
      operations: transformations, and legacy operations, in order.
      worker_count: worker processes; 0 works in this process, None takes the usable cores, up to
        16.
      worker_buffer_size: finished elements to keep ready per worker.
      shard_options: deals the sampler's order out over processes: shard s of S takes positions s,
        s + S, …. None leaves sharding to the sampler.
      virtual_shards: V shards that each count for themselves, a part of them in every process: a
        stream behind a filter or a flat-map, begun on any number of processes that divides V, goes
        on with any other such number. None means one in each process of the run that begins.
      read_options: how records are read; None decides by what the first reads cost.
      enable_profiling: measures where the time goes: `stats()` of the iterators says so, and, once
        a minute, the log of `grain_jax`, at level INFO.
      lanes: L interleaved streams, each batched on its own, fix the order as L workers of Grain do;
        None means one, or what a restored state says.
      strict: whether a state of another pipeline is refused; otherwise it is warned of.
      on_error: what an exception in user code does: "raise", or an `ErrorPolicy`.
      max_worker_restarts: how often one task may lose its worker before that is an error.
      stall_timeout: seconds that workers may be silent before that is an error; None waits on.
      worker_init_fn: called as `worker_init_fn(index, count)` in every worker before the pipeline
        is loaded there; not with 0 workers. See `MultiprocessingOptions`.
      ignore_globals: modules, and variables and functions of modules, that may differ between this
        process and workers, as `"config"` and `"config.DEBUG"`; a difference in others that the
        pipeline's code reads is a `DriftError` before the first element. Random generators that
        may be held, too; see `MultiprocessingOptions`.

    Raises:
      InvalidValueError, InvalidTypeError: for what cannot work, naming it.

    Example:
      >>> import grain_jax as grain
      >>> loader = grain.DataLoader(
      ...     data_source=[10, 20, 30, 40],
      ...     sampler=grain.samplers.IndexSampler(4, num_epochs=1),
      ...     operations=[grain.transforms.Batch(2)],
      ... )
      >>> [batch.tolist() for batch in loader], len(loader)
      ([[10, 20], [30, 40]], 2)
    """

    def __init__(
        self,
        *,
        data_source: Any,
        sampler: samplers.Sampler,
        operations: Sequence[Any] = (),
        worker_count: int | None = 0,
        worker_buffer_size: int = 1,
        shard_options: sharding.ShardOptions | None = None,
        virtual_shards: int | None = None,
        read_options: options.ReadOptions | None = None,
        enable_profiling: bool = False,
        lanes: int | None = None,
        strict: bool = True,
        on_error: Literal["raise"] | options.ErrorPolicy = "raise",
        max_worker_restarts: int = 3,
        stall_timeout: float | None = None,
        worker_init_fn: Callable[[int, int], None] | None = None,
        ignore_globals: Sequence[str] = (),
    ) -> None:
        with notices.constructing("loader"):
            self._options = options.MultiprocessingOptions(
                num_workers=options.check_worker_count("worker_count", worker_count),
                per_worker_buffer_size=options.check_count(
                    "worker_buffer_size", worker_buffer_size, minimum=1
                ),
                enable_profiling=enable_profiling,
                lanes=lanes,
                strict=strict,
                on_error=on_error,
                max_worker_restarts=max_worker_restarts,
                stall_timeout=stall_timeout,
                worker_init_fn=worker_init_fn,
                ignore_globals=ignore_globals,
            )
            if read_options is not None and not isinstance(read_options, options.ReadOptions):
                raise errors.InvalidTypeError(
                    f"read_options must be a ReadOptions or None, got {read_options!r}. Write "
                    "grain_jax.ReadOptions(num_threads=...)."
                )
            self._sampler = sampler
            self._source = source = sources.adapt(data_source)
            sources.check_not_empty(source)
            sampling.check_sampler(sampler, source)
            layout = sampling.layout_of(sampler, shard_options, lanes or 1)
            todo, tail = _steps(operations, sampler)
            root = _root(source, sampler, read_options)
            self._plan = Plan(
                root, todo, seed=sampling.seed_of(sampler) or 0, skips=self._options.skips
            )
            branch = None if tail else self._plan.branch()
            self._layout = virtual.dealt(layout, virtual_shards, branch)
        self._tail = tail
        self._iterators: weakref.WeakSet[DataLoaderIterator] = weakref.WeakSet()
        self._renew()
        forks.renew(self)
        self._keeper = workers.Keeper()
        weakref.finalize(self, self._keeper.close)
        self._closed = False

    def _renew(self) -> None:
        self._lock = threading.RLock()  # of the iterators, and of whether there may be more

    @property
    def multiprocessing_options(self) -> options.MultiprocessingOptions:
        """Number of workers and buffers, as they were resolved."""
        return self._options

    @notices.constructing("iterator")
    def __iter__(self) -> DataLoaderIterator:
        return DataLoaderIterator(self, None)

    def __len__(self) -> int:
        """The number of elements that one `iter()` yields on this shard.

        Raises:
          InvalidTypeError: where nobody can know it.
        """
        return self._layout.length_of("loader", self._stages())

    def __bool__(self) -> bool:
        """False only for a loader that is known to yield nothing."""
        return self._layout.elements(self._stages()) != 0

    @notices.constructing("iterator")
    def epochs(self, start: int = 0) -> Epochs[DataLoaderIterator]:
        """Yields one iterator per epoch: each has the order of its epoch, and ends with it.

        Args:
          start: the first epoch, from 0. What is returned has a state, too, of the epoch and the
            place in it: `CheckpointSave(epochs)`.

        Raises:
          InvalidTypeError: for a sampler of the user's own, which does not say what an epoch is.
          InvalidValueError: if an epoch by itself is too short to yield anything.
        """
        options.check_count("start", start, minimum=0)
        records, layout, count = sampling.epoch_layouts(self._sampler, self._layout)
        self._check_epoch(records)
        return Epochs(lambda number: self._iterate(layout(number)), start, count)

    def explain(self, *, sample: bool = False) -> str:
        """Returns the pipeline as a tree, what is done last on top; see `IterDataset.explain`.

        Args:
          sample: whether to make a first element after each step whose result nothing describes,
            which runs the user's code.
        """
        about = self._describe()
        return explaining.explain(
            about.plan, about.setup, about.layout, name="loader", sample=sample, tail=about.tail
        )

    def close(self) -> None:
        """Ends all iterators of this loader, with their workers, and closes the source; idempotent.

        The source's `close()` is called or, where it has none, its `__exit__`. The end of an
        iterator closes only the copies that its workers had. Where several loaders share a source,
        close it yourself, after all of them have ended.
        """
        with self._lock:
            first, self._closed = not self._closed, True
            iterators = list(self._iterators)
        for iterator in iterators:
            iterator.close()
        self._keeper.close()
        if first:
            self._source.close()

    def _stages(self) -> list[Stage]:
        """Returns the stages that count elements; none where an operation makes it unknown."""
        return [] if self._tail else self._plan.stages()

    def _check_epoch(self, records: int) -> None:
        """Refuses epochs of so many records that yield nothing, on any shard of the loader."""
        # The first shard has most of what does not divide.
        shard = (0, self._layout.shard[1])
        epoch = dataclasses.replace(self._layout, start=0, length=records, shard=shard)
        stages = self._stages()
        if epoch.elements(stages) == 0:
            count = shard[1] * epoch.lanes
            several = f", dealt out over {count} shards or lanes" if count > 1 else ""
            raise errors.InvalidValueError(
                f"an epoch by itself yields nothing: drop_remainder drops all of its {records} "
                f"records{several}, which do not fill one batch of {stages[0].unit}. Use a "
                "smaller batch or drop_remainder=False; or iterate over the loader instead, where "
                "batches reach from one epoch into the next."
            )

    def _iterate(self, layout: Layout) -> DataLoaderIterator:
        iterator = DataLoaderIterator(self, None)
        iterator._begin_at(layout)
        return iterator

    def _remember(self, iterator: DataLoaderIterator) -> None:
        """Takes note of an iterator, for `close`."""
        with self._lock:
            self._check_open()
            if self._options.num_workers:
                self._keeper.keep()
            self._iterators.add(iterator)

    def _check_open(self) -> None:
        if self._closed:
            raise errors.ClosedError("this loader is closed. Build a new one to iterate again.")

    def _describe(self) -> Description:
        """Returns what an iterator needs."""
        self._check_open()
        return Description(
            plan=self._plan,
            setup=iterators.Setup(self._options),
            layout=self._layout,
            tail=self._tail,
            seed=sampling.seed_of(self._sampler),
            sampler=type(self._sampler).__name__,
            sampler_text=repr(self._sampler)
            if isinstance(self._sampler, sampling.BUILT_IN)
            else None,
        )

    def _batch_rows(self) -> tuple[tuple[int, ...], int | None] | None:
        """Returns rows of a full batch and of the last one here; see `Layout.batch_rows`."""
        return None if self._tail else self._layout.batch_rows(self._plan, self._layout.start)


@notices.constructing("loader")
def load(
    source: Any,
    *,
    num_epochs: int | None = None,
    shuffle: bool = False,
    seed: int | None = None,
    shard_options: sharding.ShardOptions = sharding.NoSharding(),  # noqa: B008 - frozen
    virtual_shards: int | None = None,
    transformations: transforms.Transformations = (),
    batch_size: int | None = None,
    drop_remainder: bool = False,
    worker_count: int | None = 0,
    read_options: options.ReadOptions | None = None,
    worker_buffer_size: int = 1,
    lanes: int | None = None,
    strict: bool = True,
    on_error: Literal["raise"] | options.ErrorPolicy = "raise",
    max_worker_restarts: int = 3,
    stall_timeout: float | None = None,
    worker_init_fn: Callable[[int, int], None] | None = None,
    ignore_globals: Sequence[str] = (),
) -> DataLoader:
    """Returns a loader for a simple pipeline on one source.

    Args:
      source: see `DataLoader`.
      num_epochs: how often to read the source; None without an end.
      shuffle: whether each epoch has a random order of its own; needs `seed`.
      seed: for order and random transformations, 0 to 2**32 - 1.
      shard_options: which part of the order this process takes.
      virtual_shards: shards that count for themselves; see `DataLoader`.
      transformations: what is done with every record, in order.
      batch_size: elements per batch, after the transformations; None leaves single elements.
      drop_remainder: whether an incomplete last batch is dropped.
      worker_count: worker processes; see `DataLoader`.
      read_options: how records are read.
      worker_buffer_size: finished elements to keep ready per worker.
      lanes: interleaved streams that fix the order; see `DataLoader`, and so for those below.
      strict: whether a state of another pipeline is refused.
      on_error: what an exception in user code does.
      max_worker_restarts: how often one task may lose its worker.
      stall_timeout: seconds that workers may be silent.
      worker_init_fn: called in every worker before anything is loaded.
      ignore_globals: modules and variables of modules that may differ in workers.

    Example:
      >>> import grain_jax as grain
      >>> loader = load([1, 2, 3, 4, 5], num_epochs=1, batch_size=2, worker_count=0)
      >>> [batch.tolist() for batch in loader]
      [[1, 2], [3, 4], [5]]
    """
    adapted = sources.adapt(source)
    sources.check_not_empty(adapted)
    _check_list("transformations", transformations)
    todo = list(transformations)
    if batch_size is not None:
        todo.append(transforms.Batch(batch_size, drop_remainder))
    sampler = samplers.IndexSampler(
        adapted.length, shuffle=shuffle, num_epochs=num_epochs, seed=seed
    )
    return DataLoader(
        data_source=adapted,
        sampler=sampler,
        operations=todo,
        worker_count=worker_count,
        shard_options=shard_options,
        virtual_shards=virtual_shards,
        read_options=read_options,
        worker_buffer_size=worker_buffer_size,
        lanes=lanes,
        strict=strict,
        on_error=on_error,
        max_worker_restarts=max_worker_restarts,
        stall_timeout=stall_timeout,
        worker_init_fn=worker_init_fn,
        ignore_globals=ignore_globals,
    )


def _root(
    source: access.Source, sampler: Any, read_options: options.ReadOptions | None
) -> roots.NodeRoot:
    seed = sampling.seed_of(sampler) or 0
    # A subclass may answer in any way.
    if type(sampler) in sampling.BUILT_IN:
        node = nodes.IndexNode(nodes.SourceNode(source), index_maps.Sample(sampler))
        return roots.NodeRoot(node, read_options, seed=seed, by_position=True)
    return sampled.SampledRoot(source, sampler, read_options, seed)


def _check_list(name: str, given: Any) -> None:
    if not isinstance(given, Sequence) or isinstance(given, (str, bytes)):
        hint = f"[{given!r}]" if given is not None else "()"
        raise errors.InvalidTypeError(
            f"{name} must be a list of transformations, got {given!r}. Write {hint}."
        )


def _steps(todo: Sequence[Any], sampler: Any) -> tuple[list[steps.Step], list[Any]]:
    """Returns the steps, and the serial steps from the first operation of the user's own on."""
    _check_list("operations", todo)
    seed = sampling.seed_of(sampler)
    before: list[steps.Step] = []
    tail: list[Any] = []
    randoms = 0
    for number, one in enumerate(todo, 1):
        step = operations.step_of(one, number=number, random_number=randoms, seed=seed)
        if step is None:
            name = getattr(one, "__name__", type(one).__name__)
            tail.append(Own(one, f"step {number}: operation({name})"))
            continue
        if step.is_random:
            randoms += 1
            sampling.check_random(step.title, sampler)
        (tail if tail else before).append(step)
    return before, tail
