"""What every test finds: CPU devices, Grain ready to run, a count of processes, an order."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from hypothesis import settings

from grain_jax._execution.engine.launch import Handle, keep_alive
from tests.processes import children
from tests.waiting import until

# A shell's `&` and `nohup` start this process with SIGINT ignored, which programs started from here
# would inherit. Tests interrupt themselves and others.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Before anything imports jax: a mesh needs devices, and tests must not differ by machine.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    _flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{_flags} --xla_force_host_platform_device_count=4".strip()

# The same draws each time, however slow the machine is; `make faults` draws anew.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile("fresh", deadline=None)
settings.load_profile("fixed")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One process more than there are cores: much of a test is waiting for other processes."""
    return (os.cpu_count() or 1) + 1


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts those that may take long first: at the end one process would be left with them."""
    items.sort(key=lambda item: not _may_take_long(item))


def _may_take_long(item: pytest.Item) -> bool:
    limit = item.get_closest_marker("timeout")
    return limit is not None and bool(limit.args) and limit.args[0] >= 180


@pytest.fixture(scope="session")
def reference_grain() -> ModuleType:
    """Grain itself, for comparison; its flags count as parsed so that its workers start."""
    grain = pytest.importorskip("grain")
    from absl import flags

    flags.FLAGS.mark_as_parsed()
    return grain


@pytest.fixture(scope="session")
def shared_process() -> Iterator[Handle]:
    """Keeps the process that all loaders here share, so that their workers start in milliseconds.

    Scripts of their own, and the tests of the engine, start without it.
    """
    handle = keep_alive()
    yield handle
    handle.close()


@pytest.fixture
def no_process_left(shared_process: Handle) -> Iterator[None]:
    """Fails a test that leaves a process running which was not there before."""
    if not sys.platform.startswith("linux"):
        yield
        return
    assert shared_process.zygote  # another one where a test has ended it
    before = children()
    yield
    until(lambda: not children() - before)
    left = children() - before
    assert not left, f"processes {sorted(left)} outlived the test"
