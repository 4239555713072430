"""The process-wide generators `random` and `np.random`, made a function of the element.

User code, or a library it calls, may draw from them. Seeding them for every element makes such
draws independent of which process works, and of what it did before. Seeding costs some 30 µs in the
trainer's process (where the user's own state is put back afterwards), so code that provably never
draws from them (see `drawing`) is left alone.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from grain_jax._algebra.drawing import may_draw
from grain_jax._values import randomness

__all__ = ["may_draw", "preserved", "seed_for"]

# NumPy documents both; its type stubs leave them out.
_get_bits = np.random.get_bit_generator  # type: ignore[attr-defined]
_set_bits = np.random.set_bit_generator  # type: ignore[attr-defined]


def seed_for(seed: int, position: int, output: int, part: int) -> None:
    """Seeds both process-wide generators for one element.

    Args:
      seed: the pipeline's seed.
      position: the element's position.
      output: which output of a flat-map it is.
      part: which part of the pipeline works on it.
    """
    key = np.array([seed & _WORD, position & _WORD], np.uint64)
    counter = randomness.counter_of(output, part)
    _set_bits(np.random.Philox(counter=counter, key=key))
    words = (output, part, position & _WORD, seed & _WORD)
    number = 0
    for word in words:
        number = (number << 64) + word
    random.seed(number)


_WORD = 2**64 - 1


class _Keeper:
    """The user's own state, while any thread of this process works with seeds of ours."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._saved: tuple[Any, Any] | None = None

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._saved = random.getstate(), _get_bits()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._saved is not None:
                state, bits = self._saved
                self._saved = None
                random.setstate(state)
                _set_bits(bits)


_keeper = _Keeper()


@contextlib.contextmanager
def preserved() -> Iterator[None]:
    """Puts both process-wide generators back at the end: at that of the last of several at once."""
    _keeper.enter()
    try:
        yield
    finally:
        _keeper.leave()
