"""One process of a job: plays each scene of equal steps and prints what it saw as JSON.

Every batch is used in a collective at once, so that a process with another number of steps would
hang, or fail.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from grain_jax import DataLoader, load, prefetch_to_device
from grain_jax._values import notices
from grain_jax.samplers import IndexSampler
from grain_jax.sharding import ShardByJaxProcess
from grain_jax.transforms import Batch, Filter, Map
from tests.product.jobs import initialize


class Below(Filter):
    """Keeps, of the records of each process, those below a number of its own."""

    def __init__(self, number: int) -> None:
        self.number = number

    def filter(self, record: Any) -> bool:
        return bool(record["id"] // jax.process_count() < self.number)


class Record(Map):
    """A number and its text."""

    def map(self, number: Any) -> Any:
        return {"id": np.int32(number), "text": f"record {number}"}


class Step(Map):
    """Adds leaves without rows, the same in every batch."""

    def map(self, batch: Any) -> Any:
        return {**batch, "scale": np.float32(0.5), "kind": "train"}


def gathered(array: jax.Array) -> list[Any]:
    """All values of a global array, through a collective."""
    return np.asarray(everywhere()(array).addressable_data(0)).tolist()  # type: ignore[no-any-return]


@functools.cache
def everywhere() -> Any:
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("all",)), P())
    return jax.jit(lambda x: x, out_shardings=sharding)


def steps(iterator: Any) -> list[Any]:
    """What all processes together have at each step, and the texts of this one."""
    seen = []
    for batch in iterator:
        step = {"id": gathered(batch["id"])}
        if "mask" in batch:
            step["mask"] = [int(real) for real in gathered(batch["mask"])]
        if "text" in batch:
            step["text"] = list(batch["text"])
        if "scale" in batch:
            step["scale"] = gathered(batch["scale"])
            step["kind"] = batch["kind"]
        seen.append(step)
    return seen


def attempt(make: Callable[[], Any]) -> Any:
    try:
        with make() as iterator:
            return {"steps": steps(iterator), "then": next(iterator, "the end")}
    except ValueError as error:
        return {"refused": str(error)}


def sharded(records: int, **more: Any) -> Any:
    """A loader that knows how many steps all of its shards have."""
    return load(
        range(records),
        num_epochs=1,
        transformations=[Record()],
        batch_size=4,
        shard_options=ShardByJaxProcess(),
        **more,
    )


def filtered(kept: list[int]) -> Any:
    """A loader that does not, and of which process p keeps `kept[p]` records."""
    return DataLoader(
        data_source=range(40),
        sampler=IndexSampler(40, num_epochs=1),
        operations=[Record(), Below(kept[jax.process_index()]), Batch(4), Step()],
        shard_options=ShardByJaxProcess(),
    )


def equal_steps(process: int) -> Any:
    scenes = {}
    for rule in ("error", "drop", "pad"):
        for records in (16, 17, 19, 23):
            scenes[f"sharded {records} {rule}"] = attempt(
                lambda rule=rule, records=records: prefetch_to_device(  # type: ignore[misc]
                    sharded(records), remainder=rule
                )
            )
        for kept in ([8, 8], [8, 16], [6, 16], [0, 8]):
            scenes[f"filtered {kept} {rule}"] = attempt(
                lambda rule=rule, kept=kept: prefetch_to_device(  # type: ignore[misc]
                    filtered(kept), remainder=rule
                )
            )
    return scenes


def lengths(process: int) -> Any:
    return {
        f"{records} {rule}": len(prefetch_to_device(sharded(records), remainder=rule))
        for records in (16, 17, 19, 23)
        for rule in ("drop", "pad")
    }


def positions(process: int) -> Any:
    """States along a padded stream, and what comes after each; process 1 has no last step."""
    with prefetch_to_device(sharded(9), remainder="pad") as iterator:
        states, seen = [iterator.get_state()], []
        for batch in iterator:
            seen.append(gathered(batch["id"]))
            states.append(iterator.get_state())
    again = []
    for state in states:
        with prefetch_to_device(sharded(9), remainder="pad") as iterator:
            next(iterator)  # so that something runs ahead
            iterator.set_state(state)
            again.append([step["id"] for step in steps(iterator)])
    return {"states": [state.decode() for state in states], "seen": seen, "again": again}


def dry_positions(process: int) -> Any:
    """The same where nobody knows how many batches the filter leaves."""
    with prefetch_to_device(filtered([4, 16]), remainder="pad") as iterator:
        states, seen = [], []
        for batch in iterator:
            seen.append(gathered(batch["id"]))
            states.append(iterator.get_state())
    again = []
    for state in states:
        with prefetch_to_device(filtered([4, 16]), remainder="pad") as iterator:
            iterator.set_state(state)
            again.append([step["id"] for step in steps(iterator)])
    return {"seen": seen, "again": again}


def stops_early(process: int) -> Any:
    """Iterators that are left, moved and closed in the middle leave nobody waiting."""
    seen = []
    for _ in range(3):
        iterator = prefetch_to_device(filtered([16, 16]), remainder="drop")
        seen.append(gathered(next(iterator)["id"]))
        state = iterator.get_state()
        seen.append(gathered(next(iterator)["id"]))
        iterator.set_state(state)
        seen.append(gathered(next(iterator)["id"]))
        iterator.close()
    return seen


def fails_later(process: int) -> Any:
    """An error of one process, at its third batch."""

    def batches() -> Iterator[Any]:
        for k in range(5):
            if k == 2 and process == 1:
                raise OSError("the disk is gone")
            yield {"id": np.full(4, k, np.int32)}

    seen: list[Any] = []
    with prefetch_to_device(batches(), buffer_size=1) as iterator:
        try:
            for batch in iterator:
                seen.append(gathered(batch["id"]))
        except (OSError, ValueError) as error:
            return {"steps": len(seen), "error": f"{type(error).__name__}: {error}"}


def through_collectives(process: int) -> Any:
    """As without the coordination service."""
    client, notices.client = notices.client, lambda: None
    try:
        with prefetch_to_device(filtered([6, 16]), remainder="pad") as iterator:
            return steps(iterator)
    finally:
        notices.client = client


def specs(process: int) -> Any:
    with prefetch_to_device(sharded(16)) as iterator:
        iterator.start_prefetch()
        spec = iterator.element_spec
        before = iterator.get_state().decode()
        first = next(iterator)
        assert spec["id"].sharding == first["id"].sharding
        return [list(spec["id"].shape), str(spec["id"].dtype), str(spec["text"].shape), before]


SCENES: dict[str, Callable[[int], Any]] = {
    scene.__name__: scene
    for scene in (
        equal_steps,
        lengths,
        positions,
        dry_positions,
        stops_early,
        fails_later,
        through_collectives,
        specs,
    )
}


def main() -> None:
    process = initialize(*sys.argv[1:4])
    print(json.dumps({name: scene(process) for name, scene in SCENES.items()}))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
