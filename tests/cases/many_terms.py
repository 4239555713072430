"""Scenes for a job of two processes, whose stages, pipelines or positions differ, or may differ."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import grain_jax as grain

__all__ = ["SCENES"]

Scene = Callable[[int], Any]


def over(axes: Any, *shape: int) -> NamedSharding:
    """A sharding over all four devices, in one axis or two."""
    names = ("data", "model")[: len(shape) or 1]
    return NamedSharding(Mesh(np.array(jax.devices()).reshape(shape or (4,)), names), axes)


def shard(process: int, count: int = 2) -> Any:
    return grain.sharding.ShardOptions(process, count)


def loader(process: int, **more: Any) -> Any:
    """A shard of 48 numbers, two in a batch."""
    given: dict[str, Any] = {
        "source": {"x": np.arange(48)},
        "num_epochs": 1,
        "shuffle": True,
        "seed": 0,
        "batch_size": 2,
        "shard_options": shard(process),
    }
    return grain.load(**{**given, **more})


def step(iterator: Any) -> Any:
    """The numbers of this process in the next batch, or the end or an error in words."""
    try:
        batch = next(iterator)
    except StopIteration:
        return "the end"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    array = batch["x"] if isinstance(batch, dict) else batch
    rows = {str(part.index): np.asarray(part.data).ravel() for part in array.addressable_shards}
    return [int(number) for row in rows.values() for number in row]


def stages(make: Callable[[int], Any], most: int = 1) -> Scene:
    """What each process gets of the first batches of the stage that it makes."""

    def scene(process: int) -> Any:
        with make(process) as stage:
            seen = [step(stage) for _ in range(most)]
        return seen if most > 1 else seen[0]

    return scene


def put(source: Any, sharding: Any = None, **more: Any) -> Any:
    return grain.prefetch_to_device(source, sharding or over(P("data")), **more)


def arguments(**by_process: tuple[Any, Any]) -> Scene:
    """Stages whose arguments are another for each process."""

    def make(process: int) -> Any:
        more = {name: values[process] for name, values in by_process.items()}
        return put(
            iter([{"x": np.zeros((4, 4), np.int32)}] * 3), more.pop("sharding", None), **more
        )

    return stages(make)


def loaders(**by_process: tuple[Any, Any]) -> Scene:
    """Loaders whose arguments are another for each process."""
    return stages(
        lambda process: put(loader(process, **pick(by_process, process)), remainder="drop")
    )


def pick(by_process: dict[str, tuple[Any, Any]], process: int) -> dict[str, Any]:
    return {name: values[process] for name, values in by_process.items()}


class Keep(grain.transforms.Filter):
    """Keeps every record, which nobody knows before."""

    def filter(self, record: Any) -> bool:
        return True


class Same(grain.transforms.Map):
    """Changes nothing."""

    def map(self, record: Any) -> Any:
        return record


class Alike(grain.transforms.Map):
    """Changes nothing either."""

    def map(self, record: Any) -> Any:
        return record


class Backwards:
    """A sampler of one's own."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        key = self.count - 1 - index
        return grain.RecordMetadata(index, key, np.random.default_rng(index))


def built(process: int, sampler: Any) -> Any:
    """A shard of a loader with a sampler of its process."""
    return grain.DataLoader(
        data_source={"x": np.arange(48)},
        sampler=sampler,
        operations=[grain.transforms.Batch(2)],
        shard_options=shard(process),
    )


def sequential(count: int) -> Any:
    return grain.samplers.IndexSampler(count, num_epochs=1)


def epochs(process: int) -> Any:
    """Each process is in an epoch of its own."""
    return put(next(iter(loader(process, num_epochs=3).epochs(process))))


def begun(process: int) -> Any:
    """Process 1 has taken a batch before it gives the iterator away."""
    iterator = iter(loader(process))
    if process:
        next(iterator)
    return put(iterator)


def elastic(process: int, workers: int = 0) -> Any:
    return loader(process, worker_count=workers)


def filtered(process: int, workers: int = 0) -> Any:
    steps = [Keep(), grain.transforms.Batch(2)]
    return loader(process, batch_size=None, transformations=steps, worker_count=workers)


def mapped(process: int, workers: int = 0) -> Any:
    steps = [grain.transforms.Batch(2), Same()]
    return loader(process, batch_size=None, transformations=steps, worker_count=workers)


def by_sampler(process: int, workers: int = 0) -> Any:
    sampler = grain.samplers.IndexSampler(48, shard_options=shard(process), num_epochs=1)
    operations = [grain.transforms.Batch(2)]
    return grain.DataLoader(
        data_source={"x": np.arange(48)},
        sampler=sampler,
        operations=operations,
        worker_count=workers,
    )


def sliced(process: int, workers: int = 0) -> Any:
    ds = grain.MapDataset.source({"x": np.arange(48)}).seed(0).shuffle()[process::2]
    options = grain.MultiprocessingOptions(num_workers=workers)
    return ds.to_iter_dataset().batch(2).mp_prefetch(options)


