"""A user's exception on its way from a worker to the trainer: itself, its notes, its traceback."""

from __future__ import annotations

import functools
import os
import pickle
import signal
import traceback
from typing import Any

from grain_jax._execution.engine import wire
from grain_jax._values.errors import GrainError, TransformError
from grain_jax._values.faults import (
    add_note,
    mark_told,
    notes_of,
    set_attribute,
    with_traceback,
)

__all__ = [
    "death",
    "forget_frames",
    "pack_exception",
    "pack_within",
    "shorten",
    "unpack_exception",
    "unpack_within",
]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_LONGEST_CHAIN = 8
_MOST_FRAMES = 40


def _frames(error: BaseException) -> list[tuple[str, int, str]]:
    stack = traceback.extract_tb(error.__traceback__)
    frames = [(frame.filename, frame.lineno or 0, frame.name) for frame in stack]
    users = [f for f in frames if not f[0].startswith((_PACKAGE, "<frozen "))]
    return users or ([] if isinstance(error, GrainError) else frames[-1:])


def _rebuild(
    kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]
) -> BaseException:
    error = kind.__new__(kind, *args)
    set_attribute(error, "args", args)
    error.__dict__.update(state)
    return error


def _survives(data: bytes, error: BaseException) -> bool:
    copy = pickle.loads(data)
    return type(copy) is type(error) and copy.args == error.args


def _pickled(error: BaseException, registry: wire.Registry | None) -> bytes | None:
    ways: list[Any] = [error, (_rebuild, (type(error), error.args, dict(error.__dict__)))]
    for way in ways:
        try:
            data = wire.dumps(way, registry)
            if way is error:
                if _survives(data, error):
                    return data
            else:
                _rebuild(*pickle.loads(data)[1])
                return data
        except BaseException:  # unpickling calls what the class says, sys.exit, too
            continue
    return None


def _describe(error: BaseException, registry: wire.Registry | None, left: int) -> dict[str, Any]:
    kind = type(error)
    try:
        text = str(error)
    except Exception:
        text = "(its text cannot be made)"
    described: dict[str, Any] = {
        "pickled": _pickled(error, registry),
        "type": kind.__qualname__
        if kind.__module__ in ("builtins", "__main__")
        else f"{kind.__module__}.{kind.__qualname__}",
        "text": text,
        "notes": notes_of(error),
        "frames": _frames(error),
        "cause": None,
        "group": None,
    }
    if described["pickled"] is None and isinstance(error, BaseExceptionGroup) and left:
        described["text"] = error.message
        described["group"] = [_describe(one, registry, left - 1) for one in error.exceptions]
    cause = error.__cause__
    if cause is None and not error.__suppress_context__:
        cause = error.__context__
    if cause is not None and left:
        described["cause"] = _describe(cause, registry, left - 1)
        described["explicit"] = error.__cause__ is not None
    return described


def pack_exception(error: BaseException, registry: wire.Registry | None) -> bytes:
    """Returns an exception as bytes; always possible."""
    return pickle.dumps(_describe(error, registry, _LONGEST_CHAIN), 5)


def shorten(data: bytes, limit: int) -> bytes:
    """Returns a packed exception that fits into a message: text only, cut where needed."""
    described = pickle.loads(data)
    described.update(pickled=None, cause=None, group=None, frames=described["frames"][-5:])
    described["text"] = described["text"][: limit // 8]
    described["notes"] = [note[: limit // 64] for note in described["notes"][:8]]
    return pickle.dumps(described, 5)


def _revive(described: dict[str, Any]) -> BaseException:
    error: BaseException | None = None
    if described["pickled"] is not None:
        try:
            loaded = pickle.loads(described["pickled"])
            error = _rebuild(*loaded[1]) if isinstance(loaded, tuple) else loaded
        except Exception:
            error = None
    if error is None and described["group"]:
        # Those of its exceptions that can travel have.
        error = BaseExceptionGroup(described["text"], [_revive(one) for one in described["group"]])
    if error is None:
        error = TransformError(
            f"{described['type']}: {described['text']} "
            f"(raised in a worker process; this {described['type']} cannot be pickled, so it "
            "arrives as its type name and text)"
        )
    error.__dict__.pop("__notes__", None)
    for note in described["notes"]:
        add_note(error, note)
    if described["cause"] is not None:
        cause = _revive(described["cause"])
        add_note(cause, _format(described["cause"]["frames"]))
        set_attribute(error, "__cause__" if described["explicit"] else "__context__", cause)
    return error


def _format(frames: list[tuple[str, int, str]]) -> str:
    stack = traceback.StackSummary.from_list([(*frame, None) for frame in frames])
    lines = stack.format()  # a function that calls itself stands there three times
    if len(lines) > _MOST_FRAMES:
        half = _MOST_FRAMES // 2
        left_out = f"  [{len(lines) - 2 * half} frames more]\n"
        lines = [*lines[:half], left_out, *lines[-half:]]
    return "".join(lines).rstrip()


def unpack_exception(data: bytes, worker: str) -> BaseException:
    """Returns the exception of `pack_exception`, with the worker's traceback as a note."""
    described = pickle.loads(data)
    error = _revive(described)
    add_note(error, f"raised in {worker}:\n{_format(described['frames'])}".rstrip(":\n"))
    mark_told(error)  # the frames that raise it here say nothing
    return error


def forget_frames(error: BaseException) -> None:
    """Lets go of the frames of an exception and of those behind it."""
    # The frames of a traceback refer to arrays in the slot.
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        item = pending.pop()
        if item is not None and id(item) not in seen:
            seen.add(id(item))
            pending += [item.__cause__, item.__context__]
            if item.__traceback__ is not None:
                traceback.clear_frames(item.__traceback__)
                with_traceback(item, None)


class _Packed:
    """An exception on its way from a worker, inside the `info` of a task's outputs."""

    def __init__(self, data: bytes, worker: str) -> None:
        self.data = data
        self.worker = worker


def pack_within(info: Any, registry: wire.Registry | None, worker: str) -> None:
    """Packs the exception that a program put into `info.error`, behind its outputs."""
    error = getattr(info, "error", None)
    if isinstance(error, BaseException):
        info.error = _Packed(pack_exception(error, registry), worker)
        forget_frames(error)


def unpack_within(info: Any) -> None:
    """Puts the exception back that `pack_within` has packed."""
    packed = getattr(info, "error", None)
    if isinstance(packed, _Packed):
        info.error = unpack_exception(packed.data, packed.worker)


@functools.cache
def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def death(exit_code: int) -> str:
    """Returns how a process ended, in words."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    text = f"signal {-exit_code} ({_signal_name(-exit_code)})"
    if -exit_code == signal.SIGKILL:
        text += "; out of memory?"
    return text
