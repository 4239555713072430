"""Trains a digit classifier in several processes; goes on with any other number of them.

On one machine, this starts four processes, kills nothing, and trains to the end:

    python examples/multihost.py FOLDER --processes 4

Started again in the same folder it goes on after its last save, with `--processes 3` as well: the
global batch is what counts, and each step has the records that it has for every other number. With
a filter, `--without 8`, the shards of the first run stay: it goes on with 4, 2 or 1, and with
`--virtual-shards 8` with 8, too. On several hosts, start the same script on each, in a folder that
all of them see:

    python examples/multihost.py FOLDER --processes 4 --coordinator HOST:PORT --process 0    (to 3)

or with `--cluster` where `jax.distributed.initialize()` finds all that by itself.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

import grain_jax as grain

Batch = dict[str, Any]
Parameters = dict[str, jax.Array]

# Orbax reports a save that an earlier process did not finish; after a kill that is no news.
logging.getLogger("absl").setLevel(logging.ERROR)


@dataclasses.dataclass(frozen=True)
class Without(grain.transforms.Filter):
    """Leaves out the images of one digit."""

    digit: int

    def filter(self, record: Batch) -> bool:
        return bool(record["label"] != self.digit)


class ShiftByAPixel(grain.transforms.RandomMap):
    """Moves the image by at most one pixel each way; runs in the worker processes."""

    def random_map(self, record: Batch, rng: np.random.Generator) -> Batch:
        """Draws from `rng`, which depends on the seed and the record's position alone."""
        shift = rng.integers(-1, 2, size=2)
        return record | {"image": np.roll(record["image"], shift, axis=(0, 1))}


def digits(records: int) -> Batch:
    data = load_digits()
    return {
        "id": np.arange(records, dtype=np.int32),
        "image": (data.images[:records] / 16).astype(np.float32),
        "label": data.target[:records].astype(np.int32),
    }


def batches(options: argparse.Namespace, sharding: NamedSharding) -> Any:
    """Batches of all processes together, in an order that does not depend on their number."""
    shard = grain.sharding.ShardBySharding(sharding)
    rows, rest = divmod(options.global_batch, shard.shard_count)
    if rest:
        sys.exit(f"a global batch of {options.global_batch} does not divide by {shard.shard_count}")
    loader = grain.load(
        digits(options.records),
        shuffle=True,
        seed=0,
        num_epochs=options.epochs,
        transformations=[Without(digit) for digit in options.without] + [ShiftByAPixel()],
        batch_size=rows,
        shard_options=shard,
        virtual_shards=options.virtual_shards,
        worker_count=options.workers,
    )
    # The last global batch is short: padded on every process, also on one without any of it. With
    # a filter several are, as the shards count for themselves and come to their ends one by one.
    return grain.prefetch_to_device(loader, sharding, remainder="pad")


def new_parameters(sharding: NamedSharding) -> Parameters:
    rng = np.random.default_rng(0)
    shapes = {"hidden": (64, 64), "out": (64, 10)}
    return {
        name: jax.make_array_from_process_local_data(
            sharding, rng.normal(size=shape, scale=1 / 8).astype(np.float32)
        )
        for name, shape in shapes.items()
    }


@jax.jit
def train_step(parameters: Parameters, batch: Batch) -> Parameters:
    def loss(parameters: Parameters) -> jax.Array:
        hidden = jnp.tanh(batch["image"].reshape(-1, 64) @ parameters["hidden"])
        scores = jax.nn.log_softmax(hidden @ parameters["out"])
        losses = -jnp.take_along_axis(scores, batch["label"][:, None], axis=1)[:, 0]
        # A batch that is mostly padding is a small step, not a large one on a few records.
        return jnp.where(batch["mask"], losses, 0).mean()

    slopes = jax.grad(loss)(parameters)
    return jax.tree.map(lambda p, slope: p - 0.5 * slope, parameters, slopes)


def local_records(batch: Batch) -> Iterator[tuple[int, str]]:
    """Number and digest of the pixels of each record that lies on this process's devices."""
    parts = ([np.asarray(s.data) for s in batch[k].addressable_shards] for k in batch)
    local = dict(zip(batch, parts, strict=True))
    for ids, images, masks in zip(local["id"], local["image"], local["mask"], strict=True):
        for number, image in zip(ids[masks], images[masks], strict=True):
            yield int(number), hashlib.sha256(image.tobytes()).hexdigest()[:12]


