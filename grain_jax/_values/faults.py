"""What is added to a user's exception: the step, the record, the user's file and line."""

from __future__ import annotations

import contextlib
import pathlib
import traceback
import types

__all__ = ["located", "user_traceback"]

_PACKAGE = str(pathlib.Path(__file__).parent.parent) + "/"
_NOTED = "_grain_jax_noted"


def _is_ours(frame: types.TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def user_traceback(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Returns a traceback without its leading library frames, unless there are no others."""
    rest = trace
    while rest is not None and _is_ours(rest):
        rest = rest.tb_next
    return rest if rest is not None else trace


def _place(error: BaseException) -> str:
    """Says in which file and line of the user the error came up."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if not frame.filename.startswith(_PACKAGE):
            return f"{frame.filename}:{frame.lineno}, in {frame.name}"
    return ""


def located(error: BaseException, step: str, record: str) -> BaseException:
    """Returns the exception with a note that names step, record, file and line; noted only once.

    A StopIteration would end the user's loop in silence, so it becomes a RuntimeError.
    """
    if getattr(error, _NOTED, False):
        return error
    place = _place(error)
    if isinstance(error, StopIteration):
        wrapped = RuntimeError(
            "user code raised StopIteration, which would have ended the loop in silence"
        )
        wrapped.__cause__ = error
        error = wrapped
    note = f"in {step}, at {record}"
    if place:
        note += f"\n  {place}"
    if isinstance(error, ValueError) and "read-only" in str(error):
        note += (
            "\n  Records of an in-memory source are read-only views of it: write `x = x * 2` "
            "instead of `x *= 2`, or copy first."
        )
    error.add_note(note)
    with contextlib.suppress(AttributeError):  # exceptions with slots: a second note is harmless
        setattr(error, _NOTED, True)
    return error.with_traceback(user_traceback(error.__traceback__))
