"""One process of a job: plays scenes of errors, ends and interrupts, and prints what it saw.

Every batch is used in a collective at once, so that a process at another step would hang, or fail.
"""

from __future__ import annotations

import collections
import faulthandler
import functools
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import grain_jax as grain
from grain_jax._values import notices
from tests.cases import many_padding, many_terms
from tests.faults.oddities import Base, Unpicklable, Unspeakable
from tests.product.jobs import initialize

Pair = collections.namedtuple("Pair", ["x", "y"])


def everywhere(axes: Any) -> NamedSharding:
    return NamedSharding(Mesh(np.array(jax.devices()), ("data",)), axes)


@functools.cache
def gather(mesh: Any) -> Any:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, P()))


def gathered(array: Any) -> list[Any]:
    """All values of a global array, through a collective."""
    return np.asarray(gather(array.sharding.mesh)(array).addressable_data(0)).tolist()  # type: ignore[no-any-return]


def tried(call: Callable[[], Any]) -> Any:
    """What a call returns, or the error that it raises in words."""
    try:
        return call()
    except StopIteration:
        return "the end"
    except BaseException as error:
        notes = getattr(error, "__notes__", [])
        try:
            return {"error": "\n".join([f"{type(error).__name__}: {error}", *notes])}
        except ValueError:
            return {"error": f"{type(error).__name__}, unspeakable"}


def meet() -> None:
    """Waits until both processes are here."""
    gathered(jax.make_array_from_process_local_data(everywhere(P("data")), np.zeros(2, np.int32)))


def steps(iterator: Any, most: int = 10) -> list[Any]:
    """The gathered leaves of so many batches, and errors in words; at most two in a row."""
    seen: list[Any] = []
    while sum("error" not in step for step in seen) < most:
        seen.append(tried(lambda: {key: gathered(value) for key, value in next(iterator).items()}))
        if seen[-1] == "the end" or (len(seen) > 1 and all("error" in step for step in seen[-2:])):
            break
    return seen


def rows(process: int, sizes: tuple[int, ...]) -> list[Any]:
    """Batch k of process p holds the numbers 100 k + 10 p + row."""
    return [
        {"x": 100 * k + 10 * process + np.arange(size, dtype=np.int32)}
        for k, size in enumerate(sizes)
    ]


def masks_of_their_own(process: int) -> Any:
    """A mask that is whole on every process, with rows that are not; process 1 ends early."""
    sharding = {"x": everywhere(P("data")), "mask": everywhere(P())}
    sizes = ((4, 4, 4, 3), (4, 4, 1))[process]
    seen = []
    with grain.prefetch_to_device(rows(process, sizes), sharding, remainder="pad") as iterator:
        spec = iterator.element_spec["mask"]
        for batch in iterator:
            mask = batch["mask"]
            parts = [np.asarray(shard.data).tolist() for shard in mask.addressable_shards]
            assert (mask.shape, mask.sharding) == (spec.shape, spec.sharding)
            seen.append({"x": gathered(batch["x"]), "mask": parts})
    return seen


def longest(records: list[Any]) -> Any:
    """Pads to the longest of the batch."""
    most = max(map(len, records))
    return {"x": np.array([[*r, *[0] * (most - len(r))] for r in records], np.int32)}


def ragged(workers: int, rule: str) -> Callable[[int], Any]:
    def scene(process: int) -> Any:
        # Rows of the same lengths in the first two steps, and of 5 and 3 in the third.
        lengths = [2] * 4 + [4] * 4 + [5 - 2 * process] * 4 + [3] * 4
        source = [[10 * i + process] * length for i, length in enumerate(lengths)]
        loader = grain.load(
            source,
            num_epochs=1,
            transformations=[grain.transforms.Batch(4, batch_fn=longest)],
            worker_count=workers,
        )
        with loader, grain.prefetch_to_device(loader, ragged=rule) as iterator:
            return steps(iterator)

    return scene


def dtypes_from_step_2_on(process: int) -> Any:
    batches = [{"x": np.full(4, k, f"i{2 + 2 * (process and k > 1)}")} for k in range(4)]
    with grain.prefetch_to_device(batches) as iterator:
        return steps(iterator)


def scalars_from_step_2_on(process: int) -> Any:
    batches = [{"x": np.zeros(4), "rate": k + (process and k > 1)} for k in range(4)]
    with grain.prefetch_to_device(batches) as iterator:
        return [{"rate": step["rate"]} if "rate" in step else step for step in steps(iterator)]


