"""Bars: how far a training loop is, at which rate, and how much of its time it waits for data."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, Generic, Self, TypeVar

from grain_jax._values import errors

__all__ = ["Progress", "progress"]

T = TypeVar("T")

_EVERY = 0.5
"""Seconds from one look at the waits to the next."""


def progress(source: Iterable[T], **options: Any) -> Progress[T]:
    """Shows a bar as a loop goes through a loader, a dataset, a device stage, or any iterable.

    It has steps, total, rate, and the share of its time in which the loop waited for data, in a
    terminal and in notebooks. Needs `tqdm`. The iterator of an epoch is called by its number.

    Args:
      source: what to go through, once.
      **options: for `tqdm`, such as `desc`, `total` or `disable`.

    Raises:
      MissingDependencyError: without tqdm.

    Example:
      >>> import grain_jax as grain
      >>> loader = grain.load(range(8), num_epochs=1, batch_size=4)
      >>> sum(int(batch.sum()) for batch in progress(loader, disable=True))
      28
    """
    return Progress(source, options)


class Progress(Iterator[T], Generic[T]):
    """What `progress` returns: an iterator with a bar, and else as the source's own."""

    def __init__(self, source: Iterable[T], options: dict[str, Any]) -> None:
        try:
            from tqdm.auto import tqdm
        except ImportError:
            raise errors.MissingDependencyError(
                "progress needs tqdm. Install it: pip install 'grain-jax[progress]'."
            ) from None
        self._iterator: Any = iter(source)
        number = getattr(self._iterator, "number", None)
        sized: Any = self._iterator
        try:
            total = len(sized)
        except TypeError:
            total = None
        given = {"total": total} | ({} if number is None else {"desc": f"epoch {number}"})
        self._bar: Any = tqdm(**{**given, **options})
        self._waited = 0.0
        self._began = time.monotonic()
        self._looked = self._began

    def __len__(self) -> int:
        return len(self._iterator)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        begin = time.monotonic()
        try:
            element: T = next(self._iterator)
        except BaseException:
            self._show()
            self._bar.close()
            raise
        now = time.monotonic()
        self._waited += now - begin
        if now - self._looked >= _EVERY:
            self._looked = now
            self._show()
        self._bar.update()
        return element

    @property
    def wait_share(self) -> float:
        """The share of its time in which the loop waited for elements, 0 to 1."""
        return self._waited / max(1e-9, time.monotonic() - self._began)

    def _show(self) -> None:
        self._bar.set_postfix_str(f"waits {self.wait_share:.0%}", refresh=False)

    def close(self) -> None:
        """Ends the bar, and closes the iterator if that can be closed."""
        self._bar.close()
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._iterator, name)
