"""Files of records as scripts read them: any start of workers, resumed, on the device."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from tests.cases import scripts
from tests.datasets import record_files

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("no_process_left")]

MODES = ["fork_imported", "fork_first", "fresh"]

SCRIPT = """
    import json
    import grain_jax as grain
    from grain_jax.experimental import ParquetIterDataset, TextLinesIterDataset, TFRecordIterDataset

    streams = {
        "rows": ParquetIterDataset("*.parquet", filters=[("n", "!=", 5)]).map(lambda row: row["n"]),
        "records": TFRecordIterDataset("a.tfrecord", features="all").map(lambda e: e["n"][0]),
        "lines": TextLinesIterDataset("*.txt").map(int),
    }
    for name, stream in streams.items():
        stream = stream.seed(3).random_map(lambda n, rng: int(n) + 1000 * int(rng.integers(9)))
        whole = [batch.tolist() for batch in stream.batch(7)]
        print(name, sorted(n % 1000 for batch in whole for n in batch))
        workers = grain.MultiprocessingOptions(num_workers=2)
        with iter(stream.batch(7).mp_prefetch(workers)) as iterator:
            begun = [next(iterator).tolist() for _ in range(3)]
            state = json.dumps(iterator.get_state())
        with iter(stream.batch(7).mp_prefetch(workers)) as iterator:
            iterator.set_state(json.loads(state))
            rest = [batch.tolist() for batch in iterator]
        assert begun + rest == whole, (begun + rest, whole)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Numbers from 0 to 59, in files of every kind."""
    for part in range(3):
        numbers = range(20 * part, 20 * part + 20)
        pq.write_table(
            pa.table({"n": numbers}), str(tmp_path / f"{part}.parquet"), row_group_size=6
        )
        (tmp_path / f"{part}.txt").write_text("".join(f"{n}\n" for n in numbers))
    examples = [record_files.example({"n": [n]}) for n in range(60)]
    record_files.write(tmp_path / "a.tfrecord", examples)
    return tmp_path


RIGHT = [
    f"rows {[n for n in range(60) if n != 5]}",
    f"records {list(range(60))}",
    f"lines {list(range(60))}",
]


@pytest.mark.every_mode
@pytest.mark.parametrize("memory", ["", "file"])
@pytest.mark.parametrize("mode", MODES)
def test_files_in_every_start_mode(folder: Path, mode: str, memory: str) -> None:
    found = scripts.output(
        folder,
        textwrap.dedent(SCRIPT),
        timeout=200,
        GRAIN_JAX_ENGINE_MODE=mode,
        GRAIN_JAX_ENGINE_MEMORY=memory,
    )
    assert found == RIGHT


def test_files_behind_the_device_stage(folder: Path) -> None:
    text = """
    import numpy as np
    import jax
    import grain_jax as grain
    from grain_jax.experimental import ParquetIterDataset

    rows = ParquetIterDataset("*.parquet", columns=["n"]).batch(6, drop_remainder=True)
    plain = [batch["n"].tolist() for batch in rows]
    for workers in (0, 2):
        ahead = rows.mp_prefetch(grain.MultiprocessingOptions(num_workers=workers))
        device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        with grain.prefetch_to_device(iter(ahead), device) as batches:
            found = list(batches)
        print(all(isinstance(batch["n"], jax.Array) for batch in found),
              [batch["n"].tolist() for batch in found] == plain, len(plain))
    """
    assert scripts.output(folder, text) == ["True True 10"] * 2


@pytest.mark.parametrize(
    ("package", "code", "says"),
    [
        ("pyarrow", "ParquetIterDataset('0.parquet')", 'pip install "grain-jax[parquet]"'),
        ("google_crc32c", "list(TFRecordIterDataset('a.tfrecord'))[59]", "b'"),
        ("fsspec", "TextLinesIterDataset('nofs://x')", 'pip install "fsspec[nofs]"'),
        ("fsspec", "list(TextLinesIterDataset('0.txt'))[3]", "3"),
    ],
)
def test_a_package_that_is_not_installed(folder: Path, package: str, code: str, says: str) -> None:
    text = f"""
    import sys
    sys.modules[{package!r}] = None
    from grain_jax.experimental import ParquetIterDataset, TextLinesIterDataset, TFRecordIterDataset
    try:
        print({code})
    except ImportError as error:
        print(error)
    """
    (line,) = scripts.output(folder, text)
    assert says in line


def test_nothing_of_them_is_imported_before_a_file_is_read(folder: Path) -> None:
    text = """
    import sys
    import grain_jax as grain
    from grain_jax.experimental import ParquetIterDataset, TextLinesIterDataset, TFRecordIterDataset
    list(TextLinesIterDataset("0.txt"))
    list(TFRecordIterDataset("a.tfrecord"))
    print([name for name in ("jax", "pyarrow", "fsspec", "etils") if name in sys.modules])
    """
    assert scripts.output(folder, text) == ["[]"]
