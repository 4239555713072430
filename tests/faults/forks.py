"""Campaign: the trainer is forked at random moments, with batches held on both sides."""

from __future__ import annotations

import dataclasses
import faulthandler
import itertools
import os
import random
import signal
import threading
import traceback
import warnings
from collections import Counter
from typing import Any, NoReturn

from tests.faults import campaign, pieces
from tests.property import library, reference

__all__ = ["run"]

_STUCK = 60  # seconds that a child may take
_HELD = 6  # elements that are held at a time


class _Run:
    """One pipeline, as the training loop and those who fork it see it.

    Attributes:
      held: elements that nobody writes to, each with its value.
      taken: how many elements the loop has.
    """

    def __init__(self, rng: random.Random, most: int) -> None:
        self.rng = rng
        self.pipeline = dataclasses.replace(
            reference.draw(rng), records=rng.randint(60, 150), epochs=2
        )
        self.workers = rng.choice([0, 1, 2, 2])
        self.expected = pieces.expected(self.pipeline)
        self.held: list[tuple[Any, Any]] = []
        self.taken = 0
        self.forks = self.checked = 0
        self.most = min(most, rng.randint(2, 12))
        self.iterator: Any = None
        self.failure: BaseException | None = None
        self._begun, self._over = threading.Event(), threading.Event()

    def loader(self) -> Any:
        slow = pieces.Slow(self.rng.randint(1, 5), self.rng.choice([0.0, 0.001, 0.003]))
        places = len(self.pipeline.operations)
        return pieces.loader(self.pipeline, self.workers, [(0, slow), (places, pieces.Widen())])

    def train(self) -> None:
        """Takes all elements, holds some for a while, and writes to some."""
        rng = random.Random(self.rng.random())
        forker = threading.Thread(target=self._fork_again_and_again, daemon=True)
        with self.loader() as loader:
            self.iterator = iter(loader)
            forker.start()
            try:
                for element in self.iterator:
                    value = pieces.value_of(element)
                    assert value == self.expected[self.taken], self.pipeline
                    self.held.append((element, value))
                    self.taken += 1
                    self._begun.set()
                    del element
                    while len(self.held) > rng.randint(2, _HELD):
                        element, value = self.held.pop(rng.randrange(len(self.held)))
                        assert pieces.value_of(element) == value
                        if rng.random() < 0.5:
                            element["wide"][...] = -9
                        del element
            finally:
                self._over.set()
                self._begun.set()
                forker.join()
        assert self.taken == len(self.expected) or self.failure, self.pipeline
        assert all(pieces.value_of(element) == value for element, value in self.held)
        if self.failure is not None:
            raise self.failure

    def _fork_again_and_again(self) -> None:
        self._begun.wait()
        try:
            while self.forks < self.most and not self._over.wait(self.rng.expovariate(1 / 0.02)):
                self._fork()
        except BaseException as error:
            self.failure = error

    def _fork(self) -> None:
        seed = self.rng.random()
        hear, say = os.pipe()
        held = len(self.held)
        pid = os.fork()
        if not pid:
            os.close(say)
            self._child(hear, random.Random(seed))
        os.close(hear)
        self._over.wait(self.rng.choice([0.0, 0.02, 0.1]))  # the loop goes on meanwhile
        os.close(say)
        status = os.waitpid(pid, 0)[1]
        assert status == 0, (status, self.pipeline, self.workers)
        self.forks += 1
        self.checked += held

    def _child(self, hear: int, rng: random.Random) -> NoReturn:
        code = 1
        try:
            signal.alarm(_STUCK)
            faulthandler.dump_traceback_later(_STUCK - 5)
            held, taken = list(self.held), self.taken
            os.read(hear, 1)
            for element, value in held:
                assert pieces.value_of(element) == value
                element["wide"][...] = -8
            if not self.workers:
                self._go_on(taken)
            if rng.random() < 0.2:
                with pieces.loader(self.pipeline, 1, []) as loader:
                    first = library.plain(next(iter(loader)))
                    assert first == self.expected[0]
            code = 0
        except StopIteration:
            code = 0 if not self.expected else 1
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _go_on(self, taken: int) -> None:
        """Without workers a child goes on: behind what the loop has, or is just being given."""
        got = [pieces.value_of(element) for element in itertools.islice(self.iterator, 3)]
        left = [self.expected[begin : begin + 3] for begin in (taken, taken + 1)]
        assert got in left, (got, left)


def run(count: int, seed: int) -> Counter[str]:
    """Forks the trainer; parent and children each have the batches that they held."""
    counts: Counter[str] = Counter()
    number = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks beside threads: they are the point
        while counts["forks"] < count:
            one = _Run(random.Random(f"{seed} {number}"), count - counts["forks"])
            number += 1
            one.train()
            counts["pipelines"] += 1
            counts["forks"] += one.forks
            counts["batches held by children"] += one.checked
            counts["elements, all right"] += one.taken
    return counts


if __name__ == "__main__":
    campaign.main(run, "forks", 500)
