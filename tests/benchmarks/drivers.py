"""How a workload is measured: what is done with the iterable, and what is written down."""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tests.benchmarks import grains, order, peers, processes, reference
from tests.benchmarks.peers import Setting
from tests.benchmarks.workloads import Workload

Figures = dict[str, Any]

clock = time.perf_counter


def measure(workload: Workload, setting: Setting, seconds: float) -> Figures:
    """What one process finds out about a workload in a setting."""
    return _DRIVERS[workload.driver](workload, setting, seconds)


def _rate(iterator: Iterator[Any], seconds: float, after: Callable[[], Any] = bool) -> Figures:
    """Takes batches for `seconds`, after as many for a third of that which do not count.

    Args:
      iterator: of batches.
      seconds: how long.
      after: is called after each batch.
    """
    begin = clock()
    batch = next(iterator)
    while clock() < begin + seconds / 3:
        next(iterator)
        after()
    used = processes.processor_seconds(os.getpid())
    taken, start = 0, clock()
    while (now := clock()) < start + seconds or taken < 3:
        next(iterator)
        after()
        taken += 1
    records = taken * _rows(batch)
    figures = {
        "records_per_second": records / (now - start),
        "bytes_per_record": _bytes(batch) / _rows(batch),
    }
    if used is not None:
        spent = (processes.processor_seconds(os.getpid()) or 0) - used
        figures["cpu_seconds_per_record"] = spent / records
    return figures


def stream(workload: Workload, setting: Setting, seconds: float) -> Figures:
    """Speed, the first batch, a second iteration, memory, and whether the batches are right."""
    begin = clock()
    batches = peers.batches(workload, setting)
    made = clock()
    iterator = iter(batches)
    first = next(iterator)
    figures: Figures = {"first_batch": clock() - made, "made": made - begin}
    figures |= _rate(iterator, seconds)
    figures["pss"] = processes.memory(processes.family(os.getpid()))
    _close(iterator)
    del iterator
    start = clock()
    again = iter(batches)
    second = next(again)
    figures["second_iter"] = clock() - start
    got = itertools.chain([second], again)
    figures["checked"], figures["wrong"] = check(workload, setting, first, got)
    _close(again)
    return figures


def check(
    workload: Workload, setting: Setting, first: Any, got: Iterator[Any], seconds: float = 0.3
) -> tuple[int, str | None]:
    """Compares batches with plain Python's, at most for about `seconds`.

    Returns:
      How many batches were compared, and what was wrong with the first that was.
    """
    known = None
    if workload.shuffle:
        # Filters keep a few records more or less than on average.
        known = min(order.CHECKED, workload.length) * 9 // 10 // _consumed(workload)
    end = clock() + seconds
    count = 0
    for want in itertools.islice(reference.expected(workload, lanes(workload, setting)), known):
        batch = next(got)
        wrong = reference.difference(workload, arrays(batch), want)
        if count == 0 and setting.peer != "floor":  # which may write into the same memory again
            wrong = wrong or reference.difference(workload, arrays(first), want)
        if wrong:
            return count, f"batch {count}: {wrong}"
        count += 1
        if clock() > end and count >= 3:
            break
    return count, None


def lanes(workload: Workload, setting: Setting) -> int:
    """How many streams of their own records workers make of the workload."""
    filters = any(step.kind == "filter" for step in workload.steps)
    own = setting.peer == "grain" or (setting.peer in ("torch", "stateful") and filters)
    return max(setting.workers or 1, 1) if own else 1


def _consumed(workload: Workload) -> int:
    """Records that go into a batch, at most about."""
    keeps = {"is_even": 2, "is_hundredth": 100, "is_rare": 256}
    factor = 20 if workload.grouping != "none" else 1
    for step in workload.steps:
        factor *= keeps.get(step.function.__name__, 1)
    return workload.batch * factor


def arrays(batch: Any) -> Any:
    """Of NumPy: torch's default collation gives tensors, and text as lists."""
    if isinstance(batch, dict):
        return {name: arrays(leaf) for name, leaf in batch.items()}
    return np.asarray(batch)


def _leaves(batch: Any) -> list[np.ndarray]:
    found = arrays(batch)
    return list(found.values()) if isinstance(found, dict) else [found]


def _rows(batch: Any) -> int:
    return len(_leaves(batch)[0])


def _bytes(batch: Any) -> int:
    return sum(leaf.nbytes for leaf in _leaves(batch))


def _close(iterator: Any) -> None:
    if hasattr(iterator, "close"):
        iterator.close()


