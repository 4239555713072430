"""What is added to a user's exception: the step, the record, the user's file and line."""

from __future__ import annotations

import contextlib
import pathlib
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

from grain_jax._values.errors import GrainError

__all__ = [
    "add_note",
    "call_detached",
    "described",
    "is_installed",
    "located",
    "mark_told",
    "named",
    "notes_of",
    "place",
    "reraise",
    "set_attribute",
    "strip",
    "user_traceback",
    "with_traceback",
    "without_frames",
]

T = TypeVar("T")

_PACKAGE = str(pathlib.Path(__file__).parent.parent) + "/"
_INSTALLED = ("<frozen ", *{sysconfig.get_path(name) + "/" for name in ("stdlib", "purelib")})
_PACKAGES = {"site-packages", "dist-packages"}
_NOTED = "_grain_jax_noted"


def is_installed(filename: str) -> bool:
    """Whether a file belongs to Python or an installed package."""
    # Packages also lie where other environments, the user or the system have theirs.
    return filename.startswith(_INSTALLED) or bool(_PACKAGES.intersection(filename.split("/")))


def _is_ours(frame: types.TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def user_traceback(trace: types.TracebackType | None) -> types.TracebackType | None:
    """Returns a traceback without its leading library frames, unless there are no others."""
    rest = trace
    while rest is not None and _is_ours(rest):
        rest = rest.tb_next
    return rest if rest is not None else trace


def call_detached(call: Callable[..., T], *args: Any) -> tuple[T, object]:
    """Calls so that errors that the call keeps for later do not lead to who called.

    The frames of a traceback refer to the frames that called them, also after those have returned,
    and so to whatever these refer to: an iterator that keeps an error for its turn would refer to
    itself. The frame of a generator that waits has no caller.

    Returns:
      What the call returns, and what has to be held as long as such an error is kept.
    """
    frames = _attempt(call, args)
    del args  # there may be an error among them, whose traceback would lead to this frame
    outcome = next(frames)
    found, is_done = outcome.pop(), outcome.pop()
    if is_done:
        return found, frames
    try:
        raise found
    finally:
        del found, frames  # the traceback leads to this frame


def _attempt(call: Callable[..., Any], args: tuple[Any, ...]) -> Iterator[list[Any]]:
    outcome: list[Any] = []
    try:
        outcome += True, call(*args)
    except BaseException as error:
        outcome += False, error
    del args
    yield outcome  # who called empties it, as this frame may be kept for long


def with_traceback(error: BaseException, trace: types.TracebackType | None) -> BaseException:
    """Gives an exception this traceback, whatever the user's class does about attributes."""
    return BaseException.with_traceback(error, trace)


def without_frames(error: BaseException) -> BaseException:
    """Returns an exception that is kept for later; a note says what its traceback would."""
    if not getattr(error, _NOTED, False) and (line := _place(error)):
        add_note(error, line)
        mark_told(error)
    return with_traceback(error, None)


def strip(error: BaseException) -> None:
    """Takes the library's frames off the front of the traceback, where they say nothing.

    That is so for a user's exception with its place noted, and for what the library raises itself.
    Any other exception may be a fault of the library's, which its frames show.
    """
    if not (getattr(error, _NOTED, False) or isinstance(error, GrainError)):
        return
    rest = error.__traceback__
    while rest is not None and _is_ours(rest):
        rest = rest.tb_next
    with_traceback(error, rest)


def place(stack: traceback.StackSummary, *, or_package: bool = False) -> str:
    """Returns file, line and function of the user's code in a stack; else of a package, if asked.

    Nothing is the empty text.
    """
    frames = [frame for frame in reversed(stack) if not frame.filename.startswith(_PACKAGE)]
    own = [frame for frame in frames if not is_installed(frame.filename)]
    for frame in own or (frames if or_package else []):
        return f"{frame.filename}:{frame.lineno}, in {frame.name}"
    return ""


def mark_told(error: BaseException) -> None:
    """Notes that an exception says where in the user's code it came up: `strip` may shorten it."""
    set_attribute(error, _NOTED, True)


def _place(error: BaseException) -> str:
    """Says in which file and line of the user the error came up.

    That is the innermost frame of the user's own code; of an installed package if there is none;
    of what the error was made of, if Python itself made it (of a generator's StopIteration, say).
    """
    found = place(traceback.extract_tb(error.__traceback__), or_package=True)
    return found or ("" if error.__cause__ is None else _place(error.__cause__))


def set_attribute(error: BaseException, name: str, value: object) -> None:
    """Sets an attribute, also of an exception that is a frozen dataclass."""
    with contextlib.suppress(AttributeError, TypeError):  # no room in an exception with slots
        object.__setattr__(error, name, value)


def add_note(error: BaseException, note: str) -> None:
    """Adds a note, whatever the user's class does about attributes."""
    set_attribute(error, "__notes__", [*notes_of(error), note])


def notes_of(error: BaseException) -> list[str]:
    """Returns the notes of an exception as texts, whatever the user has put there."""
    try:
        notes = getattr(error, "__notes__", ())
    except Exception:  # a class of the user's may raise anything there
        return []
    # As Python shows them. No other iterables, which may be without an end.
    given = notes if isinstance(notes, (list, tuple)) else () if notes is None else (notes,)
    return list(map(_text, given))


def described(error: BaseException, longest: int) -> str:
    """Returns what an exception says and its notes, in one text; so many characters of each."""
    texts = [_text(error), *notes_of(error)]
    return "\n".join(t if len(t) <= longest else f"{t[:longest]}…" for t in texts)


def named(error: BaseException, longest: int) -> str:
    """Returns the type of an exception and so many characters of what it says, whatever it is."""
    text = _text(error)
    return f"{type(error).__name__}: {text if len(text) <= longest else f'{text[:longest]}…'}"


def _text(value: object) -> str:
    try:
        return str(value)
    except BaseException:  # a class of the user's may raise anything there
        what = "an exception" if isinstance(value, BaseException) else "a note"
        return f"({what} whose text cannot be made)"


def _is_read_only(error: BaseException) -> bool:
    try:
        return isinstance(error, ValueError) and "read-only" in str(error)
    except Exception:  # a class of the user's, whose text cannot be made
        return False


def located(error: BaseException, step: str, record: str) -> BaseException:
    """Returns the exception with a note that names step, record, file and line; noted only once.

    A StopIteration would end the user's loop in silence, so it becomes a RuntimeError.
    """
    if getattr(error, _NOTED, False):
        return error
    line = _place(error)
    if isinstance(error, StopIteration):
        wrapped = RuntimeError(
            "user code raised StopIteration, which would have ended the loop in silence"
        )
        wrapped.__cause__ = error
        error = wrapped
    note = f"in {step}, at {record}"
    if line:
        note += f"\n  {line}"
    if _is_read_only(error):
        note += (
            "\n  Records of an in-memory source are read-only views of it: write `x = x * 2` "
            "instead of `x *= 2`, or copy first."
        )
    add_note(error, note)
    mark_told(error)
    return with_traceback(error, user_traceback(error.__traceback__))


def reraise(error: BaseException, step: str, record: str) -> NoReturn:
    """Raises what `located` returns; to be called where the error was caught.

    Cause and context of the user's exception stay as they are.
    """
    try:
        raise located(error, step, record)
    finally:
        del error  # the traceback holds this frame
