"""Clocks count the time of a thread for what it told of last."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np

from grain_jax._values import clock, progress


class _Time:
    """Seconds that a test counts out."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_for_what_was_told_last(monkeypatch: Any) -> None:
    seconds = _Time()
    monkeypatch.setattr(time, "perf_counter", seconds)
    monkeypatch.setattr(clock.here, "clock", clock.Clock())
    running = clock.here.clock
    assert running is not None
    seconds.now += 1  # before anything was told: nobody's
    progress.at("source", None, 4)
    seconds.now += 2
    progress.at("source")  # somebody else has said how many
    seconds.now += 3
    progress.at("map", None, 4)
    seconds.now += 10
    progress.at("source", None, 2)
    seconds.now += 5
    assert {what: cost[:3] for what, cost in running.stop().items()} == {
        "source": [2, 10.0, 6],
        "map": [1, 10.0, 4],
    }


def test_without_a_clock_and_in_other_threads_nothing_is_counted(monkeypatch: Any) -> None:
    progress.at("map", None, 4)
    monkeypatch.setattr(clock.here, "clock", clock.Clock())
    thread = threading.Thread(target=progress.at, args=("map", None, 4))
    thread.start()
    thread.join()
    assert clock.here.clock is not None
    assert clock.here.clock.stop() == {}


def test_sizes_are_those_of_arrays_and_text_and_never_fail() -> None:
    element = {"x": np.zeros((3, 4), np.float32), "name": "abc", "raw": b"12", "label": 7}
    assert clock.size(element) == 48 + 3 + 2 + 8

    class Odd:
        @property
        def nbytes(self) -> int:
            raise RuntimeError

    assert clock.size([Odd()]) == 0