class Own:
    """An iterator of one's own, with a state."""

    def __init__(self, process: int, workers: int = 0) -> None:
        self.process, self.count = process, 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.count += 1
        return {"x": np.full(2, 10 * self.count + self.process, np.int32)}

    def get_state(self) -> Any:
        return {"count": self.count}

    def set_state(self, state: Any) -> None:
        self.count = state["count"]


SOURCES: dict[str, Callable[..., Any]] = {
    "elastic": elastic,
    "filtered": filtered,
    "mapped": mapped,
    "by sampler": by_sampler,
    "sliced": sliced,
    "own": Own,
}


def positions(make: Callable[[int], Any]) -> Scene:
    """States of different steps, set on a new stage and on one in use, and then those of one."""

    def scene(process: int) -> Any:
        with put(make(process)) as stage:
            states = [stage.get_state()]
            batches = []
            for _ in range(5):
                batches.append(step(stage))
                states.append(stage.get_state())
        # As they come from a file.
        states = [s if isinstance(s, bytes) else json.loads(json.dumps(s)) for s in states]
        with put(make(process)) as stage:
            stage.set_state(states[2 + process])
            new = [step(stage), step(stage)]
            stage.set_state(states[4 - process])
            used = step(stage)
            stage.set_state(states[3])
            same = [step(stage), step(stage)]
        return {"new": new, "used": used, "same": same, "wanted": batches[3:]}

    return scene


def of_loaders(process: int) -> Any:
    """States that iterators of loaders gave, by themselves."""
    iterator = iter(loader(process))
    for _ in range(2 + process):
        next(iterator)
    with put(loader(process)) as stage:
        stage.set_state(iterator.get_state())
        return step(stage)


def dry(process: int) -> Any:
    """Streams of their own, of which that of process 0 has ended; then both from there."""
    source = {"x": 100 * process + np.arange((3, 11)[process])}
    ds = grain.load(source, num_epochs=1, batch_size=2)
    with put(ds, remainder="pad") as stage:
        for _ in range(4):
            step(stage)
        state, wanted = stage.get_state(), step(stage)
    with put(ds, remainder="pad") as stage:
        stage.set_state(state)
        return [step(stage) == wanted, step(stage), step(stage)]


def own_sources(process: int) -> Any:
    """Nothing says that these are of one order, and they are not."""
    source = {"x": 100 * process + np.arange((8, 10)[process])}
    return put(
        grain.load(source, num_epochs=1, shuffle=True, seed=process, batch_size=2), remainder="drop"
    )


def elsewhere(process: int) -> Any:
    """Of streams of their own, one begins later."""
    iterator = iter(loader(process, shard_options=grain.sharding.NoSharding()))
    for _ in range(3 * process):
        next(iterator)
    return put(iterator)


def absent(process: int) -> Any:
    """A shard that has met a record that is absent counts from there; both restore."""

    class Source:
        def __len__(self) -> int:
            return 32

        def __getitem__(self, index: int) -> Any:
            return None if index == 3 else {"x": np.int32(index)}

    with put(
        grain.load(Source(), num_epochs=1, batch_size=2, shard_options=shard(process))
    ) as stage:
        for _ in range(3):
            step(stage)
        state, wanted = stage.get_state(), step(stage)
    kind = json.loads(state)["elastic"]
    with put(
        grain.load(Source(), num_epochs=1, batch_size=2, shard_options=shard(process))
    ) as stage:
        stage.set_state(state)
        return [kind, step(stage) == wanted]


def other_maps(process: int) -> Any:
    """Steps of another name are warned of, and go on."""
    source = loader(process, transformations=[(Same(), Alike())[process]])
    with warnings.catch_warnings(record=True) as caught, put(source) as stage:
        warnings.simplefilter("always")
        seen = [step(stage) for _ in range(2)]
    return [seen, [str(one.message) for one in caught]]


def messages(process: int) -> Any:
    """How often the processes meet on the way through a stream, and through one restored."""
    counts = []
    with put(loader(process), remainder="drop") as stage:
        first = stage.get_state()
        for _ in range(2):
            assert stage._lockstep is not None
            said, channel = [], stage._lockstep._channel
            exchange = type(channel).exchange

            def counted(
                self: Any, name: Any, message: bytes, said: Any = said, exchange: Any = exchange
            ) -> Any:
                said.append(name)
                return exchange(self, name, message)

            channel.exchange = functools.partial(counted, channel)  # type: ignore[method-assign]
            steps = 0
            while step(stage) != "the end":
                steps += 1
            counts.append([steps, len(said)])
            stage.set_state(first)
    return counts


class Broken(grain.transforms.Map):
    """Cannot read one of the records."""

    def __init__(self, record: int) -> None:
        self.record = record

    def map(self, record: Any) -> Any:
        if record == self.record:
            raise OSError("the disk is gone")
        return {"x": np.int32(record)}


def replicas(*broken: int, workers: int = 0, most: int = 3) -> Scene:
    """Both processes hold all rows; of each another record is broken, and left out."""

    def make(process: int) -> Any:
        whole = over(P())
        ds = grain.load(
            list(range(40)),
            num_epochs=1,
            transformations=[Broken(broken[process])],
            batch_size=4,
            drop_remainder=True,
            shard_options=grain.sharding.ShardBySharding(whole),
            on_error=grain.ErrorPolicy(skip=OSError, max_count=5),
            worker_count=workers,
        )
        return put(ds, whole, remainder="drop")

    return stages(make, most)


