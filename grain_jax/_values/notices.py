"""Notices: why a process of a job does not come, for those who wait for it.

A process that has raised an error is not where the others expect it, and may never be again. It
puts up a notice of that, through the key-value store of the coordination service that
`jax.distributed` starts, and takes it down when it asks for its next batch. Whoever waits in vain
looks there. A notice changes nothing by itself: an error that is raised for it leaves all as it is.

Nothing here imports JAX: without it there is no job.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from grain_jax._values import faults, forks

__all__ = [
    "ENDED",
    "FAILED",
    "TRIES",
    "WAITS",
    "announce_end",
    "attending",
    "client",
    "constructing",
    "put_up",
    "read",
    "take_down",
    "telling",
]

FAILED, TRIES, WAITS, ENDED = "failed", "tries", "waits", "ended"

_FOLDER = "grain_jax/notices"
_LONGEST = 2000

_numbers = itertools.count()
_up: dict[str, Any] = {}
_failures = 0  # one after the other, without a step between them
# The process that takes part in the job: a forked copy has the client, and must not use it.
_home: list[int] = []
_NOBODY = -1

_ADVICE = (
    "This process is one of {count} of a job. Others that wait for a batch with it raise an error"
    " within seconds; those in a collective wait until it ends. So where nothing can be done, end"
    " it at once: traceback.print_exc(), and os._exit(1)."
)


def client() -> Any:
    """The client of the coordination service; None if this process is in no job."""
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    found = getattr(state, "client", None)
    if found is None or _home not in ([], [os.getpid()]):
        return None
    needed = ("key_value_set_bytes", "key_value_dir_get_bytes", "key_value_delete")
    return found if all(hasattr(found, name) for name in needed) else None


def put_up(kind: str, text: str, **more: Any) -> None:
    """Says why this process does not come; its last notice is the one that counts.

    Args:
      kind: `FAILED` by an error, `TRIES` again after one, `WAITS` somewhere else, or has `ENDED`.
      text: for people.
      **more: JSON values, for whoever waits.
    """
    store = client()
    if store is None:
        return
    # The number tells a notice from one that was put up again.
    notice = {"kind": kind, "text": text[:_LONGEST], "number": next(_numbers), **more}
    _up.clear()
    _up.update(more, kind=kind, text=text)
    with contextlib.suppress(Exception):  # a service that has ended; JAX says so itself
        store.key_value_delete(_own_key())
        store.key_value_set_bytes(_own_key(), json.dumps(notice).encode())


def take_down() -> None:
    """Takes down the notice of this process, if there is one."""
    if not _up:
        return
    store = client()
    with contextlib.suppress(Exception):
        if store is not None:
            store.key_value_delete(_own_key())
    _up.clear()


def is_up(kind: str) -> bool:
    """Whether the notice of this process is of this kind."""
    return _up.get("kind") == kind


def read(process: int) -> dict[str, Any] | None:
    """Returns the notice of a process, if there is one."""
    store = client()
    # A listing, since not every version can look for a key without a wait.
    listed = [] if store is None else store.key_value_dir_get_bytes(f"{_FOLDER}/{process}/")
    notice: dict[str, Any] | None = json.loads(listed[0][1]) if listed else None
    return notice


@contextlib.contextmanager
def attending(what: str, where: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Takes the notice down while this process does what all do, and puts one up where that fails.

    After a failure one stays up, that it tries again: it may do so, and fail, for ever.

    Args:
      what: is done, in words: "as it asked for its next batch".
      where: says what stands for the iterator on all processes.
    """
    global _failures
    if is_up(FAILED):
        more = {name: value for name, value in _up.items() if name not in ("kind", "text")}
        put_up(TRIES, _up["text"], **more)
    else:
        take_down()
    try:
        with telling(what, where):
            yield
    except KeyboardInterrupt:
        take_down()
        raise
    except StopIteration:
        _failures = 0
        take_down()
        raise
    _failures = 0
    take_down()


@contextlib.contextmanager
def telling(what: str, where: Callable[[], str | None] = lambda: None) -> Iterator[None]:
    """Puts up a notice where something fails; what was put up before stays otherwise.

    An interrupt is no failure: its process may go on as if nothing had been.

    Args:
      what: as for `attending`.
      where: likewise.
    """
    try:
        yield
    except (StopIteration, KeyboardInterrupt):
        raise
    except BaseException as error:
        global _failures
        _failures += 1
        text = f"{what}: {faults.named(error, _LONGEST)}"
        put_up(FAILED, text, where=where(), failures=_failures)
        raise


def constructing(what: str) -> _Constructing:
    """Lets the other processes know if this one cannot make what all of them make.

    The error says what to do about them. What is made afterwards takes no notice down: it may be
    something else, and the others wait until this process asks for its next batch.

    Args:
      what: is made: "loader".

    Returns:
      What is used by `with`, any number of times, or as a decorator.
    """
    return _Constructing(what)


class _Constructing(contextlib.ContextDecorator):
    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        announce_end()

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if isinstance(error, Exception) and client() is not None:
            count = _state("num_processes")
            if isinstance(count, int) and count > 1:
                put_up(FAILED, f"as it made its {self._what}: {faults.named(error, _LONGEST)}")
                advice = _ADVICE.format(count=count)
                if advice not in faults.notes_of(error):
                    faults.add_note(error, advice)


def announce_end() -> None:
    """Sees to it that the others learn of the end of this process, if it is one of a job.

    JAX waits for them at exit, and they may be waiting for a batch of this one.
    """
    if not _home and client() is not None:
        _home.append(os.getpid())
        # The last to register is the first to run: before JAX waits.
        atexit.register(_end)


def _leave_to_parent() -> None:
    if not _home and client() is not None:
        _home.append(_NOBODY)


forks.call_in_child(_leave_to_parent)


def _end() -> None:
    if is_up(FAILED):
        # Whatever it came of, this process does not come any more.
        put_up(FAILED, _up["text"])
    else:
        put_up(ENDED, "at the end of its program")


def _own_key() -> str:
    return f"{_FOLDER}/{_state('process_id')}/last"


def _state(name: str) -> Any:
    return getattr(sys.modules["jax._src.distributed"].global_state, name)
