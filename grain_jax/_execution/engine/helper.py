"""The processes between the trainer and its workers.

The *zygote*, one per trainer, holds numpy and the engine, never user code, and has one thread: it
forks a *helper* for each pool in milliseconds. The helper imports modules that all workers need,
starts workers, reports their deaths, and ends them. Each worker loads the pipeline itself, so that
no fork shares an open file or an inner state; a helper in which imports have left such is replaced
by one that imports nothing. Both look twice a second whether the trainer still lives: the end of
file alone is not enough, since a forked child of the trainer keeps the sockets open.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from grain_jax._execution.engine import (
    channel,
    faults,
    imports,
    locations,
    log,
    signals,
    surroundings,
    title,
)

__all__ = ["PARCEL_HEAD", "RUNS", "STARTED", "command", "main", "read_settings"]

_FAREWELL = 3.0  # seconds that workers have to close what they have opened
_LAST = 0.5  # seconds that what workers have started has to end after them
_LOOK = 0.5  # seconds between two looks at the parent
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
# What every worker needs, numpy and cloudpickle with it, ready in the zygote for each fork.
_PRELOADED = ("grain_jax._execution.engine.worker", "grain_jax._datasets.program")
_held: list[Any] = []  # sockets that stay open until `os._exit`, and do not warn before it
PARCEL_HEAD = 24  # bytes; a parcel begins with three lengths, that of the settings first

# The variable that says that a process was started by an engine. It is gone where one runs: a
# program that has it was started in place of the interpreter.
STARTED = "GRAIN_JAX_ENGINE_STARTED_BY"
RUNS = 0o400  # the permissions of the file that was stderr until then; no full disk prevents that

_CODE = (
    "import sys; sys.path[:] = sys.argv[5:]; "
    "from grain_jax._execution.engine.helper import main; main(*sys.argv[1:5])"
)
_stderr = -1


def command(
    role: str, parent: int, arguments: list[Any], path: list[str], stderr: int = -1
) -> list[str]:
    """Returns the command line of a process of the engine; `stderr` is for when it runs."""
    # The interpreter's own flags (-X utf8, -W ...) hold for the workers, too.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    packed = ",".join(map(str, arguments))
    return [
        sys.executable,
        *flags,
        "-P",
        "-c",
        _CODE,
        role,
        str(parent),
        packed,
        str(stderr),
        *path,
    ]


def _die_with_parent(parent: int) -> None:
    """Asks the kernel to end this process when its parent process does, and looks once itself.

    Only where the parent has one thread: the signal comes when the *thread* ends that forked.
    """
    _at_parents_death(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _at_parents_death(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def _say_that_it_runs() -> None:
    """Goes over to the trainer's stderr, unless that is done."""
    global _stderr
    stderr, _stderr = _stderr, -1
    if stderr >= 0:
        sys.stderr.flush()
        os.fchmod(2, RUNS)
        os.dup2(stderr, 2)
        os.close(stderr)


def main(role: str, parent: str, arguments: str, stderr: str) -> None:
    """Is a process of the engine: a zygote, a helper of its own, or a fresh worker."""
    global _stderr
    signals.catch()
    os.environ.pop(STARTED, None)
    _stderr = int(stderr)
    numbers = [int(text) for text in arguments.split(",")]
    if role != "worker":  # it knows its own
        title.write(f"grain_jax {role}")
    try:
        if role == "zygote":
            _zygote(int(parent), channel.adopt(numbers[0]))
        elif role == "helper":
            _Helper(int(parent), "fresh", numbers[0], numbers[1:]).serve()
        else:
            _fresh_worker(int(parent), *numbers)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _zygote(parent: int, control: socket.socket) -> None:
    for module in _PRELOADED:
        importlib.import_module(module)
    _say_that_it_runs()
    gc.collect()
    gc.freeze()  # the collector would otherwise write to, and so copy, every shared page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps helpers
    _held.append(control)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    me = os.getpid()
    while os.getppid() == parent:
        if not poll.poll(_LOOK * 1000):
            continue
        message, descriptors = channel.receive_descriptors(control)
        if not message or message == b"stop":
            return
        mode, first_row = pickle.loads(message)
        pid = signals.fork()
        if pid == 0:
            control.close()
            _run_forked(functools.partial(_forked_helper, me, mode, first_row, descriptors))
        _introduce(pid, descriptors[0])
        for descriptor in descriptors:
            os.close(descriptor)