def unequal(*sizes: tuple[int, ...]) -> Scene:
    """Batches of so many rows, which both processes hold."""

    def make(process: int) -> Any:
        batches = [{"x": np.full(size, k)} for k, size in enumerate(sizes[process])]
        return put(batches, over(P()), remainder="pad")

    return stages(make, 2)


WHOLE = grain.sharding.NoSharding()

ARGUMENTS: dict[str, Scene] = {
    "remainder": arguments(remainder=("drop", "pad")),
    "mask_key": arguments(remainder=("pad", "pad"), mask_key=("mask", "real")),
    "axis": arguments(axis=(0, 1)),
    "ragged": arguments(ragged=("error", "pad")),
    "sharding": stages(
        lambda process: put(iter([np.zeros((4, 4))] * 2), over((P("data"), P(None))[process]))
    ),
    "a tree": stages(
        lambda process: put(
            iter([{"x": np.zeros(4), "y": np.zeros(4)}] * 2),
            {"x": over(P("data")), "y": over((P("data"), P())[process])},
        )
    ),
    "mask sharding": stages(
        lambda process: put(
            iter([{"x": np.zeros(4)}] * 2),
            {"x": over(P("data")), "mask": over((P("data"), P())[process])},
            remainder="pad",
        )
    ),
    "devices": stages(
        lambda process: put(
            iter([{"x": np.zeros(4)}] * 2),
            NamedSharding(
                Mesh(np.array(jax.devices())[[0, 1, 2, 3] if process else [1, 0, 3, 2]], ("data",)),
                P("data"),
            ),
        )
    ),
    "device_put": stages(
        lambda process: iter(
            grain.experimental.device_put(
                [{"x": np.zeros((4, 4))}] * 2, over((P("data"), P(None, "data"))[process])
            )
        )
    ),
}

ORDERS: dict[str, Scene] = {
    "seed": loaders(seed=(0, 1)),
    "source": loaders(source=({"x": np.arange(48)}, {"x": np.arange(50)})),
    "shuffle": loaders(shuffle=(True, False)),
    "sampler": stages(lambda p: put(built(p, (sequential(48), Backwards(48))[p]))),
    "samplers of one's own": stages(lambda p: put(built(p, Backwards(48 - 8 * p)))),
    "epochs": loaders(num_epochs=(1, 2)),
    "an epoch": stages(epochs),
    "steps": stages(lambda p: put((loader, filtered)[p](p), remainder="drop")),
    "batches": loaders(batch_size=(2, 4)),
    "drop_remainder": loaders(drop_remainder=(True, False)),
    "lanes": loaders(lanes=(1, 2)),
    "shards": loaders(shard_options=(shard(0, 2), shard(1, 3))),
    "one shard": loaders(shard_options=(shard(0, 2), WHOLE)),
    "twice the same shard": loaders(shard_options=(shard(1, 2), shard(1, 2))),
    "by the sampler": stages(
        lambda p: put(
            grain.DataLoader(
                data_source={"x": np.arange(48)},
                sampler=grain.samplers.IndexSampler(
                    48, shard_options=shard(p), shuffle=True, seed=p, num_epochs=1
                ),
                operations=[grain.transforms.Batch(2)],
            )
        )
    ),
    "the same rows": stages(
        lambda p: put(loader(p, shard_options=WHOLE, seed=p), over(P("model"), 2, 2))
    ),
    "shards of the same rows": stages(lambda p: put(loader(p), over(P("model"), 2, 2))),
}

SAME_ROWS: dict[str, Scene] = {
    "left out by one": replicas(-1, 5),
    "left out by one, of workers": replicas(-1, 5, workers=2),
    "left out by each": replicas(6, 5),
    "left out by both": replicas(5, 5),
    "short on one": unequal((4, 4), (4, 3)),
    "missing on one": unequal((4, 4), (4,)),
}

ALIKE: dict[str, Scene] = {
    "own sources": stages(own_sources, 6),
    "elsewhere": stages(elsewhere),
    "dry": dry,
    "absent": absent,
    "other maps": other_maps,
    "messages": messages,
    "one sharding in other words": stages(
        lambda p: put([{"x": np.full((2, 1), p)}], over((P("data"), P(("data",), None))[p]))
    ),
}

SCENES: dict[str, Scene] = {
    **{f"arguments: {name}": scene for name, scene in ARGUMENTS.items()},
    **{f"orders: {name}": scene for name, scene in ORDERS.items()},
    **{
        f"positions: {name} {workers}": positions(functools.partial(make, workers=workers))
        for name, make in SOURCES.items()
        for workers in (0, 2)
    },
    "positions: begun": stages(begun),
    "positions: of loaders": of_loaders,
    **{f"same rows: {name}": scene for name, scene in SAME_ROWS.items()},
    **{f"alike: {name}": scene for name, scene in ALIKE.items()},
}
