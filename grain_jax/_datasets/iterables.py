"""Iterables of the user's own as the beginning of a stream: generators, streaming data sets.

What is gone through is made by a function of the user's, anew for each iteration. It may say where
it stands, in one of two ways that are common; see `_STATES`.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from grain_jax._values import errors

__all__ = ["Made", "open_at", "title_of"]

_STATES = (("state_dict", "load_state_dict"), ("get_state", "set_state"))
"""Methods by which an iterator, or the object that it goes through, says and takes a position."""

_TRIES = 8
"""How often a copy is tried. A data set of Hugging Face's that is made of one in memory reaches a
dict of all data sets that there are, to which its parts add themselves as they are copied; once
all of them are in it, copying does not change it any more."""

_ONCE = (
    "can be gone through only once, and a stream is gone through anew for each iteration and at a "
    "restore. Give a function that makes it: from_iterable(lambda: make()), or "
    "from_iterable(generator_function) without calling it."
)


class Made:
    """What a function of the user's makes, each time it is gone through.

    Args:
      factory: a function without arguments that returns an iterable, or an iterable that can be
        gone through again and again.

    Raises:
      InvalidTypeError: for anything else.
    """

    def __init__(self, factory: Any) -> None:
        is_iterable = not isinstance(factory, type) and hasattr(type(factory), "__iter__")
        if is_iterable and hasattr(type(factory), "__next__"):
            raise errors.InvalidTypeError(
                f"from_iterable got {_name(factory)}, an iterator, which {_ONCE}"
            )
        if not is_iterable and not callable(factory):
            raise errors.InvalidTypeError(
                f"from_iterable takes a function that returns an iterable, got {factory!r}. Write "
                "from_iterable(lambda: make())."
            )
        self._make: Callable[[], Any] = (lambda: factory) if is_iterable else factory
        self.title = f"from_iterable({_name(factory)})"
        self._last: Callable[[], Any] = _nothing

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": _nothing}

    def __iter__(self) -> Iterator[Any]:
        return open_at(self, None)

    def make(self) -> Any:
        """Returns an iterable that nobody has gone through.

        Raises:
          InvalidTypeError: if it is none, or the same iterator as before.
        """
        made = self._make()
        if not hasattr(type(made), "__iter__"):
            raise errors.InvalidTypeError(
                f"{self.title}: the function returned {_name(made)}, which is no iterable."
            )
        if hasattr(type(made), "__next__"):
            self._check_new(made, _ONCE)
        return made

    def copied(self, made: Any) -> Any:
        """Returns a copy of an iterable that keeps its position itself.

        All that go through it would share the position, and begin where another one stands.

        Raises:
          InvalidTypeError: if it cannot be copied, and is the same as before.
        """
        for _ in range(_TRIES):
            try:
                return copy.deepcopy(made)
            except RuntimeError:  # "dictionary changed size": it knows its copies, see `_TRIES`
                continue
            except Exception:
                break
        self._check_new(
            made,
            "keeps its position itself and cannot be copied. Return a new one at each call.",
        )
        return made

    def _check_new(self, made: Any, why: str) -> None:
        if self._last() is made:
            raise errors.InvalidTypeError(
                f"{self.title}: the function returned the same {_name(made)} again, which {why}"
            )
        try:
            self._last = weakref.ref(made)
        except TypeError:
            self._last = lambda: made


def open_at(dataset: Any, state: Any) -> Iterator[Any]:
    """Returns an iterator over an iterable of the user's, where a state says.

    Args:
      dataset: a custom `IterDataset`, or `Made`.
      state: what the iterator's `get_state` returned; None for its start.

    Returns:
      An iterator, which has `get_state` if it can say where it stands.
    """
    if not isinstance(dataset, Made):
        own: Iterator[Any] = iter(dataset)
        if state is not None:
            _setter(own, ("set_state",), dataset)(copy.deepcopy(state))
        return own
    made = dataset.make()
    iterator: Any = None
    names = _names(made)
    if names is None or hasattr(type(made), "__next__"):
        iterator = iter(made)
        names = _names(iterator)
        if names is None:
            if state is not None:
                _setter(iterator, [pair[1] for pair in _STATES], dataset)
            plain: Iterator[Any] = iterator
            return plain
        holder = iterator
    else:
        holder = made = dataset.copied(made)
    getter, setter = names
    if state is not None:
        getattr(holder, setter)(copy.deepcopy(state))
    return _Stateful(iter(made) if iterator is None else iterator, getattr(holder, getter))


def _nothing() -> None:
    """Stands for what was made before, where nothing was."""


class _Stateful(Iterator[Any]):
    """An iterator whose position something else may say."""

    def __init__(self, iterator: Iterator[Any], get_state: Callable[[], Any]) -> None:
        self._iterator = iterator
        self.get_state = get_state
        self._next = iterator.__next__

    def __next__(self) -> Any:
        return self._next()

    def close(self) -> None:
        """Closes the iterator, if that can be closed."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()


def _names(holder: Any) -> tuple[str, str] | None:
    """Returns the methods that say and take a position; None without any."""
    for pair in _STATES:
        if all(callable(getattr(holder, name, None)) for name in pair):
            return pair
    return None


def _setter(iterator: Any, names: Iterable[str], dataset: Any) -> Callable[[Any], None]:
    for name in names:
        found = getattr(iterator, name, None)
        if found is not None:
            return found  # type: ignore[no-any-return]
    raise errors.StateError(
        f"the state says where the iterator of {title_of(dataset)} stood, and that of this run "
        f"has no {' or '.join(names)}. Build it as it was when the state was saved."
    )


def title_of(dataset: Any) -> str:
    """Returns what messages call an iterable of the user's."""
    title: str = dataset.title if isinstance(dataset, Made) else type(dataset).__name__
    return title


def _name(value: Any) -> str:
    name = getattr(value, "__qualname__", None) if callable(value) else None
    return str(name).rpartition("<locals>.")[2] if name else f"a {type(value).__name__}"
