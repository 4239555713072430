"""What the workers of these tests run. Imports numpy only, so that workers start quickly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np


class Call:
    """Calls the function in the payload: `function(inputs, allocate, *arguments)`."""

    def run(
        self, kind: int, payload: Any, inputs: list[Any], allocate: Any
    ) -> tuple[list[Any], Any]:
        function, *arguments = payload
        return function(inputs, allocate, *arguments)


class Holding(Call):
    """Holds something that travels with it."""

    def __init__(self, held: Any) -> None:
        self.held = held


class Threaded(Call):
    """Starts a thread when it is loaded."""

    def __init__(self) -> None:
        self.loads = 0

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.thread = threading.Thread(target=time.sleep, args=(1000,), daemon=True)
        self.thread.start()

    def __getstate__(self) -> dict[str, Any]:
        return {"loads": self.loads}


class Unloadable(Call):
    """Raises when it is loaded."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        raise RuntimeError("no such table here")

    def __getstate__(self) -> dict[str, Any]:
        return {"a": 1}


class DiesWhenLoaded(Unloadable):
    """Ends the process when it is loaded."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        os._exit(7)


def fill(inputs: Any, allocate: Any, value: int, size: int = 8, seconds: float = 0) -> Any:
    """One array, filled with a value after a while."""
    array = allocate((size,), np.int64)
    array[:] = value
    time.sleep(seconds)
    return [array], os.getpid()


def slow_halves(inputs: Any, allocate: Any, value: int, size: int, seconds: float) -> Any:
    """Fills half of an array, waits, fills the rest: what others write meanwhile would show."""
    array = allocate((size,), np.int64)
    array[: size // 2] = value
    time.sleep(seconds)
    array[size // 2 :] = value
    return [array], None


def die_once(inputs: Any, allocate: Any, value: int, size: int, marker: str, how: int) -> Any:
    """Ends its process by a signal, half done, the first time."""
    array = allocate((size,), np.int64)
    array[: size // 2] = -1
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), how)
        time.sleep(60)
    return fill(inputs, allocate, value, size)


def die(inputs: Any, allocate: Any, how: int = signal.SIGKILL) -> Any:
    """Ends its process every time."""
    os.kill(os.getpid(), how)
    time.sleep(60)


def kill_parent(inputs: Any, allocate: Any) -> Any:
    """Kills the process that started its own, which takes this one with it."""
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def leave(inputs: Any, allocate: Any, code: int) -> Any:
    """Ends its process with an exit code."""
    os._exit(code)


def exit_system(inputs: Any, allocate: Any) -> Any:
    """Asks its process to end the polite way."""
    sys.exit(3)


def fail(inputs: Any, allocate: Any, kind: type[BaseException], *arguments: Any) -> Any:
    """Raises."""
    raise kind(*arguments)


def echo(inputs: Any, allocate: Any, *values: Any) -> Any:
    """Returns what it was given."""
    return list(values), len(inputs)


def rows(inputs: Any, allocate: Any) -> Any:
    """Stacks its inputs into one array."""
    array = allocate((len(inputs), *inputs[0].shape), inputs[0].dtype)
    np.stack(inputs, out=array)
    return [array], None


def open_file(inputs: Any, allocate: Any) -> Any:
    """Returns what no process can send."""
    return [{"number": 3}, {"file": open(__file__, "rb")}], None


_kept: list[Any] = []


def keep(inputs: Any, allocate: Any, value: int) -> Any:
    """Returns an array that it also keeps."""
    array = allocate((8,), np.int64)
    array[:] = value
    _kept.append(array)
    return [array], None


def keep_inputs(inputs: Any, allocate: Any) -> Any:
    """Keeps its inputs and returns nothing."""
    _kept.extend(inputs)
    return [], None


def kept(inputs: Any, allocate: Any, seconds: float) -> Any:
    """Returns copies of what this process has kept, after a while."""
    time.sleep(seconds)
    return [array.copy() for array in _kept], os.getpid()


def drop(inputs: Any, allocate: Any, seconds: float) -> Any:
    """Forgets what this process has kept, after a while."""
    time.sleep(seconds)
    _kept.clear()
    return [], os.getpid()


def _is_caught(number: int) -> bool:
    """Whether a signal is neither ignored nor does what it does by default."""
    plain = (signal.SIG_IGN, signal.SIG_DFL, signal.default_int_handler)
    return signal.getsignal(number) not in plain


def look(inputs: Any, allocate: Any) -> Any:
    """What a worker sees of its surroundings."""
    main = sys.modules["__main__"]
    seen = {
        "jax": "jax" in sys.modules,
        "environment": dict(os.environ),
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "main": getattr(main, "__file__", None),
        "threads": threading.active_count(),
        "sigint": _is_caught(signal.SIGINT),
        "sigterm": _is_caught(signal.SIGTERM),
        "pid": os.getpid(),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    return [seen], None


def run_child(inputs: Any, allocate: Any) -> Any:
    """Runs another program."""
    line = [sys.executable, "-c", "print(5)"]
    return [subprocess.run(line, capture_output=True, check=True).stdout], None


def note(path: str, number: int, workers: int) -> None:
    """An init that leaves a file for each worker."""
    Path(path, f"{number}-of-{workers}-{os.getpid()}").touch()


def give_inputs(inputs: Any, allocate: Any) -> Any:
    """Returns its inputs."""
    return list(inputs), None


def spoil_and_die_once(inputs: Any, allocate: Any, marker: str, how: int) -> Any:
    """Stacks its inputs; the first time it writes to its own memory and ends its process."""
    if not Path(marker).exists():
        Path(marker).touch()
        allocate((1 << 16,), np.int64)[:] = -1
        os.kill(os.getpid(), how)
        time.sleep(60)
    return rows(inputs, allocate)
