"""Trains a small language model on two kinds of text, kills it, and goes on bit by bit the same.

The texts are what installed packages ship: descriptions of data sets of scikit-learn, and
docstrings of NumPy. They are mixed 70 to 30 by their tokens, packed into rows with segment ids,
batched, and put on the device ahead of time. `python examples/language_model.py` trains once
without interruption, then once more with a SIGKILL between two saves, and compares losses and
parameters.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.resources
import json
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"  # has to be set before jax is imported

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from demo import finish, kill_after, steps
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import grain_jax as grain

Batch = dict[str, Any]

LENGTH, ROWS, WIDTH, HEADS, LAYERS = 128, 16, 64, 4, 2
BEGIN = 256  # a token before each piece of text; the others are its bytes
WEIGHTS = {"descriptions": 0.7, "docstrings": 0.3}

# Orbax reports a save that an earlier process did not finish; after a kill that is no news.
logging.getLogger("absl").setLevel(logging.ERROR)


def descriptions() -> list[str]:
    """What scikit-learn says of its data sets."""
    folder = importlib.resources.files("sklearn.datasets") / "descr"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".rst")), key=lambda f: f.name)
    return [file.read_text(encoding="utf-8") for file in files]


def docstrings() -> list[str]:
    """What NumPy says of its functions."""
    names = sorted(name for name in dir(np) if callable(getattr(np, name)))
    return [text for name in names if len(text := getattr(np, name).__doc__ or "") > 200]


def pieces(text: str) -> list[Batch]:
    """Paragraphs as tokens, those cut that are longer than a row."""
    found = []
    for paragraph in filter(None, map(str.strip, text.split("\n\n"))):
        tokens = np.frombuffer(paragraph.encode(), np.uint8).astype(np.int32)
        for begin in range(0, len(tokens), LENGTH - 1):
            part = tokens[begin : begin + LENGTH - 1]
            found.append({"tokens": np.concatenate([[BEGIN], part]).astype(np.int32)})
    return found


def weight(piece: Batch) -> int:
    """How much a piece counts in the mixture: its tokens."""
    return len(piece["tokens"])


def batches() -> grain.IterDataset[Batch]:
    """The data: a description of the stream, which any number of workers yields in one order."""
    parts = {
        name: grain.MapDataset.source(texts).shuffle(seed=0).repeat().to_iter_dataset()
        for name, texts in (("descriptions", descriptions()), ("docstrings", docstrings()))
    }
    mixture = grain.IterDataset.mix(
        {name: part.flat_map(pieces) for name, part in parts.items()}, WEIGHTS, weigh=weight
    )
    rows = mixture.pack({"tokens": LENGTH}, num_packing_bins=ROWS, seed=0)
    workers = grain.MultiprocessingOptions(num_workers=2)
    return rows.batch(ROWS, drop_remainder=True).mp_prefetch(workers)


class Block(nnx.Module):
    """Attention and two dense layers, each added to what it is given."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.attention = nnx.MultiHeadAttention(HEADS, WIDTH, decode=False, rngs=rngs)
        self.norms = nnx.List([nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2)])
        self.up = nnx.Linear(WIDTH, 4 * WIDTH, rngs=rngs)
        self.down = nnx.Linear(4 * WIDTH, WIDTH, rngs=rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        x = x + self.attention(self.norms[0](x), mask=mask)
        return x + self.down(nnx.gelu(self.up(self.norms[1](x))))


class LanguageModel(nnx.Module):
    """A decoder: what a token may look at is before it, and in the same piece of text."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.tokens = nnx.Embed(BEGIN + 1, WIDTH, rngs=rngs)
        self.places = nnx.Embed(LENGTH, WIDTH, rngs=rngs)
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])
        self.norm = nnx.LayerNorm(WIDTH, rngs=rngs)

    def __call__(self, batch: Batch) -> jax.Array:
        """Logits of shape (rows, length, tokens that there are)."""
        segments = batch["tokens_segment_ids"]
        same = segments[:, None, :, None] == segments[:, None, None, :]
        mask = same & jnp.tril(jnp.ones((LENGTH, LENGTH), bool))
        x = self.tokens(batch["tokens"]) + self.places(batch["tokens_positions"])
        for block in self.blocks:
            x = block(x, mask)
        return self.tokens.attend(self.norm(x))


@nnx.jit
def train_step(model: LanguageModel, optimizer: nnx.Optimizer, batch: Batch) -> jax.Array:
    def loss(model: LanguageModel) -> jax.Array:
        tokens, segments = batch["tokens"], batch["tokens_segment_ids"]
        # The next token of the same piece; padding is of none.
        counts = (segments[:, 1:] == segments[:, :-1]) & (segments[:, 1:] > 0)
        losses = optax.softmax_cross_entropy_with_integer_labels(
            model(batch)[:, :-1], tokens[:, 1:]
        )
        return jnp.where(counts, losses, 0).sum() / counts.sum()

    value, slopes = nnx.value_and_grad(loss)(model)
    optimizer.update(model, slopes)
    return value


def digest(*arrays: Any) -> str:
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.asarray(array).tobytes())
    return sha.hexdigest()[:16]


def train(workdir: Path, last: int, save_every: int) -> None:
    """Trains up to step `last`; after the last save in `workdir`, if there is one."""
    mesh = Mesh(jax.devices(), ("data",))
    data = grain.prefetch_to_device(batches(), NamedSharding(mesh, PartitionSpec("data")))
    model = LanguageModel(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adam(3e-3), wrt=nnx.Param)
    both = nnx.state((model, optimizer))
    with (
        data,
        ocp.CheckpointManager(workdir.absolute() / "checkpoints") as checkpoints,
        (workdir / "steps.jsonl").open("a") as log,
    ):
        start = checkpoints.latest_step() or 0
        if start:
            items = ocp.args.Composite(
                model=ocp.args.StandardRestore(both),
                data=grain.checkpoint.CheckpointRestore(data),
            )
            nnx.update((model, optimizer), checkpoints.restore(start, args=items)["model"])
        for step in range(start + 1, last + 1):
            batch = next(data)
            loss = float(train_step(model, optimizer, batch))
            seen = {"step": step, "loss": loss.hex(), "tokens": digest(batch["tokens"])}
            print(json.dumps(seen), file=log, flush=True)
            if step % save_every == 0:
                items = ocp.args.Composite(
                    model=ocp.args.StandardSave(nnx.state((model, optimizer))),
                    data=grain.checkpoint.CheckpointSave(data),
                )
                checkpoints.save(step, args=items)
        counts = {name: one["weight"] for name, one in data.mixture_counts.items()}
    parameters = digest(*jax.tree.leaves(nnx.state(model, nnx.Param)))
    (workdir / "result.json").write_text(json.dumps({"parameters": parameters, "seen": counts}))


def start(workdir: Path, last: int, save_every: int) -> subprocess.Popen[bytes]:
    """A training process that logs its steps and saves in `workdir`."""
    workdir.mkdir(exist_ok=True)
    command = [sys.executable, __file__, f"--train={workdir}", f"--steps={last}"]
    return subprocess.Popen([*command, f"--save-every={save_every}"])


def compare(folder: Path, last: int, save_every: int, kill_at: int) -> bool:
    """Prints what happened; returns whether the interrupted run equals the other one."""
    whole, cut = folder / "uninterrupted", folder / "interrupted"
    finish(start(whole, last, save_every))
    expected = steps(whole)
    losses = [float.fromhex(line["loss"]) for line in expected]
    print(f"uninterrupted run: {len(expected)} steps, loss {losses[0]:.2f} to {losses[-1]:.2f}")

    process = start(cut, last, save_every)
    kill_after(kill_at, process, cut)
    before = steps(cut)
    finish(start(cut, last, save_every))
    after = steps(cut)[len(before) :]
    print(f"second run: killed after step {before[-1]['step']}, resumed at {after[0]['step']}")

    results = [json.loads((run / "result.json").read_text()) for run in (whole, cut)]
    seen = results[0]["seen"]
    shares = ", ".join(f"{count / sum(seen.values()):.1%} {name}" for name, count in seen.items())
    print(f"tokens: {shares}")
    same = {
        "losses and tokens are those of the uninterrupted run": before == expected[: len(before)]
        and after == expected[-len(after) :],
        "final parameters are bit-identical": results[0] == results[1],
    }
    for what, is_so in same.items():
        print(f"{what}: {'yes' if is_so else 'NO'}")
    return all(same.values())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--train", type=Path, metavar="FOLDER", help="only train, in this folder")
    parser.add_argument("--steps", type=int, default=45)
    parser.add_argument("--save-every", type=int, default=15)
    parser.add_argument("--kill-at", type=int, default=25)
    given = parser.parse_args()
    if given.train:
        train(given.train, given.steps, given.save_every)
    else:
        with tempfile.TemporaryDirectory(prefix="grain_jax_language_model_") as folder:
            sys.exit(not compare(Path(folder), given.steps, given.save_every, given.kill_at))
