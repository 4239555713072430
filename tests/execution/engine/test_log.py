"""Log records arrive whole and in order, or are counted; nobody waits for who reads them."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest

from grain_jax._execution.engine import log


@pytest.fixture(params=["memory", "file"])
def reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[log.Reader]:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", request.param)
    made = log.Reader()
    yield made
    made.close()


def send(writer: log.Writer, text: object, *arguments: object) -> None:
    record = logging.LogRecord("a.b", logging.INFO, "file.py", 3, text, arguments, None)
    writer.handle(logging.Logger("a.b"), record)


def test_records_of_several_writers_arrive_in_order(reader: log.Reader) -> None:
    left_out: list[int] = []
    writers = [
        log.Writer(os.dup(reader.descriptor), f"worker {n}", (), lambda: left_out.append(1))
        for n in range(3)
    ]
    for number in range(900):
        send(writers[number % 3], "%d %s", number, "x" * number)
    taken = reader.take()
    assert [record.getMessage() for record in taken] == [f"{n} {'x' * n}" for n in range(900)]
    assert [record.processName for record in taken[:4]] == [f"worker {n % 3}" for n in range(4)]
    assert (taken[0].name, taken[0].levelname, taken[0].lineno) == ("a.b", "INFO", 3)
    assert taken[0].args == (0, "")
    assert reader.take() == []
    assert not left_out


def test_what_does_not_fit_is_counted_until_somebody_reads(
    reader: log.Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "LIMIT", 1 << 20)
    left_out: list[int] = []
    writer = log.Writer(os.dup(reader.descriptor), "w", (), lambda: left_out.append(1))
    for number in range(100):
        send(writer, "%d %s", number, "x" * 30_000)
    arrived = len(reader.take())
    assert arrived + len(left_out) == 100
    assert 30 <= arrived <= 36
    for round_ in range(10):  # what has been read makes room
        send(writer, "%d", round_)
        send(writer, "%s", "y" * 300_000)
        numbers = [record.getMessage() for record in reader.take()]
        assert numbers == [str(round_), "y" * 300_000]


def test_a_torn_record_does_not_hide_those_after_it(reader: log.Reader) -> None:
    writer = log.Writer(os.dup(reader.descriptor), "w", (), lambda: None)
    send(writer, "first")
    whole = os.pread(reader.descriptor, 1 << 16, 0)
    os.write(reader.descriptor, whole[: len(whole) // 2])
    send(writer, "second")
    send(writer, "third")
    os.write(reader.descriptor, whole[: len(whole) // 2])
    assert [record.getMessage() for record in reader.take()] == ["first", "second", "third"]
    os.write(reader.descriptor, whole[len(whole) // 2 :])
    assert [record.getMessage() for record in reader.take()] == ["first"]


class Unpicklable:
    def __str__(self) -> str:
        return "told"

    def __reduce__(self) -> str:
        raise TypeError("never")


def test_anything_can_be_logged(reader: log.Reader, capsys: pytest.CaptureFixture[str]) -> None:
    writer = log.Writer(os.dup(reader.descriptor), "w", (), lambda: None)
    send(writer, "%s", Unpicklable())
    send(writer, Unpicklable())
    send(writer, "%(a)d", {"a": 5})
    send(writer, "%d", Unpicklable())
    assert "%d format: a real number is required" in capsys.readouterr().err
    send(writer, "%d", "no number")
    *taken, bad = reader.take()
    assert [record.getMessage() for record in taken] == ["told", "told", "5"]
    with pytest.raises(TypeError, match="%d format"):  # the trainer's handler says so
        bad.getMessage()


def test_a_handler_that_raises_does_not_end_the_reading(
    reader: log.Reader, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise OSError("the disk is full")

    writer = log.Writer(os.dup(reader.descriptor), "w", (), lambda: None)
    logger = logging.getLogger("a.b")
    logger.addHandler(broken := Broken())
    try:
        send(writer, "one")
        for record in reader.take():
            log.hand_out(record)
    finally:
        logger.removeHandler(broken)
    assert "the disk is full" in capsys.readouterr().err
