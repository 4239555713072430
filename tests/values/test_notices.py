"""Notices of a job of two processes, on a store that is a dict."""

from __future__ import annotations

import os
import sys

import pytest
from jax._src import distributed

from grain_jax._values import notices
from tests.values.store import Store, process_1_of_2


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    return process_1_of_2(monkeypatch)


def up() -> tuple[str, str] | None:
    """What process 1, which this is, has put up."""
    notice = notices.read(1)
    return None if notice is None else (notice["kind"], notice["text"])


def test_the_last_notice_of_a_process_counts_and_is_told_from_one_before() -> None:
    notices.put_up(notices.WAITS, "", at=[0, 1])
    first = notices.read(1)
    notices.put_up(notices.WAITS, "", at=[0, 1])
    assert first is not None
    assert first["at"] == [0, 1]
    assert notices.read(1) != first
    assert up() == ("waits", "")
    notices.take_down()
    assert up() is None


class Odd(BaseException):
    """Has no text."""

    def __str__(self) -> str:
        raise SystemExit


def fail(error: BaseException) -> None:
    with notices.attending("as it was asked"):
        raise error


def test_what_fails_is_put_up_until_an_attempt_succeeds() -> None:
    with pytest.raises(OSError, match="gone"):
        fail(OSError("gone"))
    assert up() == ("failed", "as it was asked: OSError: gone")
    with pytest.raises(Odd):
        fail(Odd())
    failed = "as it was asked: Odd: (an exception whose text cannot be made)"
    assert up() == ("failed", failed)
    with notices.attending("as it was asked"):
        assert up() == ("tries", failed)
    assert up() is None


@pytest.mark.parametrize("error", [StopIteration(), KeyboardInterrupt()])
def test_an_end_and_an_interrupt_are_no_failures(error: BaseException) -> None:
    with pytest.raises(type(error)):
        fail(error)
    assert up() is None


def test_what_cannot_be_made_says_once_what_to_do() -> None:
    error = ValueError("no data")
    for _ in range(2):
        with pytest.raises(ValueError, match="no data"), notices.constructing("loader"):
            raise error
    assert up() == ("failed", "as it made its loader: ValueError: no data")
    # Another loader says nothing of the one that could not be made: the next batch does.
    with notices.constructing("loader"):
        pass
    with notices.telling("as its position was set"):
        pass
    assert up() == ("failed", "as it made its loader: ValueError: no data")
    with notices.attending("as it was asked"):
        assert up() == ("tries", "as it made its loader: ValueError: no data")
    assert up() is None
    (note,) = error.__notes__
    assert note.startswith("This process is one of 2 of a job.")
    assert "os._exit(1)" in note


def test_an_error_without_jax_is_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jax._src.distributed")
    with pytest.raises(ValueError, match="no data"), notices.constructing("loader"):
        raise ValueError("no data")


def test_a_process_alone_has_nobody_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distributed.global_state, "client", None)
    error = ValueError("no data")
    with pytest.raises(ValueError, match="no data"), notices.constructing("loader"):
        raise error
    assert not hasattr(error, "__notes__")
    assert notices.read(1) is None


def test_a_forked_copy_leaves_the_service_alone(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    notices.announce_end()
    assert notices.client() is store
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert notices.client() is None
    notices._end()
    monkeypatch.undo()
    assert store.values == {}


def test_a_copy_that_is_forked_before_anything_is_made_leaves_it_alone_too(store: Store) -> None:
    notices._leave_to_parent()
    notices.announce_end()
    notices.put_up(notices.FAILED, "an error")
    assert notices.client() is None
    assert store.values == {}


def test_who_is_forked_before_the_job_begins_may_take_part(
    monkeypatch: pytest.MonkeyPatch, store: Store
) -> None:
    monkeypatch.setattr(distributed.global_state, "client", None)
    notices._leave_to_parent()
    monkeypatch.setattr(distributed.global_state, "client", store)
    assert notices.client() is store


def test_the_end_is_put_up_unless_an_error_is() -> None:
    notices._end()
    assert up() == ("ended", "at the end of its program")
    notices.put_up(notices.FAILED, "an error")
    notices._end()
    assert up() == ("failed", "an error")
