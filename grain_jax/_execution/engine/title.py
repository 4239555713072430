"""What a process of the engine is called in a list of processes."""

from __future__ import annotations

import contextlib
import ctypes
import sys

__all__ = ["write"]

_PR_SET_NAME = 15
_START, _END = 45, 46  # of the arguments' memory, among the fields behind the name in `stat`


def write(title: str) -> None:
    """Shows a title in place of this process's arguments, where the system lets it do that."""
    if sys.platform != "linux":
        return
    data = title.encode()
    ctypes.CDLL(None).prctl(_PR_SET_NAME, data[:15], 0, 0, 0)
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
        start, end = int(fields[_START]), int(fields[_END])
        if start and end - start >= len(data) + 2:
            # Linux shows one text only, up to its end, where the last byte is not the end of one.
            ctypes.memmove(start, data + bytes(end - start - len(data) - 1) + b"\1", end - start)