def train(options: argparse.Namespace) -> None:
    workdir = options.workdir.absolute()
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    parameters = new_parameters(NamedSharding(mesh, PartitionSpec()))
    every = ocp.CheckpointManagerOptions(save_interval_steps=options.save_every, max_to_keep=3)
    log = workdir / f"process_{jax.process_index()}.jsonl"
    with (
        batches(options, sharding) as data,
        ocp.CheckpointManager(workdir / "checkpoints", options=every) as checkpoints,
        log.open("a") as lines,
    ):
        start = checkpoints.latest_step() or 0
        if start:
            items = ocp.args.Composite(
                parameters=ocp.args.StandardRestore(parameters),
                data=grain.checkpoint.CheckpointRestore(data),
            )
            parameters = checkpoints.restore(start, args=items)["parameters"]
        for step, batch in enumerate(data, start + 1):
            parameters = train_step(parameters, batch)
            seen = {"step": step, "of": jax.process_count(), "records": list(local_records(batch))}
            print(json.dumps(seen), file=lines, flush=True)
            # At the interval, and on all processes at one step when one of them got a SIGTERM.
            items = ocp.args.Composite(
                parameters=ocp.args.StandardSave(parameters),
                data=grain.checkpoint.CheckpointSave(data),
            )
            checkpoints.save(step, args=items)
            if checkpoints.reached_preemption(step):
                return
            time.sleep(options.pause)
    if jax.process_index() == 0:
        np.savez(workdir / "parameters.npz", **{k: np.asarray(v) for k, v in parameters.items()})
        images, labels = (digits(1797)[key] for key in ("image", "label"))
        whole = {k: np.asarray(v) for k, v in parameters.items()}
        scores = np.tanh(images.reshape(-1, 64) @ whole["hidden"]) @ whole["out"]
        print(f"accuracy on the digits: {(scores.argmax(1) == labels).mean():.1%}")


def join(options: argparse.Namespace) -> None:
    """Makes this process one of the job."""
    if not options.cluster:
        jax.config.update("jax_platforms", options.platform)
    if options.platform == "cpu":
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if options.cluster:
        jax.distributed.initialize()
    elif options.processes > 1:
        # A process that is gone without a word is noticed after this time at the latest.
        jax.distributed.initialize(
            options.coordinator,
            options.processes,
            options.process,
            heartbeat_timeout_seconds=options.heartbeat,
        )


def launch(options: argparse.Namespace) -> int:
    """Starts all processes on this machine; when one of them fails, ends the others."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    command = [sys.executable, *sys.argv, f"--coordinator={address}"]
    processes = [
        subprocess.Popen([*command, f"--process={index}"], env=env)
        for index in range(options.processes)
    ]
    try:
        while (codes := [process.poll() for process in processes]).count(None):
            if any(codes):
                break
            time.sleep(0.1)
        return next((code for code in codes if code), 0)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workdir", type=Path)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--process", type=int, help="index of this process")
    parser.add_argument("--coordinator", help="address of process 0, HOST:PORT")
    parser.add_argument("--cluster", action="store_true", help="let JAX find the other processes")
    parser.add_argument("--platform", default="cpu")
    parser.add_argument("--heartbeat", type=int, default=20)
    parser.add_argument("--global-batch", type=int, default=48)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--records", type=int, default=1500)
    parser.add_argument("--without", type=int, action="append", default=[], help="a digit to skip")
    parser.add_argument("--virtual-shards", type=int, help="processes that there may ever be")
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--workers", type=int, default=1, help="worker processes in each process")
    parser.add_argument("--pause", type=float, default=0, help="seconds between steps")
    options = parser.parse_args()
    options.workdir.mkdir(parents=True, exist_ok=True)
    if options.process is None and not options.cluster:
        sys.exit(launch(options))
    join(options)
    try:
        train(options)
    except BaseException:
        # At a normal exit JAX waits for the other processes, and they wait for this one, in a
        # collective: only its end tells them.
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    if jax.process_count() > 1:
        # The stage is closed: a process that held it here would let others wait for its batches.
        jax.distributed.shutdown()


if __name__ == "__main__":
    main()
