"""What has a `close` method, as a context manager."""

from __future__ import annotations

from types import TracebackType
from typing import Self

__all__ = ["Closing"]


class Closing:
    """Closes itself at the end of a `with` block; subclasses define `close`."""

    __slots__ = ()

    def close(self) -> None:
        """Ends what was started; idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