def shapes_of_plain_batches(process: int) -> Any:
    """Records of process 1 are longer from step 4 on, in a pipeline that stacks and no more."""
    source = [np.zeros(3 + (process and i >= 16), np.int32) for i in range(32)]
    loader = grain.load(source, num_epochs=1, batch_size=4)
    seen = []
    with grain.prefetch_to_device(loader) as iterator:
        for _ in range(5):
            seen.append(tried(lambda: list(next(iterator).shape)))
            if "error" in seen[-1]:
                break
    return seen


ODD: dict[str, Callable[[], BaseException]] = {
    "Unspeakable": Unspeakable,
    "Unpicklable": lambda: Unpicklable("cannot travel"),
    "Base": lambda: Base("is no Exception"),
    "SystemExit": lambda: SystemExit(3),
    "KeyboardInterrupt": KeyboardInterrupt,
    "Group": lambda: BaseExceptionGroup("two", [Base(), Unspeakable()]),
}


class FailsAt(grain.transforms.Map):
    """Raises at one record of one process, once for each process that works."""

    def __init__(self, kind: str, number: int) -> None:
        self.kind, self.number = kind, number

    def map(self, record: Any) -> Any:
        if record == self.number:
            self.number = -1
            raise ODD[self.kind]()
        return np.int32(record)


def odd_errors(workers: int) -> Callable[[int], Any]:
    """An exception of process 1 at a batch that was asked for, and then the rest."""

    def scene(process: int) -> Any:
        seen = {}
        for kind in ODD:
            if kind in ("SystemExit", "KeyboardInterrupt") and workers:
                continue
            loader = grain.DataLoader(
                data_source=range(24),
                sampler=grain.samplers.IndexSampler(24, num_epochs=1),
                operations=[
                    FailsAt(kind, 9 if process else -1),
                    Keep(),
                    grain.transforms.Batch(4),
                    AsDict(),
                ],
                worker_count=workers,
            )
            with loader, grain.prefetch_to_device(loader, buffer_size=1) as iterator:
                seen[kind] = steps(iterator, 3)
        return seen

    return scene


class Keep(grain.transforms.Filter):
    """Keeps every record, which nobody knows before."""

    def filter(self, record: Any) -> bool:
        return True


class AsDict(grain.transforms.Map):
    """Gives the batch a name."""

    def map(self, batch: Any) -> Any:
        return {"x": batch}


def padding_that_cannot_be_made(process: int) -> Any:
    """Process 0 has no batch, and cannot know the named tuple, or make keys."""
    named = [Pair(np.zeros(4), {"y": np.ones(4)})]
    keys = [{"x": np.zeros(4), "k": jax.random.split(jax.random.key(0), 4)}]
    seen = []
    for batches in (keys, [{"x": Pair(*named[0])}]):
        iterator = grain.prefetch_to_device(batches if process else [], remainder="pad")
        seen.append([tried(lambda i=iterator: next(i)) for _ in range(2)])  # type: ignore[misc]
        iterator.close()
    return seen


def padding_with_keys(process: int) -> Any:
    """A key without axes is the same on all processes, and known to the one that has ended."""
    batches = [{"x": np.ones(4, np.int32), "k": jax.random.key(7)}] if process else []
    with grain.prefetch_to_device(batches, remainder="pad") as iterator:
        (batch,) = list(iterator)
    return [gathered(batch["x"]), drawn(batch["k"])]


def drawn(key: Any) -> int:
    draw = jax.jit(lambda k: jax.random.bits(k, dtype=np.uint16), out_shardings=everywhere(P()))
    return int(draw(key))


def typed_keys(process: int) -> Any:
    split = jax.random.split(jax.random.key(process), 4)
    batches = [{"x": np.zeros(4), "k": jax.random.key(k), "s": split} for k in range(3)]
    with grain.prefetch_to_device(batches) as iterator:
        got = list(iterator)
    bits = jax.jit(jax.vmap(lambda k: jax.random.bits(k, dtype=np.uint16)))
    return {
        "scalars": [drawn(batch["k"]) for batch in got],
        "rows": gathered(bits(got[0]["s"])),
        "shapes": [list(got[0]["k"].shape), list(got[0]["s"].shape)],
        "dtype": str(got[0]["k"].dtype),
    }


def keys_that_differ(process: int) -> Any:
    batches = [{"x": np.zeros(4), "k": jax.random.key(process)}]
    with grain.prefetch_to_device(batches) as iterator:
        return tried(lambda: next(iterator))


