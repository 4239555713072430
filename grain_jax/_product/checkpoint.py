"""The Orbax checkpoint handler: the data position, saved in the same step as the parameters.

Importing this module imports Orbax and registers the two argument classes with it. The facade
`grain_jax.checkpoint` imports it at the first use of one of its names, which is early enough: a
`CheckpointManager` looks the handler of an item up when it meets the arguments, so that it may have
been made before.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import orbax.checkpoint as ocp

from grain_jax._values.checkpointable import (
    check_iterator,
    process_position,
    restore_state,
    start_prefetching,
    take_state,
)
from grain_jax._values.errors import InvalidTypeError
from grain_jax._values.files import StatePath, write_state

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave"]


class CheckpointHandler(ocp.AsyncCheckpointHandler):  # type: ignore[misc]  # orbax has no types
    """Saves and restores the position of an iterator: of a loader, a dataset or a device stage.

    Each process writes one file, `process_<index>-of-<count>.json`. An asynchronous save takes the
    position before it returns and writes the file later, so that training goes on meanwhile.

    Example:
      >>> import pathlib, tempfile
      >>> import grain_jax as grain
      >>> folder = pathlib.Path(tempfile.mkdtemp())
      >>> iterator = iter(grain.load([1, 2, 3], num_epochs=1))
      >>> handler = CheckpointHandler()
      >>> next(iterator)
      1
      >>> handler.save(folder, iterator)
      >>> other = handler.restore(folder, iter(grain.load([1, 2, 3], num_epochs=1)))
      >>> next(other)
      2
    """

    def save(self, directory: StatePath, item: Any = None, args: Any = None) -> None:
        """Saves the iterator's position in `directory`.

        Args:
          directory: an existing directory.
          item: the iterator; or give `args`.
          args: `CheckpointSave(iterator)`, as a `CheckpointManager` passes it.
        """
        write_state(directory, *process_position(), take_state(_iterator(item, args, "save")))

    async def async_save(
        self, directory: StatePath, item: Any = None, args: Any = None
    ) -> list[Any]:
        """Takes the iterator's position now; returns a future of Orbax's that writes it."""
        state = take_state(_iterator(item, args, "save"))
        index, count = process_position()

        async def write() -> None:
            write_state(directory, index, count, state)

        # This future also waits until Orbax has made the directory.
        return [ocp.future.CommitFutureAwaitingContractedSignals(write(), name="grain_jax_save")]

    def restore(self, directory: StatePath, item: Any = None, args: Any = None) -> Any:
        """Moves the given iterator to the position saved in `directory` and starts its prefetching.

        Args:
          directory: the directory that `save` was given.
          item: an iterator of the same pipeline, changed in place; or give `args`.
          args: `CheckpointRestore(iterator)`, as a `CheckpointManager` passes it.

        Returns:
          The iterator that was given.

        Raises:
          ValueError: if the file that this process needs is missing or damaged, belongs to another
            number of processes, or holds the state of another pipeline.
        """
        iterator = _iterator(item, args, "restore")
        index, count = process_position()
        restore_state(iterator, directory, index=index, count=count)
        start_prefetching(iterator)
        return iterator

    def structure(self, directory: StatePath) -> Any:
        """Returns nothing: a position has no structure before it is restored."""

    @classmethod
    def typestr(cls) -> str:
        """Returns the name that checkpoints keep: the public one, wherever the class lives."""
        return f"grain_jax.checkpoint.{cls.__qualname__}"


@ocp.args.register_with_handler(CheckpointHandler, for_save=True)
@dataclasses.dataclass
class CheckpointSave(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The iterator to save, among the items of an `ocp.args.Composite`.

    Example:
      manager.save(step, args=ocp.args.Composite(
          model=ocp.args.StandardSave(params),
          data=grain_jax.checkpoint.CheckpointSave(iterator)))

    Attributes:
      item: the iterator; its position is that of the moment `save` is called.
    """

    item: Any

    def __post_init__(self) -> None:
        check_iterator(self.item)


@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)
@dataclasses.dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):  # type: ignore[misc]
    """The iterator to move to the saved position, among the items of an `ocp.args.Composite`.

    Example:
      manager.restore(step, args=ocp.args.Composite(
          model=ocp.args.StandardRestore(params),
          data=grain_jax.checkpoint.CheckpointRestore(iterator)))

    Attributes:
      item: an iterator of the same pipeline; it is changed in place and prefetches afterwards.
    """

    item: Any

    def __post_init__(self) -> None:
        check_iterator(self.item)


def _iterator(item: Any, args: Any, verb: str) -> Any:
    """Returns the iterator out of the older `item=` or the newer `args=`, of which one is given."""
    if (item is None) == (args is None):
        given = "neither was" if item is None else "both were"
        raise InvalidTypeError(
            f"{verb} takes the iterator as item=iterator or as"
            f" args=Checkpoint{verb.capitalize()}(iterator); {given} given"
        )
    return item if args is None else args.item
