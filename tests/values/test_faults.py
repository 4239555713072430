"""Notes on a user's exceptions: step, record, file and line, and nothing lost of their own."""

from __future__ import annotations

import dataclasses
import json
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from grain_jax._values import faults


def caught(function: Callable[[], Any]) -> BaseException:
    """What comes out of `reraise` for the exception of a function."""
    with pytest.raises(BaseException) as info:  # noqa: PT011, PT012 - any
        try:
            function()
        except BaseException as error:
            faults.reraise(error, "step 1: map(f)", "position 3")
    return info.value


def fails() -> None:
    raise KeyError("lost")


def test_the_note_names_step_record_file_and_line() -> None:
    error = caught(fails)
    assert type(error) is KeyError
    assert error.args == ("lost",)
    (note,) = error.__notes__
    first, second = note.split("\n")
    assert first == "in step 1: map(f), at position 3"
    line = fails.__code__.co_firstlineno + 1
    assert second == f"  {__file__}:{line}, in fails"


def test_the_place_is_the_users_also_where_a_package_raises() -> None:
    (note,) = caught(lambda: json.loads("{")).__notes__
    assert __file__ in note
    assert "json" not in note.split("\n")[1]


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_packages_of_other_environments_are_no_code_of_the_users(folder: str) -> None:
    file = f"/other/lib/{folder}/package.py"
    stack = traceback.StackSummary.from_list([(file, 1, "call", None)])
    assert faults.place(stack) == ""
    assert faults.place(stack, or_package=True) == f"{file}:1, in call"
    stack.insert(0, traceback.FrameSummary("/home/site/mine.py", 7, "run"))
    assert faults.place(stack, or_package=True) == "/home/site/mine.py:7, in run"


def test_noted_once() -> None:
    error = caught(fails)
    faults.located(error, "step 2: map(g)", "position 4")
    assert len(error.__notes__) == 1


def test_cause_and_context_stay() -> None:
    def with_cause() -> None:
        raise KeyError("a") from OSError("b")

    def with_context() -> None:
        try:
            raise OSError("b")
        except OSError:
            raise KeyError("a")  # noqa: B904 - what is tested

    assert isinstance(caught(with_cause).__cause__, OSError)
    error = caught(with_context)
    assert isinstance(error.__context__, OSError)
    assert not error.__suppress_context__
    assert "OSError: b" in "".join(traceback.format_exception(error))


def test_stop_iteration_does_not_end_a_loop() -> None:
    def stops() -> None:
        raise StopIteration(5)

    error = caught(stops)
    assert type(error) is RuntimeError
    assert "StopIteration" in str(error)
    assert isinstance(error.__cause__, StopIteration)
    assert "stops" in error.__notes__[0]


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (ValueError("assignment destination is read-only"), True),
        (ValueError("output array is read-only"), True),
        (ValueError("something else"), False),
        (OSError("read-only file system"), False),
    ],
)
def test_writing_into_a_record_says_what_to_write(error: BaseException, is_told: bool) -> None:
    note = faults.located(error, "step 1: map(f)", "position 3").__notes__[0]
    assert ("write `x = x * 2` instead of `x *= 2`" in note) == is_told


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class Slotted(Exception):
    __slots__ = ()


class Mute(ValueError):
    def __str__(self) -> str:
        raise OSError("no text")


class Stubborn(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise OSError("nothing is set here")


@pytest.mark.parametrize("kind", [Frozen, Slotted, Mute, Stubborn])
def test_odd_classes_of_exceptions_get_their_note(kind: Callable[[int], BaseException]) -> None:
    given = kind(3)

    def odd() -> None:
        raise given

    error = caught(odd)
    assert error is given
    assert error.__notes__[0].startswith("in step 1: map(f), at position 3")


def test_library_frames_are_not_in_the_way() -> None:
    error = caught(fails)
    frames = traceback.extract_tb(faults.user_traceback(error.__traceback__))
    assert frames[-1].name == "fails"
    assert not any("grain_jax/_values/faults.py" in frame.filename for frame in frames[:1])


def test_notes_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(caught(fails)))
    assert error.__notes__[0].startswith("in step 1")


def test_what_python_makes_of_an_error_is_told_with_the_users_line() -> None:
    def elements() -> Iterator[int]:
        yield next(iter(()))

    with pytest.raises(RuntimeError) as info:
        list(elements())
    error = info.value.with_traceback(None)  # the library asked for the elements, from C
    (note,) = faults.located(error, "step 1: flat_map(f)", "position 3").__notes__
    line = elements.__code__.co_firstlineno + 1
    assert note.endswith(f"{__file__}:{line}, in elements")
