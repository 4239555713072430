"""Sockets between the processes of a pool: every message arrives whole or not at all."""

from __future__ import annotations

import array
import contextlib
import os
import signal
import socket
from collections.abc import Sequence

__all__ = ["END", "LIMIT", "adopt", "pair", "receive", "receive_descriptors", "send_descriptors"]

# What a helper sends to a worker that has something to close, and only then.
END = getattr(signal, "SIGUSR2", signal.SIGTERM)

# The largest message anyone sends. The default limit of a datagram is 2 KiB on macOS; the buffer
# size asked for in `pair` raises it.
LIMIT = 32 * 1024


def _kind() -> int:
    if os.environ.get("GRAIN_JAX_ENGINE_SOCKET") == "dgram":
        return int(socket.SOCK_DGRAM)
    # macOS has no AF_UNIX SOCK_SEQPACKET, though the constant may exist.
    if os.uname().sysname != "Linux":
        return int(socket.SOCK_DGRAM)
    return int(socket.SOCK_SEQPACKET)


def pair() -> tuple[socket.socket, socket.socket]:
    """Returns two connected sockets that keep the bounds of messages."""
    ends = socket.socketpair(socket.AF_UNIX, _kind())
    for end in ends:
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            with contextlib.suppress(OSError):  # else the system's own size has to do
                end.setsockopt(socket.SOL_SOCKET, option, 4 * LIMIT)
    return ends


def adopt(descriptor: int) -> socket.socket:
    """Returns the socket of an inherited descriptor, blocking, not passed on to other programs."""
    os.set_inheritable(descriptor, False)
    end = socket.socket(fileno=descriptor)
    end.setblocking(True)
    return end


def receive(end: socket.socket) -> bytes | None:
    """Returns one message; b"" when the other side is gone; None when nothing is there yet."""
    try:
        return end.recv(LIMIT + 4096)
    except (BlockingIOError, InterruptedError):
        return None
    except (ConnectionError, OSError):
        return b""


def send_descriptors(end: socket.socket, message: bytes, descriptors: Sequence[int]) -> None:
    """Sends a message together with open files."""
    rights = array.array("i", descriptors)
    end.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def receive_descriptors(end: socket.socket, most: int = 8) -> tuple[bytes, list[int]]:
    """Returns one message and the open files that came with it, none of them inheritable."""
    try:
        message, descriptors, _, _ = socket.recv_fds(end, LIMIT, most)
    except OSError:
        return b"", []  # the other side is gone
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return message, list(descriptors)
