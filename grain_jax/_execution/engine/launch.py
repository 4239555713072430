"""Starts helpers: forks of the zygote that all pools of a trainer share, or new processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from grain_jax._execution.engine import channel, surroundings
from grain_jax._execution.engine.arena import Arena
from grain_jax._execution.engine.process import Process, check
from grain_jax._values.errors import InvalidValueError, WorkerError
from grain_jax._values.processes import is_gone

__all__ = [
    "MODES",
    "Handle",
    "Helper",
    "default_mode",
    "keep_alive",
    "possible",
    "settings",
    "supported",
]

MODES = ("fork_imported", "fork_first", "fresh")

_STOPPED_AFTER = 5.0  # seconds that a helper has to end its workers, and these to close their files


def supported() -> bool:
    """Whether worker processes can be had on this system."""
    return os.name == "posix" and hasattr(socket, "AF_UNIX")


def possible() -> bool:
    """Whether processes may be started from here, as things are."""
    return not surroundings.loading


class _Zygote:
    def __init__(self) -> None:
        self.control, theirs = channel.pair()
        self.users = 0
        self.is_told = False
        try:
            self.process = Process("zygote", [theirs.fileno()], [theirs.fileno()])
        except BaseException:
            self.control.close()
            raise
        finally:
            theirs.close()

    def alive(self) -> bool:
        return not self.process.ended()

    def check(self) -> None:
        """Raises if it could not be started, once: who then tries again gets another one."""
        if not self.is_told and (failure := self.process.failure()):
            self.is_told = True
            raise WorkerError(failure)

    def stop(self) -> None:
        with contextlib.suppress(OSError):  # gone already
            self.control.send(b"stop")
        self.control.close()
        self.process.reap()


_lock = threading.RLock()  # a finalizer inside `_acquire` may close a pool
_shared: _Zygote | None = None


def _after_fork_in_child() -> None:
    # The child shares nothing of this; its own pools start their own zygote.
    global _lock, _shared
    _lock = threading.RLock()
    if _shared is not None:
        _shared.control.close()
        _shared.process.forget()
        _shared = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _acquire() -> _Zygote:
    global _shared
    check()
    with _lock:
        zygote = _shared
        if zygote is not None:
            zygote.users += 1
            if zygote.alive():
                return zygote
            zygote.users -= 1
            _shared = None
            zygote.check()
        _shared = zygote = _Zygote()
        zygote.users += 1
        return zygote


def _release(zygote: _Zygote) -> None:
    global _shared
    with _lock:
        zygote.users -= 1
        if zygote.users:
            return
        if _shared is zygote:
            _shared = None
    zygote.stop()


class Handle:
    """Keeps the zygote alive, so that the next pool starts in milliseconds."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._zygote: _Zygote | None = _acquire()

    def close(self) -> None:
        """Lets go; the zygote ends with its last user. A second call does nothing."""
        zygote, self._zygote = self._zygote, None
        if zygote is not None and os.getpid() == self._owner:
            _release(zygote)

    def alive(self) -> bool:
        """Whether the process still runs."""
        return self._zygote is not None and self._zygote.alive()

    @property
    def held(self) -> _Zygote | None:
        """The process, as it is."""
        return self._zygote

    @property
    def zygote(self) -> _Zygote:
        """The process, started anew if it has died."""
        zygote = self._zygote
        if zygote is None or not zygote.alive():
            self.close()
            if zygote is not None:
                zygote.check()
            self._zygote = zygote = _acquire()
        return zygote


def keep_alive() -> Handle:
    """Starts the zygote, without waiting for it, and keeps it until the handle is closed."""
    return Handle()


