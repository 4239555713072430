"""Jobs of several `jax.distributed` processes on this machine, for tests."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

__all__ = ["ROOT", "free_address", "initialize", "job", "results", "running"]

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def running(
    commands: Sequence[Sequence[str]], devices: int = 2
) -> Iterator[list[subprocess.Popen[str]]]:
    """Runs `python *command` for each of these commands; kills what is left at the end."""
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
    }
    with contextlib.ExitStack() as stack:
        processes = []
        for command in commands:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)  # closes its pipes and waits for it
            stack.callback(process.kill)
            processes.append(process)
        yield processes


def free_address() -> str:
    """An address for the coordinator of a job."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def job(
    module: str, count: int, *arguments: str
) -> contextlib.AbstractContextManager[list[subprocess.Popen[str]]]:
    """Runs `python -m module address count index *arguments`, `count` of them."""
    address = free_address()
    return running(
        [["-m", module, address, str(count), str(index), *arguments] for index in range(count)]
    )


def results(processes: list[subprocess.Popen[str]], timeout: float = 200) -> list[Any]:
    """What each process printed last, as JSON; all of them have to end well."""
    outputs = [process.communicate(timeout=timeout) for process in processes]
    for process, (_, errors) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


def initialize(address: str, count: str, index: str) -> int:
    """Joins the job that this process is one of; returns its index."""
    import jax

    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(address, int(count), int(index))
    return int(index)
