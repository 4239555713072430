"""Processes of this machine."""

from __future__ import annotations

import os

__all__ = ["is_gone"]


def is_gone(pid: int) -> bool:
    """Whether there is no process of that number; one that nobody may signal is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
