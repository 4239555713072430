"""What a forked child makes anew: locks that another thread of its parent may have held.

That thread is not there to release them. The standard library does the same for its own.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Protocol

__all__ = ["Renewed", "call_in_child", "renew"]


class Renewed(Protocol):
    """What has locks."""

    def _renew(self) -> None:
        """Makes them anew, in a child; what other threads were at is left undone there."""


_renewed: weakref.WeakSet[Renewed] = weakref.WeakSet()


def renew(owner: Renewed) -> None:
    """Has `owner._renew()` called in each forked child, for as long as somebody has the object."""
    _renewed.add(owner)


def call_in_child(function: Callable[[], None]) -> None:
    """Has a function called in each forked child."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


@call_in_child
def _renew_all() -> None:
    for owner in list(_renewed):
        owner._renew()