class Helper:
    """The trainer's end of one helper."""

    def __init__(self, mode: str, first_row: int, descriptors: Sequence[int]) -> None:
        self.control, theirs = channel.pair()
        self.pid = 0
        self._handle: Handle | None = None
        self._process: Process | None = None
        passed = [theirs.fileno(), *descriptors]
        try:
            if mode == "fresh":
                self._process = Process("helper", [first_row, *passed], passed)
            else:
                self._ask_zygote(pickle.dumps((mode, first_row), 5), passed)
        except BaseException:
            self.control.close()
            if self._handle is not None:
                self._handle.close()
            raise
        finally:
            theirs.close()
        self.control.setblocking(False)

    def _ask_zygote(self, request: bytes, descriptors: list[int]) -> None:
        self._handle = Handle()
        try:
            channel.send_descriptors(self._handle.zygote.control, request, descriptors)
        except OSError:
            self._handle.zygote.process.reap()  # it died since; `zygote` starts another
            channel.send_descriptors(self._handle.zygote.control, request, descriptors)

    def gone(self) -> bool:
        """Whether it has ended without being told to, as far as this process can see."""
        if self._process is not None:
            return self._process.ended()
        if self._handle is not None and not self._handle.alive():
            return True
        return self.pid != 0 and is_gone(self.pid)  # the kernel reaps it

    def failure(self) -> str | None:
        """Returns why its program could not be started, if that is so, now that it is gone."""
        if self._process is not None:
            return self._process.failure(seconds=2)
        zygote = None if self._handle is None else self._handle.held
        if zygote is None:
            return None
        zygote.is_told = True
        return zygote.process.failure(seconds=2)

    def end(self) -> str:
        """Returns how its program ended, in words, where this process can know."""
        return "" if self._process is None else self._process.end()

    def stop(self, ready: bool) -> None:
        """Ends it and its workers, in bounded time.

        Before it is ready it may be inside user code, where it does not listen, and is killed.
        """
        if self._process is not None and not ready:
            self._process.kill()
        elif ready:
            self._tell(b"stop")
        if not self._ended(_STOPPED_AFTER, kill=not ready):
            self._kill()
            self._ended(1.0, kill=True)
        self.control.close()
        if self._process is not None:
            self._process.reap()
        if self._handle is not None:
            self._handle.close()

    def _tell(self, message: bytes) -> None:
        with contextlib.suppress(OSError):  # gone; the end of file tells
            self.control.send(message)

    def _kill(self) -> None:
        if self.pid:
            with contextlib.suppress(OSError):  # gone already
                os.kill(self.pid, signal.SIGKILL)

    def _ended(self, seconds: float, kill: bool) -> bool:
        if kill:
            self._kill()
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                self.control.settimeout(min(left, 0.1))
                message = self.control.recv(channel.LIMIT + 4096)
            except TimeoutError:
                if self.gone():
                    return True
                continue
            except OSError:
                return True
            if not message or self._note(message) == "bye":
                return True
            if kill:
                self._kill()
        return False

    def _note(self, message: bytes) -> str:
        what, *rest = pickle.loads(message)
        if what == "hello":
            self.pid = rest[0]
        return str(what)

    def read(self) -> tuple[object, ...] | None:
        """Returns one message; an empty tuple when the helper is gone; None when there is none."""
        message = channel.receive(self.control)
        if message is None:
            return None
        if not message:
            return ()
        self._note(message)
        answer: tuple[object, ...] = pickle.loads(message)
        return answer

    def start_worker(self, number: int) -> None:
        """Asks for a worker in the place of a dead one."""
        self._tell(pickle.dumps(number, 5))

    def forget(self) -> None:
        """Closes this process's copy of the socket, after a fork of the trainer."""
        self.control.close()
        if self._process is not None:
            self._process.forget()


def default_mode() -> str:
    """Returns how workers start where nobody says."""
    chosen = os.environ.get("GRAIN_JAX_ENGINE_MODE")
    if chosen and chosen not in MODES:
        raise InvalidValueError(
            f"GRAIN_JAX_ENGINE_MODE={chosen} is no way to start workers. Set it to one of "
            f"{', '.join(MODES)}."
        )
    return chosen or ("fork_imported" if sys.platform == "linux" else "fresh")


def settings(
    arena: Arena, workers: int, rows: int, stall_timeout: float | None, closes: bool
) -> dict[str, object]:
    """Returns what a helper and its workers have to know before they load anything."""
    return {
        "workers": workers,
        "rows": rows,
        "stall_timeout": stall_timeout,
        "closes": closes,
        "stride": arena.stride,
        "slots": arena.slots,
        "on_disk": arena.on_disk,
        "surroundings": surroundings.read(),
    }