class Fails:
    """A source that fails at an index, so often."""

    def __init__(self, index: int, times: int) -> None:
        self.index, self.times = index, times

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if index == self.index and self.times:
            self.times -= 1
            raise OSError("the disk is gone")
        return {"x": np.int32(index)}


def spec_fails(process: int) -> Any:
    loader = grain.load(Fails(0, process), num_epochs=1, batch_size=4)
    with grain.prefetch_to_device(loader) as iterator:
        spec = tried(lambda: list(iterator.element_spec["x"].shape))
        return [spec, *steps(iterator, 2)]


def fails_in_the_middle(process: int) -> Any:
    """Process 1 fails at a step that was certain, and stays away; the other is told at the end."""
    loader = grain.load(Fails(9, 100 if process else 0), num_epochs=1, batch_size=4)
    seen: list[Any] = []
    with grain.prefetch_to_device(loader, buffer_size=1) as iterator:
        while len(seen) < 9:
            # Without collectives, so that the other gets as far as the next meeting.
            seen.append(tried(lambda: np.asarray(next(iterator)["x"].addressable_data(0)).tolist()))
            if "error" in seen[-1] or seen[-1] == "the end":
                break
        meet()
    return seen


def fails_in_the_middle_and_goes_on(process: int) -> Any:
    """Nobody else learns of an error that its process gets over."""
    loader = grain.load(Fails(9, process), num_epochs=1, batch_size=4)
    seen: list[Any] = []
    with grain.prefetch_to_device(loader, buffer_size=1) as iterator:
        while not seen or seen[-1] != "the end":
            seen.append(tried(lambda: np.asarray(next(iterator)["x"].addressable_data(0)).tolist()))
    return seen


def interrupt_soon() -> None:
    threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT)).start()


def slow(process: int, seconds: float) -> Iterator[Any]:
    """Batches of which process 0 has the third, and the end, a while later."""
    for k in range(4):
        if k == 2 and process == 0:
            time.sleep(seconds)
        yield {"x": np.full(4, 10 * k + process, np.int32)}
    if process == 0:
        time.sleep(seconds)


def interrupted(process: int) -> Any:
    """Ctrl-C while process 1 waits for a batch of the other, and for its end; and then again."""
    seen: list[Any] = []
    waits: list[float] = []
    with grain.prefetch_to_device(slow(process, 6.0), buffer_size=1) as iterator:
        for step in range(9):
            if process and step in (2, 3, 6):
                interrupt_soon()
            began = time.monotonic()
            got = tried(lambda: gathered(next(iterator)["x"]))
            if isinstance(got, dict):
                waits.append(time.monotonic() - began)
            seen.append(got)
            if got == "the end":
                break
    return {"seen": seen, "waits": waits}


def another_order(process: int) -> Any:
    # With a leaf that changes, the processes speak at every step.
    batches = [{"x": np.zeros(4), "step": k} for k in range(2)]
    first, second = (grain.prefetch_to_device(batches) for _ in range(2))
    with first, second:
        next(first), next(second)
        wrong = tried(lambda: next((first, second)[process]))
        meet()
    return wrong


def moved_alone(process: int) -> Any:
    loader = grain.load(range(16), num_epochs=1, batch_size=4)
    with grain.prefetch_to_device(loader, remainder="drop") as iterator:
        state = iterator.get_state()
        gathered(next(iterator))
        if process:
            iterator.set_state(state)
        seen = []
        for _ in range(5):
            seen.append(tried(lambda: np.asarray(next(iterator).addressable_data(0)).tolist()))
            if "error" in seen[-1]:
                break
        meet()
    return seen


def closed_alone(process: int) -> Any:
    seen = []
    with grain.prefetch_to_device(iter(rows(process, (4, 4, 4, 4))), buffer_size=1) as iterator:
        gathered(next(iterator)["x"])
        if process:
            iterator.close()
        while not process and not (seen and "error" in seen[-1]):
            seen.append(tried(lambda: np.asarray(next(iterator)["x"].addressable_data(0)).tolist()))
        meet()
    return seen


def local(iterator: Any) -> Any:
    """The rows of this process in the next batch, without a collective."""
    return tried(lambda: np.asarray(next(iterator)["x"].addressable_data(0)).tolist())


