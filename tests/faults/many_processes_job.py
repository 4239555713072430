"""One process of a job of the campaign: plays phases and prints what it saw as JSON."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import grain_jax as grain
from tests.faults.many_processes import Phase, batches, draw, kept
from tests.faults.oddities import Base, Unpicklable, Unspeakable
from tests.product.jobs import initialize

ERRORS: dict[str, Callable[[], BaseException]] = {
    "OSError": lambda: OSError("the disk is gone"),
    "Unspeakable": Unspeakable,
    "Unpicklable": lambda: Unpicklable("cannot travel"),
    "Base": lambda: Base("is no Exception"),
    "Exit": lambda: SystemExit(3),
}


class Fault:
    """Raises at one record, once or always, whichever process works on it."""

    def __init__(self, record: int, error: str, mark: Path | None) -> None:
        self.record, self.error, self.mark = record, error, mark

    def __call__(self, record: int) -> None:
        if record != self.record:
            return
        if self.mark is not None:
            try:
                os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        raise ERRORS[self.error]()


class Numbers:
    """Numbers, one of which may fail, and some of which take their time."""

    def __init__(self, length: int, fault: Fault, slow: int) -> None:
        self.length, self.fault, self.slow = length, fault, slow

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        self.fault(index)
        if self.slow and index % self.slow == 0:
            time.sleep(0.05)
        return index


class Checked(grain.transforms.Map):
    """A map that may fail."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def map(self, record: int) -> Any:
        self.fault(record)
        return {"x": np.int32(record)}


class Kept(grain.transforms.Filter):
    """Keeps what the reference keeps."""

    def filter(self, record: Any) -> bool:
        return kept(int(record["x"]))


class Stacked:
    """A batch function that may fail."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault

    def __call__(self, records: list[Any]) -> Any:
        for record in records:
            self.fault(int(record["x"]))
        return {"x": np.stack([record["x"] for record in records])}


def source(phase: Phase, process: int, number: int, folder: Path) -> Any:
    """The loader, or the iterator, of this process."""
    own = [record for rows in batches(phase, process) for record in rows]
    is_here = phase.process == process
    mark = folder / f"{number} {process}" if phase.once else None
    bad = own[min(phase.place, len(own) - 1)] if is_here else -1
    faults = {
        where: Fault(bad if phase.fault == where else -1, phase.error, mark)
        for where in ("source", "map", "function", "spec")
    }
    if phase.fault == "spec":
        faults["source"] = faults["spec"]
    slow = 5 if phase.fault == "interrupt" and not is_here else 0
    if phase.kind == "own":
        return Own(phase, process, faults["source"], slow)
    steps: list[Any] = [Checked(faults["map"])]
    if phase.kind == "filter":
        steps.append(Kept())
    function = Stacked(faults["function"]) if phase.kind == "function" else None
    return grain.load(
        Numbers(phase.records, faults["source"], slow),
        num_epochs=1,
        transformations=[*steps, grain.transforms.Batch(phase.batch, batch_fn=function)],
        shard_options=grain.sharding.ShardByJaxProcess(),
        worker_count=phase.workers,
    )


class Own:
    """An iterator of the user's own, which goes on where it failed."""

    def __init__(self, phase: Phase, process: int, fault: Fault, slow: int) -> None:
        self.left = batches(phase, process)
        self.is_odd = phase.fault == "padding"
        if self.is_odd and phase.process == process:
            del self.left[-1]  # this one needs padding, which cannot be made
        self.fault, self.slow = fault, slow

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        for record in self.left[0]:
            self.fault(record)
        if self.slow:
            time.sleep(0.03)
        batch: dict[str, Any] = {"x": np.array(self.left.pop(0), np.int32)}
        if self.is_odd:
            batch["k"] = jax.random.split(jax.random.key(0), len(batch["x"]))
        return batch


class Interrupts:
    """Ctrl-C at random moments inside `next`."""

    def __init__(self, rng: random.Random) -> None:
        self.is_armed = False
        self._rng = rng
        self._over = threading.Event()
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, *about: Any) -> None:
        if self.is_armed:
            raise KeyboardInterrupt

    def __enter__(self) -> None:
        threading.Thread(target=self._send, daemon=True).start()

    def __exit__(self, *about: object) -> None:
        self._over.set()

    def _send(self) -> None:
        for _ in range(6):
            if self._over.wait(self._rng.uniform(0.005, 0.4)):
                return
            os.kill(os.getpid(), signal.SIGINT)


def rows_here(array: jax.Array) -> list[int]:
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return [int(value) for shard in shards for value in np.asarray(shard.data)]


def play(phase: Phase, process: int, number: int, folder: Path) -> dict[str, Any]:
    """What this process sees in a phase; it leaves at its end, or at two errors in a row."""
    rng = random.Random(f"{number} {process}")
    interrupts = Interrupts(rng)
    is_here = phase.process == process
    begins = interrupts if is_here and phase.fault == "interrupt" else contextlib.nullcontext()
    events: list[Any] = []
    longest = 0.0
    iterator = grain.prefetch_to_device(
        source(phase, process, number, folder), buffer_size=phase.buffer, remainder=phase.rule
    )

    def attempt(call: Callable[[], Any]) -> None:
        """Calls it until that is not interrupted."""
        once(call)
        while events[-1:] == [["interrupt"]]:
            once(call)

    def once(call: Callable[[], Any]) -> None:
        nonlocal longest
        began = time.monotonic()
        try:
            interrupts.is_armed = True
            try:
                event = call()
            finally:
                interrupts.is_armed = False
            if event is not None:
                events.append(event)
        except StopIteration:
            events.append(["end"])
        except KeyboardInterrupt:
            events.append(["interrupt"])
        except BaseException as error:
            events.append(["error", type(error).__name__])
        longest = max(longest, time.monotonic() - began)

    def one() -> Any:
        batch = next(iterator)
        mask = rows_here(batch["mask"]) if "mask" in batch else None
        return ["batch", [rows_here(batch["x"]), mask]]

    def spec() -> None:
        assert iterator.element_spec["x"].shape == (phase.batch * phase.count,)

    def is_over() -> bool:
        errors = [event[0] == "error" for event in events[-2:]]
        return bool(events) and (events[-1] == ["end"] or (len(errors) == 2 and all(errors)))

    with begins, iterator:
        if phase.fault == "spec":
            attempt(spec)
        if phase.steps is not None and phase.kind != "own":
            state = iterator.get_state()
            for _ in range(phase.steps):
                attempt(one)
            if phase.fault == "restore" and is_here:
                state = b"{}"
            if not is_over():
                attempt(lambda: moved(iterator, state))
        while not is_over():
            attempt(one)
        meet()
    return {"events": events, "longest": longest}


def moved(iterator: Any, state: bytes) -> Any:
    iterator.set_state(state)
    return ["moved", 0]


def meet() -> None:
    """Waits until all processes are here."""
    mesh = Mesh(np.array(jax.devices()), ("all",))
    here = np.zeros(jax.local_device_count(), np.int32)
    array = jax.make_array_from_process_local_data(NamedSharding(mesh, P("all")), here)
    np.asarray(jax.jit(lambda x: x.sum())(array))


def main() -> None:
    process = initialize(*sys.argv[1:4])
    rng = random.Random(sys.argv[4])
    rng.choice((2, 2, 3, 4))
    phases = [draw(rng, int(sys.argv[2])) for _ in range(int(sys.argv[5]))]
    seen = []
    for number, phase in enumerate(phases):
        print(phase, file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(120, exit=True)  # says where it hangs, if it does
        seen.append(play(phase, process, number, Path(sys.argv[6])))
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps(seen))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
