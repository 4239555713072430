"""Iterators as Orbax sees them: a state to take and write, a state to read and set.

The same few functions serve the checkpoint handler of Orbax's `CheckpointManager` and the
`save`/`load` methods through which Orbax's V1 API saves an iterator without any registration.
Nothing here imports Orbax, and JAX is imported at the first save or load.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Coroutine
from typing import Any, Protocol

from grain_jax._values import notices
from grain_jax._values.errors import InvalidTypeError, OtherShardError, StateError
from grain_jax._values.files import StatePath, read_all_states, read_state, write_state

__all__ = [
    "PathAwaitingCreation",
    "StatefulCheckpointable",
    "StatefulIterator",
    "check_iterator",
    "process_position",
    "restore_state",
    "start_prefetching",
    "take_state",
]


class StatefulIterator(Protocol):
    """What can be saved: `get_state` gives bytes or a JSON value, `set_state` takes the same."""

    def get_state(self) -> Any:
        """Returns the position."""

    def set_state(self, state: Any) -> None:
        """Moves to a position."""


class PathAwaitingCreation(Protocol):
    """Orbax's path to a directory that somebody else is still creating."""

    async def await_creation(self) -> Any:
        """Returns the path once the directory exists."""


def process_position() -> tuple[int, int]:
    """Returns (index of this process, number of processes) as JAX counts them."""
    import jax

    return jax.process_index(), jax.process_count()


def check_iterator(iterator: Any) -> None:
    """Refuses an object whose position cannot be taken and set.

    Raises:
      InvalidTypeError: if it has no `get_state` and `set_state`.
    """
    if not (hasattr(iterator, "get_state") and hasattr(iterator, "set_state")):
        raise InvalidTypeError(
            f"{type(iterator).__name__} has no get_state() and set_state(), so it has no position"
            " to save or restore. Give an iterator: iter(loader) rather than the loader, and the"
            " one that the training loop takes its batches from."
        )


def take_state(iterator: StatefulIterator) -> bytes:
    """Returns the iterator's position now, as JSON text.

    Raises:
      InvalidTypeError: if this is no iterator with a state, or its state is no JSON.
    """
    check_iterator(iterator)
    state = iterator.get_state()
    try:
        if isinstance(state, (bytes, bytearray)):
            json.loads(state)
            return bytes(state)
        _check_keys(state)
        return json.dumps(state, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidTypeError(
            f"The state of {type(iterator).__name__} is no JSON, and a state file holds nothing"
            f" else ({error}). Its get_state() should return dicts, lists, str, int, float,"
            " bool and None, or the bytes of their JSON."
        ) from error


def restore_state(
    iterator: StatefulIterator, directory: StatePath, *, index: int, count: int
) -> None:
    """Moves an iterator to the position saved in `directory`.

    Raises:
      StateError: if the files do not give this process a state, or the iterator refuses it.
    """
    check_iterator(iterator)
    as_bytes = isinstance(iterator.get_state(), (bytes, bytearray))

    def move(state: bytes) -> None:
        iterator.set_state(state if as_bytes else json.loads(state))

    # What is one of several processes restores with them, since Orbax waits for all.
    restoring = getattr(iterator, "_restoring", _telling)
    with restoring():
        try:
            try:
                move(read_state(directory, index, count))
            except OtherShardError:
                # As many processes as before, over which a different mesh deals the rows out.
                move(read_all_states(directory))
        except StateError as error:
            error.add_note(f"The state was read from {directory}.")
            raise


def _telling() -> contextlib.AbstractContextManager[None]:
    """Lets those know who go on to the next batch that this process has not restored its own."""
    return notices.telling("as its position was restored")


def start_prefetching(iterator: StatefulIterator) -> None:
    """Starts reading ahead, if this iterator can."""
    start_prefetch = getattr(iterator, "start_prefetch", None)
    if start_prefetch is not None:
        start_prefetch()


class StatefulCheckpointable:
    """Gives an iterator the `save` and `load` by which Orbax's V1 API recognises it.

    The class that inherits has `get_state` and `set_state`, and `start_prefetch` if it can run
    ahead.
    """

    __slots__ = ()

    def save(
        self: StatefulIterator, directory: PathAwaitingCreation
    ) -> Coroutine[Any, Any, Coroutine[Any, Any, None]]:
        """Saves the position of this moment; what happens to the iterator later does not matter.

        Args:
          directory: Orbax's path in the process of being created.

        Returns:
          What an `async def` returns: a coroutine, which Orbax awaits at once. It gives a second
          one, not awaited yet, which writes the file and is meant for a background thread.
        """
        # A plain function that returns a coroutine, since the body of an `async def` would run
        # only when somebody awaits it, and the iterator may have moved on by then.
        state = take_state(self)
        index, count = process_position()

        async def write() -> None:
            write_state(await directory.await_creation(), index, count, state)

        async def begin() -> Coroutine[Any, Any, None]:
            return write()

        return begin()

    async def load(self: StatefulIterator, directory: StatePath) -> Coroutine[Any, Any, None]:
        """Restores the position saved in `directory`.

        Args:
          directory: the directory of this item in the checkpoint.

        Returns:
          A coroutine, not awaited yet, which starts prefetching.

        Raises:
          ValueError: if the file that this process needs is missing or damaged, belongs to another
            number of processes, or holds the state of another pipeline.
        """
        # A state is small, so it is read here and not in the coroutine: Orbax takes any error of
        # the coroutine for an unsuitable handler and says that instead.
        index, count = process_position()
        restore_state(self, directory, index=index, count=count)

        async def prefetch() -> None:
            start_prefetching(self)

        return prefetch()


def _check_keys(value: Any) -> None:
    """Refuses keys that JSON would turn into text without a word, as it does with integers."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"key {key!r} is not a str")
            _check_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_keys(item)
