"""Data sets on disk, made once from what installed packages bring along."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "benchmarks"


def digits() -> Any:
    """A TFDS source of 1,497 real images in an array_record file, which is written if missing."""
    examples = str(ROOT / "examples")
    if examples not in sys.path:
        sys.path.append(examples)
    import tensorflow_datasets as tfds
    from digits.digits_dataset_builder import Builder

    tfds.disable_progress_bar()
    builder = Builder(data_dir=CACHE / "tfds", file_format="array_record")
    builder.download_and_prepare()
    return builder.as_data_source("train")


class Table:
    """Rows of two Parquet files, which are written if missing."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.paths = [str(CACHE / f"rows-{length}-{part}.parquet") for part in range(2)]
        if not all(Path(path).exists() for path in self.paths):
            self._write()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"id": int(index), "value": index / 8, "word": f"word {index % 1000}"}

    def _write(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        CACHE.mkdir(parents=True, exist_ok=True)
        ids = np.arange(self.length)
        for path, part in zip(self.paths, np.array_split(ids, 2), strict=True):
            words = [f"word {i % 1000}" for i in part.tolist()]
            table = pa.table({"id": part, "value": part / 8, "word": words})
            pq.write_table(table, path, row_group_size=8192)