def memory(workload: Workload, setting: Setting, seconds: float) -> Figures:
    """Memory of the helper and of the workers, with the array in memory and mapped from a file."""
    import grain_jax

    arrays = workload.source(workload.length)
    figures: Figures = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        path = f"{folder}/x.npy"
        np.save(path, arrays["x"])
        mapped = {"x": np.load(path, mmap_mode="r"), "y": arrays["y"]}
        figures["gib"] = sum(array.nbytes for array in arrays.values()) / 2**30
        for name, source in (("pss_workers", arrays), ("pss_workers_mapped", mapped)):
            loader = grain_jax.load(
                source, shuffle=True, seed=0, batch_size=256, worker_count=setting.workers
            )
            iterator = iter(loader)
            end = clock() + max(seconds, 0.5)
            while clock() < end:
                next(iterator)
            others = [pid for pid in processes.family(os.getpid()) if pid != os.getpid()]
            figures[name] = processes.memory(others)
            _close(iterator)
    return figures


def resume(workload: Workload, setting: Setting, seconds: float) -> Figures:
    """Seconds from a state at record 10,000,000 to the batch behind it."""
    at = 10_000_000 if workload.length > 10_000_000 else workload.length // 2
    state = _state_at(workload, setting, at)
    iterator = iter(peers.batches(workload, setting))
    start = clock()
    iterator.set_state(state)
    batch = next(iterator)
    figures: Figures = {"resume": clock() - start}
    figures |= _rate(iterator, seconds)
    source, sampler = workload.source(workload.length), _sampler(setting, workload)
    step = max(setting.workers or 1, 1) if setting.peer == "grain" else 1
    keys = [sampler[at + i * step].record_key for i in range(workload.batch)]
    want = np.array([source[key] + 1 for key in keys])
    figures["checked"] = 1
    figures["wrong"] = reference.difference(workload, arrays(batch), want)
    _close(iterator)
    return figures


def _sampler(setting: Setting, workload: Workload) -> Any:
    library = grains.library(setting.peer)
    return library.samplers.IndexSampler(workload.length, shuffle=True, seed=0)


def _state_at(workload: Workload, setting: Setting, at: int) -> Any:
    """A state of a loader that has given so many records."""
    if setting.peer == "grain_jax":  # whose states do not depend on the size of a batch
        large = dataclasses.replace(workload, batch=at // 10)
        iterator = iter(peers.batches(large, setting))
        for _ in range(10):
            next(iterator)
        state = iterator.get_state()
        _close(iterator)
        return state
    import json

    iterator = iter(peers.batches(workload, setting))
    state = json.loads(iterator.get_state())
    workers = max(setting.workers or 1, 1)
    last = {str(worker): at - workers + worker for worker in range(workers)}
    state["last_seen_indices"] = last
    return json.dumps(state).encode()


def states(workload: Workload, setting: Setting, seconds: float) -> Figures:
    """Speed with a `get_state` after each batch, and the Python calls that it takes."""
    iterator = iter(peers.batches(workload, setting))
    figures = _rate(iterator, seconds, iterator.get_state)
    plain = _rate(iterator, seconds)
    figures["records_per_second_without"] = plain["records_per_second"]
    figures["calls"] = _calls(iterator.get_state)
    _close(iterator)
    return figures


def _calls(function: Callable[[], Any]) -> int:
    """How many Python functions run in a call."""
    counted = 0

    def count(frame: Any, event: str, arg: Any) -> None:
        nonlocal counted
        counted += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return counted


def device(workload: Workload, setting: Setting, seconds: float) -> Figures:
    """Seconds of a step of a loop that sleeps as long as a batch takes to make."""
    import grain_jax

    loader = peers.batches(workload, setting)
    iterator = iter(loader)
    load = workload.batch / _rate(iterator, seconds)["records_per_second"]
    _close(iterator)
    count = max(10, int(seconds / load / 2))
    with grain_jax.prefetch_to_device(loader) as staged:
        for batch in itertools.islice(staged, 5):
            batch.block_until_ready()
        start = clock()
        for batch in itertools.islice(staged, count):
            batch.block_until_ready()
            time.sleep(load)
        step = (clock() - start) / count
    start = clock()
    for _ in range(count):
        time.sleep(load)
    sleep = (clock() - start) / count  # which is longer than what was asked for
    return {"load": load, "sleep": sleep, "step": step, "step_to_longer": step / max(load, sleep)}


def evaluation(workload: Workload, setting: Setting, seconds: float) -> Figures:
    """Steps per second of a loop that goes through 10 other batches after every 100 steps."""
    training = iter(peers.batches(workload, setting))
    small = dataclasses.replace(workload, length=workload.length // 100)
    held_out = peers.batches(small, setting)

    def evaluate() -> None:
        iterator = iter(held_out)
        for _ in range(10):
            next(iterator)
        _close(iterator)

    next(training)
    evaluate()
    steps, start = 0, clock()
    while steps < 10_000 and (clock() < start + 2 * seconds or steps == 0):
        for _ in range(100):
            next(training)
        evaluate()
        steps += 100
    spent = clock() - start
    _close(training)
    return {"steps": steps, "records_per_second": steps * workload.batch / spent}


_DRIVERS: dict[str, Callable[[Workload, Setting, float], Figures]] = {
    "stream": stream,
    "memory": memory,
    "resume": resume,
    "states": states,
    "device": device,
    "evaluation": evaluation,
}