def dropped_alone(process: int) -> Any:
    """Process 1 leaves its loop, and nobody holds the iterator any more."""
    seen: list[Any] = []

    def loop() -> None:
        batches = iter(rows(process, (4, 4, 4, 4)))
        for batch in grain.prefetch_to_device(batches, buffer_size=1):
            seen.append(np.asarray(batch["x"].addressable_data(0)).tolist())
            if process and len(seen) == 2:
                break

    error = tried(loop)
    meet()
    return [seen, error]


def begins_anew(process: int, closes: bool) -> Any:
    """Process 1 fails in a step of its own, and each tries again at once, with a new iterator."""
    errors, batches, left = [], rows(process, (4,) * 6), []
    for attempt in range(6):
        seen: list[Any] = []
        iterator = grain.prefetch_to_device(iter(batches), buffer_size=1)
        try:
            while len(seen) < len(batches):
                seen.append(np.asarray(next(iterator)["x"].addressable_data(0)).tolist())
                if process and not attempt and len(seen) == 2:
                    raise LookupError("a step fails")
            break
        except (LookupError, ValueError) as error:
            errors.append({"error": f"{type(error).__name__}: {error}"})
        finally:
            left.append(iterator)
            if closes:
                iterator.close()
    meet()
    for iterator in left:
        iterator.close()
    return [errors, seen]


class FailsAgain:
    """Fails in one process from a record on, until something is said in the service."""

    def __init__(self, fails: bool) -> None:
        self._fails = fails

    def __len__(self) -> int:
        return 32

    def __getitem__(self, index: int) -> int:
        if self._fails and index >= 16 and not notices.client().key_value_dir_get_bytes("heals/"):
            raise OSError("not yet")
        return index


def fails_again_and_again(process: int) -> Any:
    """Process 1 tries again at once, each time; it comes once the other has had its error."""
    shard = grain.sharding.ShardOptions(process, 2)
    source = FailsAgain(process == 1)
    loader = grain.load(source, num_epochs=1, batch_size=4, shard_options=shard)
    seen, errors = [], []
    with grain.prefetch_to_device(loader, everywhere(P("data")), buffer_size=1) as iterator:
        while True:
            try:
                seen.append(len(next(iterator)))
            except StopIteration:
                break
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
                if not process:
                    notices.client().key_value_set_bytes("heals/now", b"1")
    return [seen, sorted(set(errors))]


def closed_for_another(process: int) -> Any:
    """Process 1 has closed its iterator, and does something with another one before it waits."""
    loader = grain.load(range(16), num_epochs=1, batch_size=4)
    other = grain.prefetch_to_device(loader)
    wrong = None
    with grain.prefetch_to_device(iter(rows(process, (4, 4, 4, 4))), buffer_size=1) as iterator:
        gathered(next(iterator)["x"])
        if process:
            iterator.close()
            other.set_state(other.get_state())
        while not process and not isinstance(wrong, dict):
            wrong = local(iterator)
        meet()
    other.close()
    return wrong


def closed_after_the_end(process: int) -> Any:
    """Both have read to the end; process 0 closes its iterator, and process 1 begins anew."""
    loader = grain.load(np.arange(8), num_epochs=1, transformations=[Named()], batch_size=4)
    with grain.prefetch_to_device(loader) as iterator:
        first = iterator.get_state()
        whole = steps(iterator)
        again = None
        if process:
            iterator.set_state(first)
            again = local(iterator)
        else:
            iterator.close()
        meet()
    return [whole, again]


def what_stays(process: int) -> Any:
    """How many keys the service has more after iterators that all have closed or dropped."""

    def keys() -> set[str]:
        names = [key for key, _ in notices.client().key_value_dir_get_bytes("grain_jax/")]
        return {name for name in names if "/notices/" not in name}

    gc.collect()  # iterators of the scenes before leave now
    meet()
    before = keys()
    for closes in (True, False):
        iterator = grain.prefetch_to_device(rows(process, (4, 4, 4)))
        steps(iterator, 3 if closes else 2)
        if closes:
            iterator.close()
        del iterator
    # The thread that runs ahead may hold one that is dropped for a moment.
    deadline = time.monotonic() + 10
    while (stay := keys() - before) and time.monotonic() < deadline:
        time.sleep(0.05)
    meet()
    return len(stay)


