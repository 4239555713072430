"""The device stage: each process's batches become global arrays, a few steps ahead of training."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Self

import jax
import numpy as np

from grain_jax._datasets.iter_dataset import IterDataset, plan_of
from grain_jax._execution.fingerprint import Declared
from grain_jax._execution.iterator import batch_rows
from grain_jax._execution.prefetch_iterator import PrefetchIterator, known_length
from grain_jax._execution.waits import Converting
from grain_jax._product.lockstep import STOP, Lockstep
from grain_jax._product.mapped import Mapped, compiled
from grain_jax._product.placer import Placed, Placer
from grain_jax._product.remainder import Described, Rows
from grain_jax._product.row_states import Saved, Shape, with_rows, without_rows
from grain_jax._product.terms import Terms
from grain_jax._values import notices
from grain_jax._values.errors import InvalidTypeError, InvalidValueError

__all__ = ["DeviceIterator", "check_size", "prefetch_to_device"]


def prefetch_to_device(
    source: Iterable[Any],
    sharding: Any = None,
    *,
    buffer_size: int = 2,
    remainder: str = "error",
    mask_key: str = "mask",
    axis: int = 0,
    ragged: str = "error",
    close_source: bool = False,
) -> DeviceIterator:
    """Iterates over a source once, with the arrays of each batch on devices ahead of their use.

    A batch is a tree. Its numeric leaves of shape (rows, ...) become arrays of the global batch,
    the rows of all processes together. Leaves without axes are replicated, and must be equal on all
    processes. What JAX cannot hold (text, bytes, objects, times) stays on the host. With 64-bit
    types off, integers arrive with 32 bits, and one that does not fit is an error; of floats, one
    that does not fit arrives as infinite, with a warning that names the leaf.

    Where a sharding spans several processes, all of them iterate, and all get the same number of
    batches, with the same shapes and dtypes: before one is handed out, all know that all have one.
    A loader of known length that ends in a plain `Batch` needs two or three messages for it, any
    other source one for every few batches, through the coordination service of `jax.distributed`.

    Reading starts at the first `next` or at `start_prefetch`. If the source is an iterator, it
    belongs to the result from now on.

    The result is a `DeviceIterator`: `help(grain_jax.DeviceIterator)` says more of its `next`,
    `len`, `close`, `get_state`, `set_state`, `device_map`, `element_spec`, `start_prefetch`,
    `stats`, `skipped`, `skipped_count`, `mixture_counts` and `number`. It is a context manager,
    which closes it.

    Example:
      >>> import numpy as np
      >>> batches = [{"x": np.ones((8, 3)), "name": "a"}]
      >>> for batch in prefetch_to_device(batches):
      ...     print(batch["x"].shape, batch["name"])
      (8, 3) a

    Args:
      source: a loader, a dataset, or any iterable or iterator of batches of this process.
      sharding: a `jax.sharding.Sharding`, a device, None for all devices along axis 0, or a tree of
        these that is a prefix of the batch.
      buffer_size: how many batches are on the devices beside the one in use.
      remainder: what becomes of a batch with another number of rows than the first: "error"
        refuses it (at once where the lengths are known), "drop" leaves it out, and "pad" fills it
        up with zeros, and gives every batch a mask. Where one process runs out of batches before
        another: "error" refuses that, "drop" ends on all, and "pad" gives it batches of padding.
      mask_key: with "pad", the key of the mask: bool, shape (rows,), False where a row is padding.
      axis: the axis of the rows, along which the batches of the processes are put together; along
        every other axis each process gives the whole. 1 is for time before batch and for
        microbatches; the mask then has axes 0 and 1. So it has, whatever the axis, where the source
        ends in two `Batch` steps, one behind the other.
      ragged: where rows have another shape on one process than on another, as batches have that are
        padded to their own longest sequence: "error" refuses that on all processes, and "pad" fills
        up with zeros to the larger.
      close_source: whether `close` closes the source, too. Who makes a thing closes it: the
        iterator over a loader or dataset is made here and closed here, the loader is yours to
        close. An iterator that you give is closed without being asked for only if it holds up the
        `close`.

    Raises:
      InvalidTypeError: if an argument is of the wrong kind.
      InvalidValueError: if an argument cannot work.
    """
    with notices.constructing("prefetch_to_device"):
        if ragged not in ("error", "pad"):
            raise InvalidValueError(f"ragged={ragged!r} is not known: use 'error' or 'pad'.")
        return DeviceIterator(
            source,
            sharding,
            buffer_size=check_size("buffer_size", buffer_size, 1),
            rows=Rows(remainder, mask_key, _described_rows(source), check_size("axis", axis, 0)),
            length=known_length(source),
            pads_rows=ragged == "pad",
            close_source=close_source,
        )


class DeviceIterator(PrefetchIterator[Any]):
    """What `prefetch_to_device` returns: a one-pass iterator over batches of global arrays.

    `len` is the number of batches of the whole pass, where it is known. The state is that of the
    source at the last batch received; where the source does not say how many rows a batch has, it
    is kept together with that number.

    Example:
      >>> import grain_jax as grain
      >>> loader = grain.load(np.arange(12.0), num_epochs=1, batch_size=4)
      >>> with prefetch_to_device(loader, jax.devices()[0]) as batches:
      ...     first = next(batches)
      ...     state = batches.get_state()
      ...     second = next(batches)
      >>> len(batches), second.tolist()
      (3, [4.0, 5.0, 6.0, 7.0])
      >>> with prefetch_to_device(loader, jax.devices()[0]) as batches:
      ...     batches.set_state(state)
      ...     print(next(batches).tolist())
      [4.0, 5.0, 6.0, 7.0]
    """

    _converts = "transfer"
    _is_one_pass = True

    def __init__(
        self,
        source: Iterable[Any],
        sharding: Any,
        *,
        buffer_size: int,
        rows: Rows,
        length: int | None,
        pads_rows: bool = False,
        close_source: bool = False,
    ) -> None:
        self._placer = placer = Placer(sharding, rows, pads_rows=pads_rows)
        self._rows = rows
        self._length = rows.length(length)
        self._lockstep: Lockstep | None = None
        if placer.compares:
            stage = {**rows.arguments(), "ragged": "pad" if pads_rows else "error"}
            # What keeps the terms is told when this iterator is dropped, and must not keep it.
            say: Any = weakref.WeakMethod(self._about_source)
            self._lockstep = Lockstep(
                placer.devices,
                rows.rule,
                pads_rows=pads_rows,
                terms=Terms(
                    {**stage, **placer.described()}, placer.row_sharding, rows.axis, lambda: say()()
                ),
            )
        # Who drops the iterator will not ask again, as who closes it.
        self._leave: Callable[[], object] = lambda: None
        if self._lockstep is not None:
            self._leave = finalize = weakref.finalize(self, _leave, self._lockstep, os.getpid())
            finalize.atexit = False  # the end of the program is told anyway
        self._functions: list[Callable[[Any], Any]] = []
        self._spec: Any = None
        self._full = rows.full
        self._steps_before: int | None = 0
        super().__init__(source, placer, buffer_size, close_source=close_source)
        keep_rest = getattr(self._iterator, "_keep_rest", None)
        if keep_rest is not None and rows.rule is not None:
            keep_rest(rows.rule)
        placer.is_fresh = self._is_fresh
        placer.outlook = getattr(self._iterator, "_outlook", placer.outlook)
        placer.tally = getattr(self._iterator, "_tally", placer.tally)

    def __len__(self) -> int:
        if self._length is None:
            raise InvalidTypeError(
                "the number of batches is not known: the source has no length, or remainder='drop'"
                " may drop some of a source that does not say how many rows its batches have"
            )
        return self._length

    def __bool__(self) -> bool:
        return True  # as any iterator, with or without a length

    @property
    def element_spec(self) -> Any:
        """The tree of a global batch: a `jax.ShapeDtypeStruct` with its sharding for each array.

        Arrays that stay on the host have none, and other leaves are their type. Before the first
        batch this waits for it; it stays the next one. The other processes are not asked: with
        `ragged="pad"` they may come to enlarge it.

        Raises:
          InvalidValueError: if the source has no batch.
        """
        if self._spec is None:
            with self._attending("as it was asked for element_spec"):
                self._spec = self._first_spec()
        return self._spec

    def device_map(self, function: Callable[[Any], Any]) -> Self:
        """Applies a function to each batch on the devices, ahead of the training loop.

        It is compiled by `jax.jit`, unless it is already; its outputs have the shardings that it
        gives them. Over several processes it runs as a batch is handed out, in the same order on
        all. Several are applied one after the other. Positions stay what they are.

        Args:
          function: of a tree of arrays: casts, crops and draws that a device does faster.

        Returns:
          This iterator.

        Raises:
          InvalidTypeError: for what cannot be called.
          InvalidValueError: once batches are being made.

        Example:
          >>> import numpy as np
          >>> images = [np.full((8, 2), 255, np.uint8)]
          >>> batches = prefetch_to_device(images).device_map(lambda x: x / 255)
          >>> float(next(batches).sum())
          16.0
        """
        apply = compiled(function)
        with self._lock:
            self._check()
            if self._run is not None or self._pending is not None or self._exhausted:
                raise InvalidValueError(
                    "device_map comes too late: batches are being made. Write "
                    "prefetch_to_device(...).device_map(function), ahead of the first next()."
                )
            if self._lockstep is not None:
                self._functions.append(apply)
            else:
                self._convert = Mapped(self._convert, apply)
                if self._converting is not None:
                    self._converting = Converting(self._convert, self._converts)
        return self

    def set_state(self, state: Any) -> None:
        """Moves to a position, on all processes; the next element is read from there.

        A position that the source refuses changes nothing: the stream goes on where it was.

        Raises:
          InvalidTypeError: if the source has no state.
        """
        with self._attending("as its position was set"):
            super().set_state(state)

    def close(self) -> None:
        """Ends the thread, and closes what was made for it; at once or within a second.

        What is iterated over, a loader say, is closed only if `close_source` says so; an iterator
        that was given also if it blocks the thread. May be called from any thread, and more than
        once.
        """
        self._leave()  # also ends a `next()` that waits for the others
        super().close()

    @contextlib.contextmanager
    def _restoring(self) -> Iterator[None]:
        """Restores on all processes: who checkpoints waits for all of them behind it."""
        with self._attending("as its position was restored"):
            try:
                yield
            except Exception as error:
                if self._lockstep is not None:
                    self._lockstep.restored(error)
                raise
            if self._lockstep is not None:
                self._lockstep.restored(None)

    def _attending(self, what: str) -> AbstractContextManager[None]:
        lockstep = self._lockstep
        if lockstep is None:
            return contextlib.nullcontext()
        return notices.attending(what, lambda: lockstep.name)

    def _about_source(self) -> tuple[Declared | None, dict[str, int]]:
        standing = self._standing(self._own_state())
        if self._rows.described is None:
            # The source counts elements, of which some may have been left out.
            standing.pop("batches", None)
            steps = self._steps()
            standing |= {} if steps is None or self._rows.is_fixed else {"steps": steps}
        return self._declared(), standing

    def _first_spec(self) -> Any:
        try:
            batch = self._peek().batch
        except StopIteration:
            raise InvalidValueError(
                "there is no batch left to take the specs from: the source is empty here"
            ) from None
        return jax.tree_util.tree_map(_spec_of, batch)

    def _next(self) -> Any:
        if self._lockstep is None:
            return super()._next()
        with self._attending("as it was asked for its next batch"):
            return super()._next()

    def _deliver(self, element: Placed) -> Any:
        batch, lockstep, placer = element.batch, self._lockstep, self._placer
        if lockstep is None:
            pass
        elif element.is_padding:
            # The others were met where it was made.
            lockstep.padded(element)
        else:
            batch = lockstep.batch(
                element,
                element.facts or {},
                placer.sure(element),
                mask=element.mask,
                kept=element.kept,
                skeleton=lambda verdict: placer.skeleton(element, verdict),
                finish=lambda verdict: placer.finish(element, verdict),
            )
            if batch is STOP:
                self._exhausted = True
                self._pending = None
                raise StopIteration
        self._full = self._rows.full
        for apply in self._functions:
            batch = apply(batch)
        return batch

    def _deliver_end(self) -> Placed | None:
        if self._lockstep is None:
            return None
        padding = self._lockstep.end(self._placer.padding)
        return None if padding is STOP else padding

    def _deliver_error(self, error: BaseException) -> None:
        # The other processes may be waiting for the batch that failed.
        if self._lockstep is not None:
            self._lockstep.failed(error)

    def _encode(self, state: Any) -> Any:
        # What has only been read ahead is not known on every process.
        if self._rows.is_fixed:
            return state
        return with_rows(state, Saved(self._full, self._sizes(), self._steps()))

    def _decode(self, state: Any) -> Any:
        return without_rows(state, self._rows.axis + 1)[0]

    def _moved(self, state: Any) -> None:
        self._rows.describe(_described_rows(self._iterator))
        if not self._rows.is_fixed:
            saved = without_rows(state, self._rows.axis + 1)[1]
            self._steps_before = saved.steps
            if saved.lead is not None:
                self._full = self._rows.full = saved.scaled(self._sizes())
        if self._lockstep is not None:
            self._lockstep.moved()

    def _steps(self) -> int | None:
        """How many batches of the stream all processes have behind them, if somebody compares."""
        if self._lockstep is None or self._steps_before is None:
            return None
        return self._steps_before + self._lockstep.steps

    def _sizes(self) -> Shape | None:
        """Sizes of the source's `Batch` steps, innermost first, if it says."""
        say = getattr(self._iterator, "_batch_sizes", None)
        sizes: Shape | None = None if say is None else say()
        return sizes


def _leave(lockstep: Lockstep, pid: int) -> None:
    """Tells the other processes of the end of an iterator, unless it is a copy in a fork."""
    if os.getpid() == pid:
        lockstep.close()


def _spec_of(leaf: Any) -> Any:
    spec: Any = jax.ShapeDtypeStruct
    if isinstance(leaf, jax.Array):
        return spec(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return spec(leaf.shape, leaf.dtype) if isinstance(leaf, np.ndarray) else type(leaf)


def check_size(name: str, size: Any, least: int) -> int:
    """Returns a number of things as an int, or raises an error that names it."""
    if isinstance(size, bool) or not isinstance(size, (int, np.integer)):
        raise InvalidTypeError(f"{name}={size!r} is no integer: give {least} or more.")
    if size < least:
        raise InvalidValueError(f"{name}={size} is below {least}: give {least} or more.")
    return int(size)


def _described_rows(source: Any) -> Described | None:
    """What a loader or dataset of this library says of the rows of its batches."""
    if isinstance(source, IterDataset):
        return batch_rows(plan_of(source), source._description.setup)
    describe = getattr(source, "_batch_rows", None)
    return None if describe is None else describe()
