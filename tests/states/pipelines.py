"""The pipelines whose states are stored: each kind of iterator that has a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import grain_jax as grain
from grain_jax import transforms
from tests.states import pieces

__all__ = ["ALONE", "GRAIN", "KINDS", "KINDS_0_2", "SHARDED", "SUBSETS", "grain_loader"]

Make = Callable[..., Any]
RECORDS = 24
Batch = transforms.Batch
Shard = grain.sharding.ShardOptions


def _sampler(**settings: Any) -> grain.samplers.IndexSampler:
    return grain.samplers.IndexSampler(
        RECORDS, **{"shuffle": True, "seed": 3, "num_epochs": 2, **settings}
    )


def _loader(*operations: Any, **settings: Any) -> Make:
    """Returns what makes an iterator of a loader, with any number of workers."""
    settings = {"data_source": range(RECORDS), "sampler": _sampler(), **settings}

    def make(workers: int = 0) -> Any:
        loader = grain.DataLoader(operations=list(operations), worker_count=workers, **settings)
        return iter(loader)

    return make


def _epoch(number: int, *operations: Any) -> Make:
    """Returns what makes the iterator of one epoch."""

    def make(workers: int = 0) -> Any:
        loader = grain.DataLoader(
            data_source=range(RECORDS),
            sampler=_sampler(num_epochs=None),
            operations=list(operations),
            worker_count=workers,
        )
        return next(loader.epochs(number))

    return make


def _dataset(build: Callable[[], Any]) -> Make:
    """Returns what makes an iterator of a dataset, with any number of workers."""

    def make(workers: int = 0) -> Any:
        dataset = build()
        if workers:
            if isinstance(dataset, grain.MapDataset):
                dataset = dataset.to_iter_dataset()
            dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        return iter(dataset)

    return make


def _device(make_source: Make, **settings: Any) -> Make:
    """Returns what makes a device stage around another pipeline."""

    def make(workers: int = 0) -> Any:
        import jax

        source = make_source(workers) if workers else make_source()
        settings.setdefault("remainder", "pad")
        return grain.prefetch_to_device(source, jax.devices()[0], close_source=True, **settings)

    return make


def _device_put() -> Any:
    import jax

    dataset = grain.MapDataset.range(RECORDS).batch(5)
    return iter(grain.experimental.device_put(dataset, jax.devices()[0]))


def _ahead() -> Any:
    from grain_jax._execution.prefetch_iterator import PrefetchIterator

    return PrefetchIterator(_loader(Batch(5))(), lambda batch: batch + 1, 2)


def _elastic() -> Any:
    dataset = grain.MapDataset.range(RECORDS).seed(2).shuffle().repeat(2)
    return grain.experimental.ElasticIterator(dataset, 6, Shard(1, 3))


def _numbers(count: int = RECORDS) -> grain.MapDataset:
    return grain.MapDataset.range(count).seed(5)


KINDS: dict[str, Make] = {
    "records": _loader(),
    "batches": _loader(Batch(5)),
    "dropped remainder": _loader(Batch(7, drop_remainder=True)),
    "in order": _loader(Batch(5), sampler=_sampler(shuffle=False)),
    "sequential sampler": _loader(Batch(5), sampler=grain.samplers.SequentialSampler(RECORDS)),
    "without end": _loader(Batch(5), sampler=_sampler(num_epochs=None)),
    "load": lambda workers=0: iter(
        grain.load(
            range(RECORDS),
            num_epochs=2,
            shuffle=True,
            seed=9,
            transformations=[pieces.Add(), pieces.Draw()],
            batch_size=4,
            worker_count=workers,
        )
    ),
    "maps": _loader(pieces.Add(), pieces.AddIndex(), Batch(5)),
    "random maps": _loader(pieces.Draw(), Batch(5), pieces.Draw()),
    "draws from the process": _loader(pieces.DrawGlobally()),
    "a shard of the loader": _loader(Batch(3), shard_options=Shard(1, 3)),
    "a shard of the sampler": _loader(
        Batch(3), sampler=_sampler(shard_options=Shard(1, 3, drop_remainder=True))
    ),
    "a filter": _loader(pieces.Odd()),
    "a filter before a batch": _loader(pieces.Odd(), Batch(4), pieces.Draw()),
    "a filter before a batch, a shard": _loader(pieces.Odd(), Batch(2), shard_options=Shard(1, 2)),
    "a flat-map": _loader(pieces.Several(), pieces.Draw()),
    "a flat-map before a batch": _loader(pieces.Several(), Batch(4)),
    "two batches": _loader(Batch(3), Batch(2)),
    "a filter between two batches": _loader(pieces.Odd(), Batch(2), Batch(3)),
    "lanes": _loader(Batch(4), lanes=3),
    "lanes with a filter": _loader(pieces.Odd(), Batch(2), lanes=2),
    "records left out": _loader(
        pieces.EveryFifthFails(), Batch(4), on_error=grain.ErrorPolicy(skip=ValueError)
    ),
    "records left out, single": _loader(
        pieces.EveryFifthFails(), on_error=grain.ErrorPolicy(skip=ValueError)
    ),
    "absent records": _loader(Batch(4), data_source=pieces.Gaps(), sampler=_sampler()),
    "a sampler of one's own": _loader(
        pieces.Draw(), Batch(4), data_source=range(12), sampler=pieces.Keys()
    ),
    "an operation with a state": _loader(pieces.SumsWithState(), Batch(5)),
    "an operation without a state": _loader(pieces.Sums(), Batch(5)),
    "an operation, a random map behind it": _loader(pieces.SumsWithState(), pieces.Draw()),
    "an epoch": _epoch(1, Batch(5)),
    "an epoch with a filter": _epoch(2, pieces.Odd(), Batch(5)),
    "a map dataset": _dataset(_numbers),
    "a map dataset, shuffled and repeated": _dataset(lambda: _numbers().shuffle().repeat(2)),
    "a map dataset, a slice": _dataset(lambda: _numbers()[3:20:2].map(pieces.Add())),
    "a map dataset, a slice shuffled": _dataset(lambda: _numbers()[2:22].shuffle(4).repeat(2)),
    "a map dataset, batched": _dataset(
        lambda: _numbers().shuffle().random_map(pieces.Draw()).batch(5).repeat(2)
    ),
    "a map dataset, filtered": _dataset(lambda: _numbers().filter(pieces.Odd()).map(pieces.Add())),
    "a map dataset, a flat-map": _dataset(lambda: _numbers(10).flat_map(pieces.Several())),
    "a stream": _dataset(lambda: _numbers().shuffle().to_iter_dataset().batch(5)),
    "a stream, filtered": _dataset(
        lambda: _numbers().to_iter_dataset().filter(pieces.Odd()).random_map(pieces.Draw()).batch(4)
    ),
    "a stream, a flat-map": _dataset(
        lambda: _numbers(14).to_iter_dataset().flat_map(pieces.Several())
    ),
    "a stream with absent elements": _dataset(
        lambda: _numbers().filter(pieces.Odd()).to_iter_dataset(allow_nones=True)
    ),
    "a stream of one's own": lambda: iter(pieces.Own()),
    "a stream of one's own, batched": lambda: iter(pieces.Own().batch(5)),
    "an elastic iterator": _elastic,
    "read ahead": _ahead,
    "device_put": _device_put,
    "the device stage": _device(_loader(pieces.Named(), Batch(5))),
    "the device stage, remainder dropped": _device(
        _loader(pieces.Named(), Batch(5)), remainder="drop"
    ),
    "the device stage with rows": _device(_loader(pieces.Odd(), pieces.Named(), Batch(5))),
    "the device stage around a dataset": _device(
        _dataset(lambda: _numbers().shuffle().map(pieces.Named()).batch(5))
    ),
    "the device stage around one's own iterator": _device(pieces.Numbers),
    "the device stage around one's own bytes": _device(pieces.TextNumbers),
}


def _streams() -> tuple[Any, Any]:
    """Two streams, of which one has fewer elements than records."""
    odd = _numbers().to_iter_dataset().filter(pieces.Odd())
    return odd, grain.MapDataset.range(100, 130).seed(6).to_iter_dataset()


def _sequences() -> Any:
    return _numbers(20).map(pieces.Sequence()).to_iter_dataset()


_operators = grain.experimental
_LENGTH = {"tokens": 8}

# Version 0.1.0 had none of these.
KINDS_0_2 = {
    "mixed and concatenated datasets": _dataset(
        lambda: grain.MapDataset.concatenate(
            [grain.MapDataset.mix([_numbers(), _numbers(9)], weights=[2, 1]), _numbers(5)]
        ).shuffle()
    ),
    "zipped datasets": _dataset(lambda: grain.MapDataset.zip([_numbers(), _numbers().shuffle()])),
    "windows of a dataset": _dataset(
        lambda: _operators.WindowShuffleMapDataset(_numbers(), window_size=5, seed=3)
    ),
    "a mixture of streams": _dataset(
        lambda: grain.IterDataset.mix(_streams(), [1, 2]).random_map(pieces.Draw(), seed=1)
    ),
    "a mixture of streams, batched": _dataset(
        lambda: grain.IterDataset.mix(_streams(), [2, 1]).batch(4)
    ),
    "zipped streams": _dataset(lambda: _operators.ZipIterDataset(_streams(), strict=False)),
    "a stream, its first elements": _dataset(
        lambda: _operators.LimitIterDataset(_streams()[0], 7).map(pieces.Add())
    ),
    "a stream, repeated": _dataset(lambda: _operators.RepeatIterDataset(_streams()[0], 3).batch(5)),
    "a stream, in windows": _dataset(
        lambda: _operators.WindowShuffleIterDataset(_streams()[0], window_size=5, seed=4)
    ),
    "a stream, batched anew": _dataset(
        lambda: _operators.RebatchIterDataset(_streams()[0].batch(3), 5)
    ),
    "sequences, first fit": _dataset(
        lambda: _operators.FirstFitPackIterDataset(
            _sequences(), length_struct=_LENGTH, num_packing_bins=3, seed=2
        )
    ),
    "sequences, best fit, batched": _dataset(
        lambda: _operators.BestFitPackIterDataset(
            _sequences(), length_struct=_LENGTH, num_packing_bins=2
        ).batch(2)
    ),
    "sequences, cut": _dataset(
        lambda: _operators.ConcatThenSplitIterDataset(_sequences(), length_struct=_LENGTH)
    ),
}
KINDS |= KINDS_0_2

# These take no number of workers.
ALONE = {
    "a stream of one's own",
    "a stream of one's own, batched",
    "an elastic iterator",
    "read ahead",
    "device_put",
    "the device stage around one's own iterator",
    "the device stage around one's own bytes",
}


def _shards(*operations: Any, rows: int = 12, **settings: Any) -> Callable[[int], list[Any]]:
    """Returns what makes the iterators of all processes, which share out batches of 12 rows."""

    def make(count: int) -> list[Any]:
        return [
            _loader(*operations, Batch(rows // count), shard_options=Shard(s, count), **settings)()
            for s in range(count)
        ]

    return make


def _device_shards(count: int) -> list[Any]:
    return [
        _device(lambda shard=shard: shard)()
        for shard in _shards(pieces.Odd(), pieces.Named())(count)
    ]


# Makes the iterators of a number of processes; on how many the states are taken, and restored.
SHARDED: dict[str, tuple[Callable[[int], list[Any]], int, tuple[int, ...]]] = {
    "elastic": (_shards(pieces.Add()), 2, (1, 2, 3, 4)),
    "joined": (_shards(pieces.Odd()), 4, (1, 2, 4)),
    "joined, records left out": (
        _shards(pieces.EveryFifthFails(), on_error=grain.ErrorPolicy(skip=ValueError)),
        4,
        (1, 2, 4),
    ),
    "joined, a flat-map": (_shards(pieces.Several()), 2, (1, 2)),
    "joined, the device stage with rows": (_device_shards, 4, (1, 2, 4)),
}

# Part of a shuffled dataset, over several epochs. The streams stored for 0.1.0 take their part anew
# in each epoch, from all records.
SUBSETS: dict[str, Make] = {
    "the first of a shuffle": _dataset(lambda: _numbers(12).shuffle()[:8].repeat(3)),
    "the last of a shuffle": _dataset(lambda: _numbers(12).shuffle()[8:].repeat(3)),
    "every second of a shuffle": _dataset(lambda: _numbers(12).shuffle()[::2].repeat(2).batch(4)),
}


def grain_loader(library: Any, operations: Any = (), **settings: Any) -> Any:
    """A loader of Grain, or the same one of this library."""
    return library.DataLoader(
        data_source=range(RECORDS),
        sampler=library.samplers.IndexSampler(
            RECORDS, shuffle=True, seed=3, num_epochs=2, shard_options=library.sharding.NoSharding()
        ),
        operations=[make(library) for make in operations],
        **settings,
    )


def _keep(library: Any) -> Any:
    class Keep(library.transforms.Filter):  # type: ignore[misc, name-defined]
        def filter(self, element: int) -> bool:
            return element % 3 != 0

    return Keep()


def _batch(library: Any) -> Any:
    return library.transforms.Batch(4)


# Arguments of `grain_loader`; Grain's number of workers is the number of lanes here.
GRAIN: dict[str, dict[str, Any]] = {
    "records": {},
    "batches": {"operations": [_batch]},
    "filtered batches": {"operations": [_keep, _batch]},
    "batches of two workers": {"operations": [_batch], "worker_count": 2},
    "filtered batches of two workers": {"operations": [_keep, _batch], "worker_count": 2},
}
