"""Campaign: many batches; memory, descriptors, threads and processes stay what they were."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import grain_jax as grain
from tests.faults import campaign
from tests.processes import children

__all__ = ["run"]

_ROWS = 16
_WARM = 0.25  # share of the batches before the first look: what caches hold is there by then
_GROWTH_KB = 24_000  # what is taken for noise of the allocator


class _Image(grain.transforms.RandomMap):
    def random_map(self, element: Any, rng: np.random.Generator) -> Any:
        return {"image": np.full((8, 8), element, np.float32), "noise": rng.random(), "n": element}


class _Odd(grain.transforms.Filter):
    def filter(self, element: Any) -> bool:
        return bool(element["n"] % 2)


def _loader(*operations: Any, workers: int) -> grain.DataLoader:
    sampler = grain.samplers.IndexSampler(5000, shuffle=True, seed=1)
    todo = [_Image(), *operations, grain.transforms.Batch(_ROWS)]
    return grain.DataLoader(
        data_source=range(5000), sampler=sampler, operations=todo, worker_count=workers
    )


def _straight(count: int, rng: random.Random) -> Iterator[Any]:
    """One iterator, two workers, a few batches kept for a while."""
    kept: deque[Any] = deque(maxlen=5)
    with _loader(workers=2) as loader:
        for batch, _ in zip(loader, range(count), strict=False):
            kept.append(batch)
            yield batch


def _in_process(count: int, rng: random.Random) -> Iterator[Any]:
    """The same without workers."""
    with _loader(workers=0) as loader:
        yield from (batch for batch, _ in zip(loader, range(count), strict=False))


def _restless(count: int, rng: random.Random) -> Iterator[Any]:
    """Goes back to states, breaks off, begins again, loses a worker now and then."""
    done = 0
    with _loader(_Odd(), workers=2) as loader:
        while done < count:
            iterator = iter(loader)
            state = iterator.get_state()
            for batch in iterator:
                yield batch
                done += 1
                event = rng.random()
                if done >= count or event < 0.001:
                    break
                if event < 0.004:
                    iterator.set_state(state)
                elif event < 0.02:
                    state = iterator.get_state()
                elif event < 0.021:
                    os.kill(rng.choice(sorted(children())), signal.SIGKILL)
            iterator.close()


def _on_device(count: int, rng: random.Random) -> Iterator[Any]:
    """Through the device stage."""
    with grain.prefetch_to_device(_loader(workers=1)) as batches:
        yield from (batch for batch, _ in zip(batches, range(count), strict=False))


_KINDS: dict[Callable[[int, random.Random], Iterator[Any]], float] = {
    _straight: 0.5,
    _in_process: 0.15,
    _restless: 0.2,
    _on_device: 0.15,
}


def _look() -> dict[str, int]:
    gc.collect()
    status = Path("/proc/self/status").read_text().split()
    return {
        "RSS, kB": int(status[status.index("VmRSS:") + 1]),
        "mappings": len(Path("/proc/self/maps").read_text().splitlines()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(children()),
    }


def run(count: int, seed: int) -> Counter[str]:
    """Takes batches in several ways and compares what the process holds, early and at the end."""
    counts: Counter[str] = Counter()
    for kind, share in _KINDS.items():
        _one(kind, int(count * share), random.Random(f"{seed} {kind.__name__}"), counts)
    return counts


def _one(
    kind: Callable[[int, random.Random], Iterator[Any]],
    count: int,
    rng: random.Random,
    counts: Counter[str],
) -> None:
    before: dict[str, int] = {}
    after: dict[str, int] = {}
    for number, batch in enumerate(kind(count, rng), 1):
        assert batch["image"].shape == (_ROWS, 8, 8)
        assert (np.asarray(batch["image"][:, 0, 0]) == np.asarray(batch["n"])).all()
        if number == int(count * _WARM):
            before = _look()
        elif number == count - 1:
            after = _look()
    counts["batches"] += count
    growth = {what: after[what] - before[what] for what in before}
    print(f"  {kind.__name__[1:]}: {count} batches; growth after the first quarter: {growth}")
    assert growth["RSS, kB"] < _GROWTH_KB, (kind, before, after)
    assert growth["mappings"] < 300, (kind, before, after)
    for what in ("descriptors", "threads", "processes"):
        assert growth[what] <= 4, (kind, before, after)


if __name__ == "__main__":
    campaign.main(run, "batches", 200_000)
