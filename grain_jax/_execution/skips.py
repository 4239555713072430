"""Skips: the account of records that an error policy left out."""

from __future__ import annotations

import collections
import logging
from collections.abc import Sequence
from typing import NoReturn

from grain_jax._algebra.running import Skip
from grain_jax._values import errors, options

__all__ = ["Account"]

_LISTED = 100
"""How many records are listed, the latest."""

_SEEN_AT_LEAST = 100
"""Before so many records a fraction says nothing."""

_logger = logging.getLogger("grain_jax")


class Account:
    """Counts what was left out, and says when it is too much.

    Args:
      policy: the budget.

    Attributes:
      shards: how many run as one; each has the budget.
    """

    def __init__(self, policy: options.ErrorPolicy) -> None:
        self._policy = policy
        self.shards = 1
        self._logged: set[str] = set()
        self.latest: collections.deque[Skip] = collections.deque(maxlen=_LISTED)

    def add(self, skips: Sequence[Skip], before: int, seen: int) -> int:
        """Accepts records that were left out.

        Args:
          skips: the records.
          before: how many were left out before them.
          seen: how many records the stream has behind it with them.

        Returns:
          How many were left out altogether.

        Raises:
          TooManyErrors: if that is more than the policy allows; nothing is accepted then.
        """
        count = before + len(skips)
        self.check(count, seen, skips[-1])
        for skip in skips:
            if skip in self.latest:  # it is met again, from an earlier position that was set
                self.latest.remove(skip)
            self.latest.append(skip)
            if skip.kind not in self._logged:
                self._logged.add(skip.kind)
                _logger.warning(
                    "a record was left out; others that fail alike will be without a word: %s: %s",
                    skip.kind,
                    skip.text,
                )
        return count

    def check(self, count: int, seen: int, last: Skip) -> None:
        """Refuses so many records left out of so many, if the policy does.

        Raises:
          TooManyErrors: if so; it shows the last one.
        """
        policy = self._policy
        if policy.max_count is not None and count > policy.max_count * self.shards:
            each = f" for each of {self.shards} shards" if self.shards > 1 else ""
            _refuse(f"{count} records failed, and max_count={policy.max_count}{each}", last)
        if (
            policy.max_fraction is not None
            and seen >= _SEEN_AT_LEAST
            and count > policy.max_fraction * seen
        ):
            _refuse(
                f"{count} of {seen} records failed, and max_fraction={policy.max_fraction}", last
            )


def _refuse(what: str, last: Skip) -> NoReturn:
    raise errors.TooManyErrors(
        f"{what} in on_error=ErrorPolicy(...). The last was {last.kind}: {last.text}\n"
        "Raise the limit, or mend the records; `iterator.skipped` lists those left out."
    )
