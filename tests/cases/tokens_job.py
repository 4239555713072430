"""One process of a job that reads packed tokens, logs and saves every step, and may be killed."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import grain_jax as grain
from grain_jax._values.checkpointable import process_position, restore_state, take_state
from grain_jax._values.files import write_state
from tests.product.jobs import initialize

SHARDS, SHARE, LENGTH, BINS = 8, 2, 12, 3


def sources() -> list[list[int]]:
    """Numbers of records: the first ones are filtered."""
    return [list(range(1, 1200)), list(range(5000, 5900))]


def keeps(number: int) -> bool:
    return number % 4 > 0


def tokens(number: int) -> dict[str, Any]:
    """The sequence of a record: 1 to 7 tokens."""
    return {"tokens": number + np.arange(1 + number % 7)}


def dataset(index: int, count: int, workers: int) -> Any:
    few, others = (grain.MapDataset.source(part).to_iter_dataset() for part in sources())
    ds = grain.IterDataset.mix([few.filter(keeps), others], [2, 1]).map(tokens)
    ds = ds.pack({"tokens": LENGTH}, num_packing_bins=BINS, shuffle_bins=False)
    ds = ds.batch(SHARE * SHARDS // count)
    shard = grain.sharding.ShardOptions(index, count)
    options = grain.MultiprocessingOptions(num_workers=workers)
    return ds.shard(shard, virtual_shards=SHARDS).mp_prefetch(options)


def main() -> None:
    address, count, index, folder, workers, begin = sys.argv[1:]
    process = initialize(address, count, index)
    step = int(begin.rpartition("_")[2] or 0)
    ds = dataset(process, int(count), int(workers))
    sharding = NamedSharding(Mesh(np.array(jax.devices()), ("data",)), P("data"))
    stage = grain.prefetch_to_device(ds, sharding, remainder="pad")
    with stage as iterator, Path(folder, f"{process}-of-{count}.jsonl").open("a") as log:
        if begin:
            where = process_position()
            restore_state(iterator, begin, index=where[0], count=where[1])
        for batch in iterator:
            step += 1
            rows, mask = (np.asarray(batch[k].addressable_data(0)) for k in ("tokens", "mask"))
            save = Path(folder, f"{count}_{step}")
            save.mkdir(exist_ok=True)
            write_state(save, *process_position(), take_state(iterator))
            print(json.dumps([step, rows[mask].tolist()]), file=log, flush=True)
            time.sleep(0.03)
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
