"""Log records of workers, on their way to the trainer's handlers: one file that workers append to.

A worker never waits for the trainer, and what it has written outlives it. The trainer reads when it
waits for results or takes them, and gives the pages that it has read back to the system.
"""

from __future__ import annotations

import fcntl
import logging
import mmap
import os
import pickle
import struct
import traceback
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from grain_jax._execution.engine import arena

__all__ = ["LIMIT", "Reader", "Writer", "hand_out"]

LIMIT = 16 << 20  # bytes that wait for the trainer; beyond it, records are counted and left out

_HEAD = struct.Struct("<8sII")  # a mark, the length and a checksum of what follows
_MARK = b"\xffgjax\xfe\n\0"
_LONGEST = 1 << 20
_SEEN = "_grain_jax_seen"  # whether a handler of the worker has had the record
_PLAIN = (str, int, float, bool, bytes, type(None))


class Writer:
    """A worker's end. Every record that a logger lets through is sent.

    The handlers of this process are called where the trainer has none: those that `worker_init_fn`
    made, and those that a step makes at a logger without any in the trainer.

    Args:
      descriptor: the file.
      process: what the records call this process.
      handled: the loggers that have handlers in the trainer.
      left_out: counts a record that was left out.
    """

    def __init__(
        self, descriptor: int, process: str, handled: Iterable[str], left_out: Callable[[], None]
    ) -> None:
        os.set_inheritable(descriptor, False)
        self.written = False  # since whoever looks has set it to False
        self._descriptor = descriptor
        self._process = process
        self._handled = frozenset(handled)
        self._left_out = left_out
        self._called: list[logging.Handler] = []
        self._silent: list[logging.Handler] = []

    def install(self) -> None:
        """Takes the place of the handlers."""
        writer = self

        def call_handlers(logger: logging.Logger, record: logging.LogRecord) -> None:
            writer.handle(logger, record)

        logging.Logger.callHandlers = call_handlers  # type: ignore[assignment,method-assign]

    def initialised(self) -> None:
        """Says that the handlers that there are were made by `worker_init_fn`."""
        self._called = _handlers()

    def loaded(self) -> None:
        """Says that other handlers came with imports, as they did in the trainer."""
        self._silent = [one for one in _handlers() if one not in self._called]

    def handle(self, logger: logging.Logger, record: logging.LogRecord) -> None:
        """Sends a record, and calls handlers of this process."""
        record.processName = self._process
        here = [one for one in self._here(logger) if record.levelno >= one.level]
        try:
            self._write(_packed(record, seen=bool(here)))
        except Exception:  # its text cannot be made, say: as `logging.Handler.handleError`
            if logging.raiseExceptions:
                traceback.print_exc()
        for handler in here:
            handler.handle(record)

    def _here(self, logger: logging.Logger) -> Iterator[logging.Handler]:
        above: logging.Logger | None = logger
        while above is not None:
            quiet = above.name in self._handled
            for handler in above.handlers:
                if handler in self._called or not (quiet or handler in self._silent):
                    yield handler
            above = above.parent if above.propagate else None

    def _write(self, data: bytes) -> None:
        frame = _HEAD.pack(_MARK, len(data), zlib.crc32(data)) + data
        try:
            # Pages that the trainer has read do not count as blocks.
            if os.fstat(self._descriptor).st_blocks * 512 + len(frame) <= LIMIT:
                self.written = os.write(self._descriptor, frame) == len(frame)
                if self.written:
                    return
        except OSError:  # a full disk
            pass
        self._left_out()


def _handlers() -> list[logging.Handler]:
    named = list(logging.root.manager.loggerDict.values())
    loggers = [logging.root, *(one for one in named if isinstance(one, logging.Logger))]
    return [handler for logger in loggers for handler in logger.handlers]


def _packed(record: logging.LogRecord, seen: bool) -> bytes:
    fields = {**record.__dict__, _SEEN: seen}
    # The text is made here: arguments may change, and need not pickle.
    arguments = record.args.values() if isinstance(record.args, dict) else record.args or ()
    if not isinstance(record.msg, str) or not all(type(one) in _PLAIN for one in arguments):
        fields["msg"], fields["args"] = record.getMessage()[:_LONGEST], None
    if record.exc_info:
        kind, error, trace = record.exc_info
        lines = traceback.format_exception(kind, error, trace)
        fields["exc_text"] = record.exc_text or "".join(lines).rstrip("\n")
        fields["exc_info"] = None
    for name, value in fields.items():
        if type(value) not in _PLAIN and name != "args":
            fields[name] = str(value)
    return pickle.dumps(fields, 5)


def writer(
    descriptor: int,
    settings: dict[str, Any],
    process: str,
    left_out: Callable[[], None] = lambda: None,
) -> Writer:
    """Returns the end of a process of the engine, as the settings of a parcel say."""
    handled = settings["surroundings"]["logging"]["handled"]
    return Writer(descriptor, process, handled, left_out)


class Reader:
    """The trainer's end, which makes and closes the file."""

    def __init__(self) -> None:
        self.descriptor, _ = arena.memory_file("grain_jax_log")
        os.set_inheritable(self.descriptor, False)
        _append_only(self.descriptor)
        self._at = self._given_back = 0
        self._rest = b""

    def take(self) -> list[logging.LogRecord]:
        """Returns the records that have arrived."""
        taken: list[logging.LogRecord] = []
        while part := os.pread(self.descriptor, 1 << 20, self._at):
            self._at += len(part)
            taken += self._records(self._rest + part)
        if self._at - self._given_back >= LIMIT // 4:
            self._give_back()
        return taken

    def close(self) -> None:
        """Closes the file."""
        os.close(self.descriptor)

    def _records(self, data: bytes) -> Iterator[logging.LogRecord]:
        at = 0
        while len(data) - at >= _HEAD.size:
            mark, length, checksum = _HEAD.unpack_from(data, at)
            if mark != _MARK:  # behind a record of which a full disk has kept a part
                at = data.find(_MARK, at + 1)
                if at < 0:
                    at = max(0, len(data) - len(_MARK))
                    break
                continue
            body = data[at + _HEAD.size : at + _HEAD.size + length]
            if len(body) < length:
                break
            if zlib.crc32(body) == checksum:
                yield logging.makeLogRecord(pickle.loads(body))
                at += _HEAD.size + length
            else:
                at += 1
        self._rest = data[at:]

    def _give_back(self) -> None:
        end = self._at // mmap.PAGESIZE * mmap.PAGESIZE
        if arena.give_back(self.descriptor, self._given_back, end - self._given_back):
            self._given_back = end


def hand_out(record: logging.LogRecord) -> None:
    """Calls the trainer's handlers, as `logging` does for a record of this process."""
    logger = logging.getLogger(record.name)
    if record.__dict__.pop(_SEEN) and not logger.hasHandlers():
        return  # it would be printed as the last resort
    try:
        logger.handle(record)
    except Exception:  # the handler's own; the element that is asked for is not to blame
        if logging.raiseExceptions:
            traceback.print_exc()


def _append_only(descriptor: int) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_APPEND)