def closed_by_a_thread(process: int) -> Any:
    """Process 0 waits for a slow batch of the other, and is closed meanwhile."""
    gone = threading.Event()

    def batches() -> Iterator[Any]:
        yield from rows(process, (4,))
        if process:
            gone.wait(100)
        yield from rows(process, (4, 4))

    iterator = grain.prefetch_to_device(batches(), buffer_size=1)
    first = steps(iterator, 1)
    second = None
    if not process:
        threading.Timer(1.5, iterator.close).start()
        second = tried(lambda: next(iterator))
    # Process 1 has nothing to give as yet; process 0 must not have waited for it.
    meet()
    gone.set()
    iterator.close()
    return [first, second]


def failed_before(process: int, makes: bool) -> Any:
    """Process 1 fails, on all alike, and takes a while until it comes to the next stage."""

    def bad() -> Iterator[Any]:
        yield from rows(process, (4,))
        if process:
            raise OSError("a bad file")
        yield from rows(process, (4, 4))

    sampler = grain.samplers.IndexSampler(8 + process * makes, num_epochs=1)

    def use() -> None:
        if makes:
            loader = grain.DataLoader(
                data_source=range(8), sampler=sampler, operations=[grain.transforms.Batch(4)]
            )
        with grain.prefetch_to_device(loader if makes else bad()) as iterator:
            for _ in range(2 + makes):
                next(iterator)

    error = tried(use)
    if process:
        time.sleep(4)
    with grain.prefetch_to_device(rows(process, (4, 4))) as iterator:
        return [error, steps(iterator)]


def orbax_restores(process: int, folder: list[str]) -> Any:
    """The state of process 1 is missing: Orbax waits for all where each has restored its own."""
    kept = [Keep(), grain.transforms.Batch(4), AsDict()]
    shard = grain.sharding.ShardByJaxProcess()
    loader = grain.load(range(40), num_epochs=1, transformations=kept, shard_options=shard)
    handler = grain.checkpoint.CheckpointHandler()
    where = f"{folder[0]}/restored"
    os.makedirs(where, exist_ok=True)
    seen = []
    with grain.prefetch_to_device(loader) as iterator:
        steps(iterator, 1)
        handler.save(where, iterator)
        meet()
        seen.append(tried(lambda: repr(type(handler.restore(where, iterator)))))
        seen.append(steps(iterator, 1))
        meet()
        if process:
            os.rename(f"{where}/process_1-of-2.json", f"{where}/gone")
        meet()
        seen.append(tried(lambda: handler.restore(where, iterator)))
        meet()
        if process:
            os.rename(f"{where}/gone", f"{where}/process_1-of-2.json")
        meet()
        seen.append(tried(lambda: repr(type(handler.restore(where, iterator)))))
        seen.append(steps(iterator, 1))
        meet()
    return seen


class Named(grain.transforms.Map):
    """Gives the record a name."""

    def map(self, record: Any) -> Any:
        return {"x": np.int32(record)}


def refused_restore(process: int) -> Any:
    loader = grain.load(range(16), num_epochs=1, batch_size=4)
    with grain.prefetch_to_device(loader) as iterator:
        state = iterator.get_state()
        restored = tried(lambda: iterator.set_state(b"{}" if process else state))
        after = None if process else tried(lambda: next(iterator))
        meet()
    return [restored, after]


def refused_construction(process: int) -> Any:
    """The last batch of process 1 is short, which is refused where the loader is given."""
    loader = grain.load(np.zeros((8, 2)), num_epochs=1, batch_size=4 + 2 * process)
    made = tried(lambda: grain.prefetch_to_device(loader))
    seen = made if process else tried(lambda: next(made))
    meet()
    return seen


def after_all_that(process: int) -> Any:
    """Iterators of which some were used on one process only are no hindrance to later ones."""
    with grain.prefetch_to_device(rows(process, (4, 4))) as iterator:
        return steps(iterator)


def refused_sampler(process: int) -> Any:
    shard = grain.sharding.ShardByJaxProcess()
    return tried(lambda: repr(grain.samplers.IndexSampler(1, num_epochs=1, shard_options=shard)))


def refused_loader(process: int) -> Any:
    """Process 1 has a sampler for more records than there are."""
    sampler = grain.samplers.IndexSampler(8 + process, num_epochs=1)
    made = tried(lambda: repr(grain.DataLoader(data_source=range(8), sampler=sampler)))
    loader = grain.load(range(8), num_epochs=1, batch_size=4)
    seen = made if process else tried(lambda: next(grain.prefetch_to_device(loader)))
    meet()
    return seen


