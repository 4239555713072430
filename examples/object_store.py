"""Reads what lies in an object store: Parquet and TFRecord files, by patterns of their paths.

Paths with a protocol go through fsspec. Here it is `memory://`, a store inside this process, so
that the example needs no account and has no workers, which could not see it; with `gs://` or
`s3://` all else stays as it is, and `num_workers` is as high as you like.
"""

from __future__ import annotations

import io

import fsspec
import jax
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits

import grain_jax as grain

STORE = "memory://bucket"


def write_digits(files: int) -> None:
    """Writes the digits of scikit-learn as Parquet files."""
    images, labels = load_digits(return_X_y=True)
    for number in range(files):
        part = slice(number, None, files)
        pixels = [image.astype(np.uint8).tobytes() for image in images[part]]
        table = pa.table({"image": pixels, "label": labels[part]})
        memory = io.BytesIO()
        pq.write_table(table, memory, row_group_size=100)
        with fsspec.open(f"{STORE}/digits/{number:02}.parquet", "wb") as file:
            file.write(memory.getvalue())


def decode(row: dict[str, object]) -> dict[str, np.ndarray]:
    return row | {"image": np.frombuffer(row["image"], np.uint8).reshape(8, 8)}


def main() -> None:
    write_digits(files=8)
    rows = grain.experimental.ParquetIterDataset(
        f"{STORE}/digits/*.parquet",
        columns=["image", "label"],
        filters=[("label", "<", 5)],
        cycle_length=4,  # files that take turns
    )
    small = rows.map(decode).window_shuffle(200, seed=0).batch(64)
    count = 0
    with grain.prefetch_to_device(small, remainder="pad") as batches:
        for batch in batches:
            count += int(batch["mask"].sum())
            assert isinstance(batch["image"], jax.Array)
    print(f"{count} images of 0 to 4, in batches of {batch['image'].shape}")

    with fsspec.open(f"{STORE}/notes.txt.gz", "wb", compression="gzip") as file:
        file.write(b"one\ntwo\nthree\n")
    print(list(grain.experimental.TextLinesIterDataset(f"{STORE}/*.txt.gz").map(str.upper)))


if __name__ == "__main__":
    main()
