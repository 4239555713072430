"""A process of the engine that is started as a program, and why it could not be."""

from __future__ import annotations

import contextlib
import os
import stat
import subprocess
import sys
import time
import types
from collections.abc import Sequence

from grain_jax._execution.engine import arena, faults, helper, surroundings
from grain_jax._values.errors import WorkerError

__all__ = ["Process", "check"]

_PATIENCE = 120.0  # seconds until a program that does not run what it is given is no interpreter
_LONGEST = 8192  # bytes of what it wrote


class Process:
    """A zygote or a helper. Until it runs, what it writes to stderr is kept.

    Args:
      role: which of the two.
      arguments: its numbers.
      descriptors: what it inherits.

    Raises:
      WorkerError: there is no interpreter, or this process was itself started in place of one.
    """

    def __init__(self, role: str, arguments: Sequence[int], descriptors: Sequence[int]) -> None:
        check()
        self._role = role
        self._began = time.monotonic()
        self._said, _ = arena.memory_file("grain_jax_stderr")
        self._runs = self._is_late = False
        stderr = _copy_of_stderr()
        try:
            line = helper.command(
                role, os.getpid(), list(arguments), surroundings.search_path(), stderr
            )
            self._process = subprocess.Popen(
                line,
                stdin=subprocess.DEVNULL,
                stderr=self._said,
                env={**surroundings.environment(), helper.STARTED: str(os.getpid())},
                pass_fds=[*descriptors, *([stderr] if stderr >= 0 else [])],
                start_new_session=True,  # Ctrl-C reaches a group before Python can catch it
            )
        except (FileNotFoundError, PermissionError) as error:
            raise WorkerError(
                f"{sys.executable} (sys.executable) could not be started, and has to be an "
                f"interpreter to run worker processes: {error}"
            ) from error
        finally:
            if stderr >= 0:
                os.close(stderr)

    @property
    def pid(self) -> int:
        """Its number."""
        return self._process.pid

    def __del__(self) -> None:
        self._forget_words()

    def ended(self) -> bool:
        """Whether it has ended, or is none of ours."""
        return self._process.poll() is not None or self.failure() is not None

    def failure(self, seconds: float = 0) -> str | None:
        """Returns why it could not be started, with what it wrote; None if it runs, or may yet.

        One that a signal has ended is started again, as one that did run.

        Args:
          seconds: how long to wait for the end of one that has closed its sockets, but does not
            run.
        """
        self._words()
        if seconds and not self._runs:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=seconds)
        code = self._process.poll()
        words = self._words()
        if code is None and not self._runs and time.monotonic() - self._began > _PATIENCE:
            self._is_late = True
            self._process.kill()
        if self._is_late:
            how = f"it has not run what it was given within {_PATIENCE:.0f} s"
        elif self._runs or code is None or code < 0:
            return None
        else:
            how = f"it ended with {faults.death(code)}"
        written = f"It wrote:\n{words}" if words else "It wrote nothing to stderr."
        return (
            f"the process that starts the workers could not be started: {how}. The program is "
            f"{sys.executable} (sys.executable), which has to run `-c` as Python does, with the "
            f"search path of this process. {written}"
        )

    def end(self) -> str:
        """Returns how it ended, in words; empty while it has not."""
        code = self._process.poll()
        return "" if code is None else faults.death(code)

    def reap(self) -> None:
        """Waits for its end, which is near, and makes sure of it."""
        try:
            self._process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait(timeout=2)
        self.failure()  # reads what it wrote
        self._forget_words()

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def forget(self) -> None:
        """Lets go of it after a fork: it is no child of this process."""
        self._process.returncode = 0
        self._forget_words()

    def _words(self) -> str:
        if self._said < 0:
            return self._kept
        self._runs = stat.S_IMODE(os.fstat(self._said).st_mode) == helper.RUNS
        data = os.pread(self._said, 1 << 20, 0)
        self._kept = data[-_LONGEST:].decode(errors="replace").strip()
        if self._runs:
            self._forget_words()
        return self._kept

    _kept = ""
    _said = -1

    def _forget_words(self) -> None:
        said, self._said = self._said, -1
        if said >= 0:
            with contextlib.suppress(OSError):
                os.close(said)


def check() -> None:
    """Raises where no worker processes can be started from."""
    if surroundings.loading:
        raise WorkerError(
            f"a loader was iterated while a worker process imports {_importing()}, whose code the "
            "pipeline needs: each worker would start workers of its own. Make batches in a "
            "function, or below `if __name__ == '__main__':`, and not where the module is imported."
        )
    if helper.STARTED in os.environ:
        raise WorkerError(
            f"process {os.environ[helper.STARTED]} has started this program in place of a Python "
            f"interpreter, since its sys.executable is {sys.executable}: no worker processes are "
            "started from here. Set sys.executable to an interpreter, or use worker_count=0."
        )
    if not sys.executable:
        raise WorkerError(
            "sys.executable is empty, so there is no interpreter to run worker processes. Set it "
            "to one, or use worker_count=0."
        )


def _importing() -> str:
    """Names the module whose import has led here."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__spec__") is not None:
            return f"module {frame.f_globals['__name__']} ({frame.f_code.co_filename})"
        frame = frame.f_back
    return "a module"


def _copy_of_stderr() -> int:
    try:
        return os.dup(2)
    except OSError:  # it is closed
        return -1
