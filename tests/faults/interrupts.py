"""Campaign: Ctrl-C at random moments of the training loop, which then goes on, as in a notebook."""

from __future__ import annotations

import dataclasses
import random
import signal
import threading
from collections import Counter
from typing import Any

import grain_jax as grain
from grain_jax._execution.prefetch_iterator import PrefetchIterator
from tests.faults import campaign, pieces
from tests.property import library, reference

__all__ = ["run"]

_STUCK = 20.0  # seconds


class _Interrupter(threading.Thread):
    """Interrupts the main thread again and again, but not before the last one is dealt with."""

    def __init__(self, rng: random.Random, most: int) -> None:
        super().__init__(daemon=True)
        self.sent = 0
        self._rng = rng
        self._most = most
        self._dealt_with = threading.Event()
        self._told = threading.Event()

    def run(self) -> None:
        while self.sent < self._most and not self._told.wait(self._rng.expovariate(1 / 0.004)):
            self._dealt_with.clear()
            self.sent += 1
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self._dealt_with.wait()

    def go_on(self) -> None:
        self._dealt_with.set()

    def end(self) -> None:
        """Sends no more; one that was sent may still arrive as this returns."""
        self._told.set()
        while self.is_alive():
            self._dealt_with.set()
            self.join(0.01)  # a wait without an end may overlook a signal that has just come


def run(count: int, seed: int) -> Counter[str]:
    """Interrupts random pipelines; the stream goes on exactly at the state after each interrupt."""
    counts: Counter[str] = Counter()
    number = 0
    with grain.load([0], worker_count=1) as idle:
        iter(idle)  # what all loaders share stays
        while counts["interrupts"] < count:
            rng = random.Random(f"{seed} {number}")
            number += 1
            _one(rng, count - counts["interrupts"], counts)
    return counts


def _one(rng: random.Random, most: int, counts: Counter[str]) -> None:
    pipeline = dataclasses.replace(reference.draw(rng), records=rng.randint(20, 60))
    extra = [(0, pieces.Slow(rng.randint(1, 5), rng.choice([0.0, 0.001, 0.005])))]
    expected = pieces.expected(pipeline)
    states = _states(pipeline)
    interrupter = _Interrupter(rng, min(most, 20))
    lost = 0
    with pieces.loader(pipeline, rng.choice([0, 1, 2]), extra, stall_timeout=_STUCK) as loader:
        iterator: Any = iter(loader)
        if rng.random() < 0.5:
            iterator = PrefetchIterator(iterator, lambda element: element, rng.randint(0, 2))
        got: list[Any] = []
        is_over = False
        while not is_over:
            try:
                if interrupter.ident is None:
                    interrupter.start()
                for element in iterator:
                    got.append(library.plain(element))
                is_over = True
                interrupter.end()
            except KeyboardInterrupt:
                # It may have come as an element was handed over: then the state is behind that one.
                state = iterator.get_state()
                if state != states[len(got)] and len(got) < len(expected):
                    assert state == states[len(got) + 1], pipeline
                    got.append(expected[len(got)])
                    lost += 1
                interrupter.go_on()
        assert got == expected, pipeline
    counts["interrupts"] += interrupter.sent
    if lost:
        counts["of them as an element was handed over"] += lost
    counts["elements, all right"] += len(got)


def _states(pipeline: reference.Pipeline) -> list[bytes]:
    """Returns the states after 0, 1, 2 ... elements."""
    iterator = iter(pieces.loader(pipeline, 0, [(0, pieces.Slow(1, 0.0))]))
    return [iterator.get_state(), *(iterator.get_state() for _ in iterator)]


if __name__ == "__main__":
    campaign.main(run, "interrupts", 300)
