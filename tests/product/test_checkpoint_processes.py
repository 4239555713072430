"""One checkpoint of two `jax.distributed` processes, restored by two and by one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import orbax.checkpoint as ocp
import pytest
from etils import epath

from grain_jax._values.errors import StateError
from grain_jax.checkpoint import CheckpointRestore
from tests.product.counters import Counter

ROOT = Path(__file__).resolve().parents[2]

PROCESS = """
import sys
import jax
address, index, directory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(address, num_processes=2, process_id=index)
import orbax.checkpoint as ocp
from etils import epath
from grain_jax.checkpoint import CheckpointRestore, CheckpointSave
from tests.product.counters import Counter, advanced

free, own = advanced(Counter(), 5), advanced(Counter(elastic=False), 5 + index)
with ocp.CheckpointManager(epath.Path(directory)) as manager:
    manager.save(
        0, args=ocp.args.Composite(free=CheckpointSave(free), own=CheckpointSave(own))
    )
    advanced(free, 20)
    advanced(own, 20)
    manager.wait_until_finished()
    free, own = Counter(), Counter(elastic=False)
    manager.restore(
        0, args=ocp.args.Composite(free=CheckpointRestore(free), own=CheckpointRestore(own))
    )
assert (free.position, own.position) == (5, 5 + index), (free.position, own.position)
jax.distributed.shutdown()
"""


@pytest.mark.usefixtures("no_process_left")
def test_two_processes_share_a_checkpoint_and_one_reads_it(tmp_path: Path) -> None:
    with socket.socket() as free_port:
        free_port.bind(("localhost", 0))
        address = f"localhost:{free_port.getsockname()[1]}"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROCESS, address, str(index), str(tmp_path)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        errors = [process.communicate(timeout=200)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("process_*")} == {
        f"0/{item}/process_{index}-of-2.json" for item in ("free", "own") for index in range(2)
    }

    free = Counter()
    with ocp.CheckpointManager(epath.Path(tmp_path)) as manager:
        manager.restore(0, args=ocp.args.Composite(free=CheckpointRestore(free)))
        assert free.position == 5
        with pytest.raises(StateError, match=r"by 2 processes .* and 1 process would restore"):
            manager.restore(
                0, args=ocp.args.Composite(own=CheckpointRestore(Counter(elastic=False)))
            )
