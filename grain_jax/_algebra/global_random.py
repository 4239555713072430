"""The process-wide generators `random` and `np.random`, made a function of the element.

User code, or a library it calls, may draw from them. Seeding them for every element makes such
draws independent of which process works, and of what it did before. Seeding costs some 30 µs in the
trainer's process (where the user's own state is put back afterwards), so code that provably never
draws from them (see `drawing`) is left alone.
"""

from __future__ import annotations

import ctypes
import pickle
import random
import sys
import threading
from typing import Any

import numpy as np

from grain_jax._algebra.drawing import may_draw
from grain_jax._values import forks, randomness, seeds

__all__ = ["State", "may_draw", "preserved", "seed_for"]

_WORD = 2**64 - 1

_LONGEST_TURN = 60.0  # seconds

_TWISTER = 4 * 625
"""Bytes of a Mersenne Twister: 624 words, and a place in them."""

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
    numbers = np.array([seeds.word(seed), position & _WORD], np.uint64)
    words = np.concatenate([numbers, randomness.counter_of(output, part)[1:]]).view(np.uint32)
    _set_bits(_ours)
    np.random.seed(words)
    random.seed(words.tobytes())


def _peek(generator: random.Random) -> Any:
    """Returns where a generator of Python's keeps its state; None where that is not known.

    `getstate` makes 625 integers, which takes longer than many records.
    """
    at = object.__basicsize__
    if sys.implementation.name != "cpython" or type(generator).__basicsize__ < at + _TWISTER:
        return None
    place = (ctypes.c_char * _TWISTER).from_address(id(generator) + at)
    words = generator.getstate()[1]
    return place if _python_words(place.raw) == words else None


def _python_words(raw: bytes) -> tuple[int, ...]:
    """Returns what `getstate` would say: the place in the words comes last."""
    first, *words = memoryview(raw).cast("I")
    return (*words, first)


class State:
    """The state of both generators now: to see whether code has drawn since, and to put it back."""

    def __init__(self) -> None:
        self._words: Any = _python.getstate() if _place is None else _place.raw
        self._gauss = _python.gauss_next
        self._bits = _get_bits()
        self._numpy = _state_of(self._bits)
        # A draw of `randn` may leave another one waiting, which the next call takes without drawing
        # from the bits. That takes long to see, so what was seen is kept.
        global _waiting
        if _waiting[0] != self._numpy or _waiting[1] is not self._bits:
            _waiting = self._numpy, self._bits, np.random.get_state(legacy=False)
        self._legacy: Any = _waiting[2]

    def has_changed(self) -> bool:
        """Whether anything was drawn since, or seeded."""
        words: Any = _python.getstate() if _place is None else _place.raw
        return (
            words != self._words
            or _python.gauss_next != self._gauss
            or _get_bits() is not self._bits
            or _state_of(self._bits) != self._numpy
            or bool(self._legacy["has_gauss"] and not _gauss_waits())
        )

    def restore(self) -> None:
        """Puts it back."""
        if not self.has_changed():
            return
        words = self._words
        random.setstate(words if _place is None else (3, _python_words(words), self._gauss))
        swapped = _get_bits() is not self._bits
        if swapped:
            _set_bits(self._bits)  # this loses a draw that waits
        if self._legacy["has_gauss"] or (not swapped and _gauss_waits()):
            np.random.set_state(self._legacy)
        elif _state_of(self._bits) != self._numpy:
            self._bits.state = {k: v for k, v in self._legacy.items() if "gauss" not in k}


def _state_of(bits: Any) -> bytes:
    """Returns the state of a bit generator, as bytes that are equal where it is."""
    if type(bits) is np.random.MT19937:
        # Its words and the place in them lie side by side where NumPy's interface for C says.
        return ctypes.string_at(bits.ctypes.state_address, _TWISTER)
    return pickle.dumps(bits.state)


def _gauss_waits() -> bool:
    return bool(np.random.get_state(legacy=False)["has_gauss"])


class _Threads:
    """The user's own state, while a thread of this process works with seeds of ours.

    Threads take turns: two that seed and draw at the same time would take each other's numbers.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._lock = threading.Lock()
        self._inside = 0
        self._saved: State | None = None

    def enter(self, waits: bool) -> Any:
        """Waits for its turn, if it wants one; returns what `leave` wants."""
        # Code that has its turn may wait for a thread that wants one, though it should not.
        turn = self._turn if waits and self._turn.acquire(timeout=_LONGEST_TURN) else None
        with self._lock:
            if not self._inside:
                self._saved = State()
            self._inside += 1
        return turn

    def leave(self, turn: Any) -> None:
        try:
            with self._lock:
                self._inside -= 1
                if not self._inside and self._saved is not None:
                    self._saved.restore()
                    self._saved = None
        finally:
            if turn is not None:
                turn.release()

    def renew(self, inside: int) -> None:
        """Leaves for the threads that a forked child has not got; `inside` says if it is itself."""
        self._turn, self._lock = threading.Lock(), threading.Lock()
        self._inside = 1 if self._inside else 0
        if self._inside and not inside:
            self.leave(None)


_python: Any = random.seed.__self__  # type: ignore[attr-defined]  # the one behind its functions
_place = _peek(_python)
_waiting: tuple[Any, Any, Any] = (None, None, None)


class _Nesting(threading.local):
    depth = 0


_threads = _Threads()
_nesting = _Nesting()
forks.call_in_child(lambda: _threads.renew(int(_nesting.depth > 0)))


class preserved:
    """Puts both process-wide generators back at the end.

    One thread at a time is inside; others wait for it, for a minute at most.

    Args:
      waits: whether to wait. Not where nothing is seeded inside, and other locks may be wanted.
    """

    # Not a generator under contextlib.contextmanager: that sets the traceback of an exception that
    # passes through, which one that is a frozen dataclass does not let it.

    def __init__(self, waits: bool = True) -> None:
        self._waits = waits

    def __enter__(self) -> None:
        _nesting.depth += 1
        self._saved = State() if _nesting.depth > 1 else None
        if self._saved is None:
            self._turn = _threads.enter(self._waits)

    def __exit__(self, *_: object) -> None:
        try:
            if self._saved is not None:
                self._saved.restore()
            else:
                _threads.leave(self._turn)
        finally:
            _nesting.depth -= 1
