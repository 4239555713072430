"""Signals that reach all processes at once, and the end of what steps have started.

Ctrl-C and preemption are for the trainer to judge: processes of the engine catch these signals and
do nothing. They do not ignore them, since a program inherits what is ignored, and what a step
starts shall have the defaults. So that a fork of a worker has them too, they are set in it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["LEFT_TO_TRAINER", "catch", "fork", "held_back", "lead_group", "send"]

_DEFAULTS: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
LEFT_TO_TRAINER = tuple(_DEFAULTS)
_forks = 0  # of the engine itself that are under way in this process
_registered = False
_local = threading.local()


def _do_nothing(number: int, frame: object) -> None:
    pass


def catch() -> None:
    """Leaves signals to the trainer from now on, in this process and in those that `fork` makes."""
    global _registered
    for number in LEFT_TO_TRAINER:
        signal.signal(number, _do_nothing)
        # Code in C that knows nothing of interrupts does not see this one either.
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LEFT_TO_TRAINER)  # see `held_back`
    if not _registered:
        os.register_at_fork(before=_hold_back, after_in_parent=_let_in, after_in_child=_restore)
        _registered = True


def _hold_back() -> None:
    # One that is sent to the child at once has to find the defaults there.
    _local.mask = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_TRAINER)


def _let_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _local.mask)


def _restore() -> None:
    for number, default in () if _forks else _DEFAULTS.items():
        if signal.getsignal(number) is _do_nothing:  # else it is a handler of the user's
            signal.signal(number, default)
    _let_in()


def fork() -> int:
    """Forks a process of the engine: signals stay caught in it."""
    global _forks
    _forks += 1
    try:
        with warnings.catch_warnings():
            # Since Python 3.12 it warns of threads, such as those of BLAS, which stop for a fork.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    finally:
        _forks -= 1


@contextlib.contextmanager
def held_back() -> Iterator[None]:
    """Holds signals back in programs that are started within the block, until they `catch` them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LEFT_TO_TRAINER)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def lead_group() -> None:
    """Makes this process the first of a process group, which whatever it starts belongs to."""
    with contextlib.suppress(OSError):  # it is the first of a session already
        os.setpgid(0, 0)


def send(group: int, number: int) -> bool:
    """Sends a signal to a process group, or looks for one; whether there is anybody in it."""
    try:
        os.killpg(group, number)
    except OSError:
        return False
    return True