def one_shard(process: int, folder: str) -> Any:
    """Both processes hold the same rows: two steps, a save, and the next step."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2).T, ("data", "model"))
    sharding = NamedSharding(mesh, P("data"))
    seen = []
    for axis in ("loader", "stage"):
        loader = one_shard_loader(grain.sharding.ShardBySharding(sharding))
        iterator: Any = iter(loader)
        if axis == "stage":
            iterator = grain.prefetch_to_device(loader, sharding, remainder="pad")
        for _ in range(2):
            next(iterator)
        os.makedirs(f"{folder}/{axis}", exist_ok=True)
        grain.checkpoint.CheckpointHandler().save(f"{folder}/{axis}", iterator)
        batch = next(iterator)["x"]
        seen.append(batch.tolist() if axis == "loader" else gathered(batch))
        iterator.close()
    return seen


class Odds(grain.transforms.Filter):
    """Keeps odd numbers."""

    def filter(self, record: Any) -> bool:
        return bool(record % 2)


def one_shard_loader(shard: Any = None) -> Any:
    return grain.load(
        range(40),
        num_epochs=1,
        transformations=[Odds(), grain.transforms.Batch(4), AsDict()],
        shard_options=shard or grain.sharding.NoSharding(),
    )


SCENES: dict[str, Callable[[int], Any]] = {
    "fails again and again": fails_again_and_again,
    "masks": masks_of_their_own,
    **{f"ragged {rule} {w}": ragged(w, rule) for rule in ("error", "pad") for w in (0, 2)},
    "dtypes": dtypes_from_step_2_on,
    "scalars": scalars_from_step_2_on,
    "plain": shapes_of_plain_batches,
    "odd 0": odd_errors(0),
    "odd 2": odd_errors(2),
    "padding refused": padding_that_cannot_be_made,
    "padding with keys": padding_with_keys,
    "typed keys": typed_keys,
    "other keys": keys_that_differ,
    "spec": spec_fails,
    "middle": fails_in_the_middle,
    "middle, over it": fails_in_the_middle_and_goes_on,
    "interrupted": interrupted,
    "order": another_order,
    "moved": moved_alone,
    "closed": closed_alone,
    "dropped": dropped_alone,
    "begins anew, closed": functools.partial(begins_anew, closes=True),
    "begins anew, held": functools.partial(begins_anew, closes=False),
    "closed for another": closed_for_another,
    "closed after the end": closed_after_the_end,
    "what stays": what_stays,
    "closed by a thread": closed_by_a_thread,
    "failed before": functools.partial(failed_before, makes=False),
    "failed before, as it made": functools.partial(failed_before, makes=True),
    "orbax": lambda process: orbax_restores(process, sys.argv[4:5]),
    "restore": refused_restore,
    "construction": refused_construction,
    "loader": refused_loader,
    "after": after_all_that,
    "sampler": refused_sampler,
    **many_padding.SCENES,
    **many_terms.SCENES,
}


def ends_alone(process: int) -> None:
    """Process 1 ends by an error of its own, before it has made anything."""
    shard = grain.sharding.ShardByJaxProcess()
    if process:
        raise LookupError("no data here")
    loader = grain.load(range(16), num_epochs=1, batch_size=4, shard_options=shard)
    with grain.prefetch_to_device(loader) as iterator:
        print(json.dumps(tried(lambda: next(iterator))))


def closes_and_shuts_down(process: int) -> None:
    """Process 1 leaves its loop early, closes what it holds, and waits in JAX for the other."""
    iterator = grain.prefetch_to_device(iter(rows(process, (4,) * 6)), buffer_size=1)
    seen: list[Any] = []
    while len(seen) < (2 if process else 6) and not (seen and isinstance(seen[-1], dict)):
        seen.append(local(iterator))
    iterator.close()
    print(json.dumps(seen))
    jax.distributed.shutdown()


ALONE = {"ends alone": ends_alone, "closes and shuts down": closes_and_shuts_down}


def main() -> None:
    faulthandler.dump_traceback_later(230, exit=True)  # says where it hangs, if it does
    process = initialize(*sys.argv[1:4])
    if sys.argv[4] in ALONE:
        ALONE[sys.argv[4]](process)
        return
    chosen = sys.argv[5:] or list(SCENES)
    played = {}
    for name in chosen:
        print(name, file=sys.stderr, flush=True)
        played[name] = SCENES[name](process)
    played["one shard"] = one_shard(process, sys.argv[4])
    print(json.dumps(played))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
