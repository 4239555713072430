"""Exceptions arrive as themselves; those that cannot, as their name and text."""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

from grain_jax._execution.engine import faults
from grain_jax._values.errors import TransformError


class TwoArguments(Exception):
    def __init__(self, record: int, why: str) -> None:
        super().__init__(f"record {record}: {why}")
        self.record = record


class KeywordOnly(ValueError):
    def __init__(self, *, code: int) -> None:
        super().__init__()
        self.code = code


class HoldsALock(RuntimeError):
    def __init__(self) -> None:
        super().__init__("locked")
        self.lock = threading.Lock()


class Untellable(RuntimeError):
    def __init__(self) -> None:
        super().__init__(threading.Lock())

    def __str__(self) -> str:
        raise ValueError


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Leaves(RuntimeError):
    """Ends the process that unpickles it."""

    def __init__(self) -> None:
        super().__init__("left")

    def __reduce__(self) -> Any:
        return sys.exit, (3,)


def send(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return faults.unpack_exception(faults.pack_exception(caught, None), "worker 1")


def attributes(error: BaseException) -> dict[str, Any]:
    """Its own: notes, and the mark that it has some, are ours."""
    ours = ("__notes__", "_grain_jax_noted")
    return {name: value for name, value in error.__dict__.items() if name not in ours}


@pytest.mark.parametrize(
    "error",
    [
        ValueError("text", 3),
        KeyError("k"),
        TwoArguments(9, "bad"),
        KeywordOnly(code=4),
        Frozen(5),
        OSError(2, "No such file", "name"),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
        StopIteration(5),
        ExceptionGroup("many", [ValueError("a")]),
        ValueError(np.arange(3)),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_exception_is_itself(error: BaseException) -> None:
    back = send(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    own, theirs = map(attributes, (error, back))
    assert own == theirs
    if isinstance(error, OSError):
        assert isinstance(back, OSError)
        assert (back.errno, back.filename) == (2, "name")


def test_notes_travel_and_the_traceback_is_the_last_one() -> None:
    error = TwoArguments(9, "bad")
    error.add_note("step 2: Map")
    back = send(error)
    assert back.__notes__[0] == "step 2: Map"
    assert len(back.__notes__) == 2
    assert "raised in worker 1" in back.__notes__[1]
    assert "test_faults.py" in back.__notes__[1]
    assert "raise error" in back.__notes__[1]


@pytest.mark.parametrize("kind", [HoldsALock, Untellable])
def test_one_that_cannot_travel_is_named(kind: Any) -> None:
    back = send(kind())
    assert isinstance(back, TransformError)
    assert kind.__qualname__ in str(back)
    if kind is HoldsALock:
        assert "locked" in str(back)


def test_one_whose_unpickling_ends_the_process_does_not() -> None:
    back = send(Leaves())
    assert (type(back), str(back)) == (Leaves, "left")


def test_causes_travel() -> None:
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        back = send(error)
    assert isinstance(back.__cause__, KeyError)
    assert back.__cause__.args == ("inner",)
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")  # noqa: B904
    except ValueError as error:
        back = send(error)
    assert back.__cause__ is None
    assert isinstance(back.__context__, KeyError)


def test_a_long_one_is_cut_to_fit() -> None:
    error = ValueError("x" * 100_000)
    error.add_note("n" * 100_000)
    data = faults.shorten(faults.pack_exception(error, None), 32_000)
    assert len(data) < 32_000
    back = faults.unpack_exception(data, "worker 0")
    assert isinstance(back, TransformError)
    assert "ValueError: xxx" in str(back)


def test_deaths_in_words() -> None:
    assert faults.death(3) == "exit code 3"
    assert faults.death(-signal.SIGSEGV) == "signal 11 (SIGSEGV)"
    assert faults.death(-signal.SIGKILL) == "signal 9 (SIGKILL); out of memory?"


def test_a_function_that_calls_itself_is_told_in_a_few_lines() -> None:
    def again(depth: int) -> int:
        return again(depth + 1)

    def there(depth: int) -> int:
        return back(depth)

    def back(depth: int) -> int:
        return there(depth)

    for function, most in (again, 12), (there, 90):
        try:
            function(0)
        except RecursionError as error:
            received = faults.unpack_exception(faults.pack_exception(error, None), "worker 1")
        (note,) = received.__notes__
        assert f"in {function.__name__}" in note
        assert len(note.splitlines()) <= most
