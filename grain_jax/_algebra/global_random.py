"""The process-wide generators `random` and `np.random`, made a function of the element.

User code, or a library it calls, may draw from them. Seeding them for every element makes such
draws independent of which process works, and of what it did before. Seeding costs some 30 µs in the
trainer's process (where the user's own state is put back afterwards), so code that provably never
draws from them (see `drawing`) is left alone.
"""

from __future__ import annotations

import random
import threading

import numpy as np

from grain_jax._algebra.drawing import may_draw
from grain_jax._values import randomness

__all__ = ["may_draw", "preserved", "seed_for"]

_WORD = 2**64 - 1

# NumPy documents both; its type stubs leave them out.
_get_bits = np.random.get_bit_generator  # type: ignore[attr-defined]
_set_bits = np.random.set_bit_generator  # type: ignore[attr-defined]

# The kind of generator that `np.random` begins with: `np.random.get_state` wants no other.
_ours = np.random.MT19937(0)


def seed_for(seed: int, position: int, output: int, part: int) -> None:
    """Seeds both process-wide generators for one element.

    Args:
      seed: the pipeline's seed.
      position: the element's position.
      output: which output of a flat-map it is.
      part: which part of the pipeline works on it.
    """
    numbers = np.array([seed & _WORD, position & _WORD], np.uint64)
    words = np.concatenate([numbers, randomness.counter_of(output, part)[1:]]).view(np.uint32)
    _set_bits(_ours)
    np.random.seed(words)
    random.seed(words.tobytes())


class _Saved:
    """The state of both generators."""

    def __init__(self) -> None:
        self._state, self._bits = random.getstate(), _get_bits()
        self._legacy = np.random.get_state(legacy=False)

    def restore(self) -> None:
        """Puts it back."""
        random.setstate(self._state)
        _set_bits(self._bits)
        # A draw of `randn` may wait, which the line before lost.
        if self._bits is _ours or self._legacy["has_gauss"]:
            np.random.set_state(self._legacy)


class _Threads:
    """The user's own state, while threads of this process work with seeds of ours."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._saved: _Saved | None = None

    def enter(self) -> None:
        with self._lock:
            if not self._inside:
                self._saved = _Saved()
            self._inside += 1

    def leave(self) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._saved is not None:
                self._saved.restore()
                self._saved = None


class _Nesting(threading.local):
    depth = 0


_threads = _Threads()
_nesting = _Nesting()


class preserved:
    """Puts both process-wide generators back at the end.

    Where several threads are inside at once, the last one to leave puts back what the first found.
    """

    # Not a generator under contextlib.contextmanager: that sets the traceback of an exception that
    # passes through, which one that is a frozen dataclass does not let it.

    def __enter__(self) -> None:
        _nesting.depth += 1
        self._saved = _Saved() if _nesting.depth > 1 else None
        if self._saved is None:
            _threads.enter()

    def __exit__(self, *_: object) -> None:
        try:
            if self._saved is not None:
                self._saved.restore()
            else:
                _threads.leave()
        finally:
            _nesting.depth -= 1