def _introduce(pid: int, descriptor: int) -> None:
    # It may die before it can say so itself, and datagram sockets have no end of file.
    with socket.socket(fileno=os.dup(descriptor)) as control, contextlib.suppress(OSError):
        control.send(pickle.dumps(("hello", pid), 5), socket.MSG_DONTWAIT)


def _run_forked(body: Callable[[], None]) -> None:
    code = 1
    try:
        body()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _forked_helper(zygote: int, mode: str, first_row: int, descriptors: list[int]) -> None:
    _die_with_parent(zygote)
    title.write("grain_jax helper")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    _Helper(zygote, mode, first_row, descriptors).serve()


def read_settings(parcel: int) -> dict[str, Any]:
    """Returns the plain values at the start of a parcel, without loading its program."""
    (length,) = struct.unpack("<Q", os.pread(parcel, 8, 0))
    settings: dict[str, Any] = pickle.loads(os.pread(parcel, length, PARCEL_HEAD))
    return settings


class _Helper:
    """Starts the workers of one pool and tells the trainer about their deaths."""

    def __init__(self, parent: int, mode: str, first_row: int, descriptors: list[int]) -> None:
        _held.append(self)
        self.parent = parent
        self.mode = mode
        self.first_row = first_row
        control, tasks, results, self.arena, self.parcel, self.log = descriptors
        self.control = channel.adopt(control)
        self.tasks = channel.adopt(tasks)
        self.results = channel.adopt(results)
        self.settings = read_settings(self.parcel)
        self.workers: dict[int, int] = {}  # process id -> number
        # Process groups of workers that are gone, and how long what they have started may go on.
        self.ending: dict[int, float] = {}

    def say(self, *message: Any) -> None:
        """Sends one message to the trainer."""
        with contextlib.suppress(OSError):  # the trainer may be gone; `_watch` sees to that
            self.control.send(pickle.dumps(message, 5))

    def serve(self) -> None:
        """Starts the workers and stays until the trainer says stop or ends."""
        if self.mode == "fresh":
            self.say("hello", os.getpid())
        surroundings.apply(self.settings["surroundings"])
        locations.install(self.settings["locations"])
        signals.lead_group()
        if self.mode == "fork_imported" and not self._import():
            os.killpg(0, signal.SIGTERM)  # what imports have started; another helper takes over
            return
        _adopt_orphans()
        wake, woken = self.wakes = socket.socketpair()
        for end in (wake, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        # From here on no code of the user's runs here, and there are processes to be ended.
        _at_parents_death(signal.SIGCHLD)
        _say_that_it_runs()
        # Before any worker begins to load: from then on it is told to end, and not killed.
        self.say("ready", self.mode)
        try:
            for number in range(self.settings["workers"]):
                self.start(number)
            self._watch(wake)
        except Exception as error:  # no more processes, say
            self.say("failed", faults.shorten(faults.pack_exception(error, None), channel.LIMIT))
        finally:
            self._end_workers()
            self.say("bye")  # datagram sockets have no end of file

    def _import(self) -> bool:
        """Imports what all workers need; whether they can be forked after that."""
        before = imports.Traces()
        names = self.settings["modules"]
        log.writer(self.log, self.settings, "grain_jax helper").install()
        surroundings.load(lambda: imports.import_all(names))
        unsafe = before.unsafe()
        if unsafe:
            self.say("unsafe", unsafe)
            return False
        gc.freeze()
        return True

    def _watch(self, wake: socket.socket) -> None:
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while os.getppid() == self.parent:
            ready = {descriptor for descriptor, _ in poll.poll(_LOOK * 1000)}
            if wake.fileno() in ready:
                channel.receive(wake)
            self._reap()
            self._end_groups()
            if self.control.fileno() in ready:
                message = channel.receive(self.control)
                if not message or message == b"stop":
                    return
                self.start(pickle.loads(message))

    def start(self, number: int) -> None:
        """Starts a worker."""
        row = self.first_row + number
        if self.mode == "fresh":
            pid = self._execute(number, row)
        else:
            me = os.getpid()
            pid = signals.fork()
            if pid == 0:
                _run_forked(lambda: self._forked_worker(me, number, row))
        self.workers[pid] = number

    def _forked_worker(self, helper: int, number: int, row: int) -> None:
        from grain_jax._execution.engine import worker

        _die_with_parent(helper)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self.control, *self.wakes):
            end.close()
        worker.work(
            number,
            row,
            self.settings,
            self.tasks,
            self.results,
            self.arena,
            self.parcel,
            self.log,
        )

    def _execute(self, number: int, row: int) -> int:
        ends = self.tasks.fileno(), self.results.fileno()
        descriptors = [*ends, self.arena, self.parcel, self.log]
        path = self.settings["surroundings"]["search path"]
        line = command("worker", os.getpid(), [number, row, *descriptors], path)
        with signals.held_back():
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, pass_fds=descriptors)
        process.returncode = 0  # `_reap` waits for it
        return process.pid

    def _reap(self) -> None:
        while self.workers:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self.workers.pop(pid, None)
            if number is not None:
                self.say("died", number, pid, os.waitstatus_to_exitcode(status))
                self._end_group(pid)

    def _end_group(self, leader: int) -> None:
        if signals.send(leader, signal.SIGTERM):
            self.ending[leader] = time.monotonic() + _LAST

    def _end_groups(self) -> None:
        for group, last in list(self.ending.items()):
            if not signals.send(group, 0):
                del self.ending[group]
            elif time.monotonic() > last:
                signals.send(group, signal.SIGKILL)
                del self.ending[group]

    def _end_workers(self) -> None:
        if self.settings["closes"]:
            self._let_close()
        for pid in self.workers:
            os.kill(pid, signal.SIGKILL)
        for pid in self.workers:
            os.waitpid(pid, 0)
            self._end_group(pid)
        while True:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(-1, os.WNOHANG)  # an orphan
            self._end_groups()
            if not self.ending:
                return
            time.sleep(0.002)

    def _let_close(self) -> None:
        for pid in self.workers:
            os.kill(pid, channel.END)
        deadline = time.monotonic() + _FAREWELL
        while self.workers and time.monotonic() < deadline:
            pid, _ = os.waitpid(-1, os.WNOHANG)
            if self.workers.pop(pid, None) is None:
                time.sleep(0.002)
            else:
                self._end_group(pid)


def _adopt_orphans() -> None:
    # Of a step's processes whose worker is gone, this one then hears when they have ended.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _fresh_worker(helper: int, number: int, row: int, *descriptors: int) -> None:
    from grain_jax._execution.engine import worker

    if sys.platform == "linux":
        _die_with_parent(helper)
    else:
        _watch_parent(helper)
    tasks, results = channel.adopt(descriptors[0]), channel.adopt(descriptors[1])
    settings = read_settings(descriptors[3])
    surroundings.apply(settings["surroundings"])
    locations.install(settings["locations"])
    worker.work(number, row, settings, tasks, results, *descriptors[2:])


def _watch_parent(parent: int) -> None:
    # Where the kernel has no signal for it, a thread looks.
    import threading

    def look() -> None:
        while os.getppid() == parent:
            time.sleep(_LOOK)
        os._exit(0)

    threading.Thread(target=look, daemon=True).start()
