"""Arrays on disk stay there: mapped files, HDF5, zarr, and others that read rows on demand."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.cases import scripts

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")

pytestmark = pytest.mark.usefixtures("no_process_left")

MODES = ["fork_imported", "fork_first", "fresh"]


def batches(source: Any, workers: int, *steps: Any, **more: Any) -> list[Any]:
    options = {"num_epochs": 2, "batch_size": 4, "shuffle": True, "seed": 3, **more}
    with grain.load(source, worker_count=workers, transformations=steps, **options) as loader:
        return list(loader)


class Pass(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return element


def check(source: Any, reference: Any) -> None:
    """Compares with the same in memory: batched, single, behind a map, with and without workers."""
    for steps, more in (((), {}), ((Pass(),), {}), ((), {"batch_size": None})):
        right = batches(reference, 0, *steps, **more)
        for workers in (0, 2):
            got = batches(source, workers, *steps, **more)
            assert repr(got) == repr(right), (steps, more, workers)


# --- mapped files ------------------------------------------------------------------------------


def mapped(path: Path, data: np.ndarray[Any, Any], mode: Any = "r") -> Any:
    np.save(path, data)
    return np.load(path, mmap_mode=mode)


DATA = np.arange(12 * 2048.0).reshape(12, 2048)


@pytest.mark.parametrize("mode", ["r", "r+", "c"])
@pytest.mark.parametrize(
    "view",
    [
        lambda m: m,
        lambda m: m[2:11],
        lambda m: m[::-1],
        lambda m: np.asarray(m)[1::3, ::2],
        lambda m: m.T[:9],
        lambda m: m.view("i8"),
        lambda m: {"x": m, "y": m[:, 5:], "z": np.arange(12)},
    ],
    ids=["whole", "rows", "backwards", "strided", "transposed", "ints", "tree"],
)
def test_mapped_arrays_and_their_views_read_as_in_memory(
    tmp_path: Path, mode: str, view: Any
) -> None:
    check(view(mapped(tmp_path / "x.npy", DATA, mode)), view(DATA))


def test_edits_of_a_private_mapping_reach_workers(tmp_path: Path) -> None:
    source = mapped(tmp_path / "x.npy", DATA, "c")
    source[3] = -1
    edited = DATA.copy()
    edited[3] = -1
    check(source, edited)


def test_edits_of_a_shared_mapping_reach_workers(tmp_path: Path) -> None:
    source = mapped(tmp_path / "x.npy", DATA, "r+")
    source[3] = -1  # without a flush
    edited = DATA.copy()
    edited[3] = -1
    check(source, edited)


def test_a_mapped_file_that_is_replaced_renamed_or_deleted(tmp_path: Path) -> None:
    source = mapped(tmp_path / "x.npy", DATA)
    os.rename(tmp_path / "x.npy", tmp_path / "y.npy")
    check(source, DATA)
    np.save(tmp_path / "new.npy", -DATA)
    os.rename(tmp_path / "new.npy", tmp_path / "y.npy")
    check(source, DATA)
    os.unlink(tmp_path / "y.npy")
    check(source, DATA)


def test_a_mapped_file_that_goes_while_workers_start_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    source = mapped(path, DATA)

    def replace(index: int, count: int) -> None:
        np.save(tmp_path / "new.npy", -DATA)
        os.rename(tmp_path / "new.npy", path)

    with (
        grain.load(source, batch_size=4, worker_count=1, worker_init_fn=replace) as loader,
        pytest.raises(ValueError, match=r"x\.npy is another file than the one"),
    ):
        next(iter(loader))


class Windows:
    """Windows of tokens from a mapped file, as language models read them."""

    def __init__(self, tokens: Any) -> None:
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.tokens) // 128

    def __getitem__(self, index: int) -> Any:
        return np.asarray(self.tokens[128 * index : 128 * index + 128], np.int64)


def test_a_mapped_array_inside_a_source_or_an_operation(tmp_path: Path) -> None:
    tokens = np.arange(128 * 1024, dtype=np.uint16)
    source = mapped(tmp_path / "tokens.npy", tokens)
    check(Windows(source), Windows(tokens))

    class Look(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return source[element], type(source).__name__, source.flags.writeable

    for workers in (0, 2):
        got = batches(range(4), workers, Look(), batch_size=None, shuffle=False, num_epochs=1)
        assert got == [(i, "memmap", False) for i in range(4)]


NO_COPY = """
import os
import numpy as np
import grain_jax as grain

SIZE = 512 << 20
with open("x", "wb") as file:
    file.truncate(SIZE)

source = np.memmap("x", np.uint8, "r", shape=(SIZE >> 20, 1 << 20))
for given in (source, source[1:], {"a": source, "b": np.asarray(source)[:, ::2]}):
    with grain.load(given, num_epochs=1, batch_size=1, worker_count=2) as loader:
        for epoch in range(2):
            iterator = iter(loader)
            iterator.start_prefetch()
            # A copy of the pipeline would hold all of it.
            files = [f"/proc/self/fd/{n}" for n in os.listdir("/proc/self/fd")]
            sizes = [os.stat(f).st_blocks * 512 for f in files if os.path.exists(f)
                     and "grain_jax_pipeline" in os.readlink(f)]
            print(len(sizes), max(sizes) < 1 << 20)
            next(iterator)
            iterator.close()
"""


def test_a_mapped_file_is_not_copied(tmp_path: Path) -> None:
    assert scripts.output(tmp_path, NO_COPY) == ["1 True"] * 6


# --- arrays that are read on demand ------------------------------------------------------------


@pytest.fixture
def hdf5(tmp_path: Path) -> Any:
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["x"] = DATA[:, :7]
        file["group/y"] = np.arange(12, dtype=">i4")
        file.create_dataset("packed", data=DATA[:, :6], chunks=(5, 3), compression="gzip")
        file["text"] = [f"text {i}" for i in range(12)]
        ragged = file.create_dataset("ragged", (12,), h5py.vlen_dtype(np.int32))
        for row in range(12):
            ragged[row] = np.arange(row)
    with h5py.File(path, "r") as file:
        yield file


def test_hdf5_reads_as_in_memory(hdf5: Any) -> None:
    for name in ("x", "packed", "group/y"):
        check(hdf5[name], hdf5[name][:])
    check({"x": hdf5["x"], "y": hdf5["group/y"]}, {"x": hdf5["x"][:], "y": hdf5["group/y"][:]})
    check({"x": hdf5["x"], "z": np.arange(12)}, {"x": hdf5["x"][:], "z": np.arange(12)})
    check({"t": hdf5["text"]}, {"t": np.array([f"text {i}".encode() for i in range(12)], object)})
    check({"t": hdf5["text"].asstr()}, {"t": np.array([f"text {i}" for i in range(12)], object)})
    for workers in (0, 2):
        got = batches(hdf5["ragged"], workers, batch_size=None, shuffle=False)
        assert [row.tolist() for row in got] == [list(range(i)) for i in range(12)] * 2


def test_duplicates_and_any_order(hdf5: Any) -> None:
    class Repeats(grain.samplers.Sampler):
        def __len__(self) -> int:
            return 6

        def __getitem__(self, index: int) -> Any:
            return grain.RecordMetadata(index=index, record_key=[7, 2, 7, 11, 0, 2][index])

    for workers in (0, 2):
        with grain.DataLoader(
            data_source=hdf5["x"],
            sampler=Repeats(),
            operations=[grain.transforms.Batch(3)],
            worker_count=workers,
        ) as loader:
            got = np.concatenate(list(loader))
        assert np.array_equal(got, DATA[[7, 2, 7, 11, 0, 2], :7])


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_that_are_read_on_demand_are_the_operations_own(hdf5: Any, workers: int) -> None:
    class Add(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            element["x"] += 1
            return element

    got = batches({"x": hdf5["x"]}, workers, Add(), shuffle=False)
    assert np.array_equal(np.concatenate([b["x"] for b in got]), np.tile(DATA[:, :7] + 1, (2, 1)))


def test_hdf5_inside_a_source(hdf5: Any) -> None:
    class Rows:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            return {"x": self.file["x"][index], "t": self.file["text"][index]}

    check(
        Rows(hdf5), [{"x": x, "t": t} for x, t in zip(hdf5["x"][:], hdf5["text"][:], strict=True)]
    )


def test_hdf5_that_workers_cannot_open_says_what_to_write(tmp_path: Path, hdf5: Any) -> None:
    with h5py.File(tmp_path / "w.h5", "w") as file:
        file["x"] = DATA
        assert len(batches({"x": file["x"]}, 0)) == 6
        with pytest.raises(TypeError, match=r'open for writing.*write h5py.File\(path, "r"\)'):
            batches({"x": file["x"]}, 1)
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        file["x"] = DATA
        assert len(batches(file["x"], 0)) == 6
        with pytest.raises(TypeError, match=r"driver 'core'.*load it into memory"):
            batches(file["x"], 1)
    data = hdf5["x"]
    hdf5.close()
    with pytest.raises(TypeError, match="file is closed"):
        batches(range(3), 1, _Reads(data))


class _Reads(grain.transforms.Map):
    def __init__(self, data: Any) -> None:
        self.data = data

    def map(self, element: Any) -> Any:
        return self.data[element]


def test_a_replaced_hdf5_file_is_named(tmp_path: Path, hdf5: Any) -> None:
    with h5py.File(tmp_path / "new.h5", "w") as file:
        file["x"] = -DATA[:, :7]
    os.rename(tmp_path / "new.h5", tmp_path / "x.h5")
    with pytest.raises(TypeError, match=r"x\.h5 .*cannot be opened again"):
        batches(hdf5["x"], 1)


def test_zarr_reads_as_in_memory(tmp_path: Path) -> None:
    x = zarr.create_array(tmp_path / "x.zarr", data=DATA[:, :7], chunks=(5, 3))
    y = zarr.create_array(tmp_path / "y.zarr", data=np.arange(12), chunks=(4,))
    check(zarr.open(tmp_path / "x.zarr", mode="r"), DATA[:, :7])
    check(y, np.arange(12))
    check({"x": x, "y": y, "z": np.arange(12)}, {"x": DATA[:, :7], "y": np.arange(12), "z": y[:]})
    check(zarr.array(DATA[:, :7]), DATA[:, :7])


class Counting:
    """An array of some other library: a shape, a dtype, rows by index; it counts them."""

    def __init__(self, data: Any) -> None:
        self.data, self.asked = data, 0
        self.shape, self.dtype = data.shape, data.dtype

    def __getitem__(self, index: Any) -> Any:
        rows = self.data[index]
        self.asked += len(rows)
        return rows


def test_nothing_is_read_before_it_is_asked_for() -> None:
    lazy = Counting(DATA)
    with grain.load({"x": lazy}, num_epochs=1, batch_size=4) as loader:
        iterator = iter(loader)
        assert lazy.asked == 0
        next(iterator)
        assert lazy.asked == 4
    dataset = grain.MapDataset.source({"x": lazy})
    assert np.array_equal(dataset[5]["x"], DATA[5])
    assert lazy.asked == 5
    check({"x": Counting(DATA)}, {"x": DATA})


def test_an_array_that_does_not_index_as_one_is_refused() -> None:
    class Odd(Counting):
        def __getitem__(self, index: Any) -> Any:
            return self.data[0]

    with pytest.raises(TypeError, match="was asked for 4 rows and returned an array of shape"):
        batches({"x": Odd(DATA)}, 0)


def test_arrays_of_other_libraries_in_memory_are_arrays() -> None:
    import jax
    import jax.numpy as jnp

    check(jnp.arange(24).reshape(12, 2), np.arange(24, dtype=np.int32).reshape(12, 2))
    with pytest.raises(TypeError, match=r"\['k'\].*NumPy cannot make an array"):
        grain.load({"k": jax.random.split(jax.random.key(0), 12)})
    torch = pytest.importorskip("torch")
    check(torch.arange(24).reshape(12, 2), np.arange(24).reshape(12, 2))


@pytest.mark.parametrize("mode", MODES)
def test_files_in_every_start_mode(tmp_path: Path, mode: str) -> None:
    text = """
    import os
    import h5py, zarr
    import numpy as np
    import grain_jax as grain

    data = np.arange(64.0 * 2048).reshape(64, 2048)
    np.save("x.npy", data)
    with h5py.File("x.h5", "w") as file:
        file["x"] = data
    zarr.create_array("x.zarr", data=data, chunks=(8, 512))
    mapped, lazy = np.load("x.npy", mmap_mode="r"), zarr.open("x.zarr", mode="r")
    with h5py.File("x.h5") as file:
        for memory in ("", "file"):
            os.environ["GRAIN_JAX_ENGINE_MEMORY"] = memory
            source = {"m": mapped, "h": file["x"], "z": lazy}
            with grain.load(source, num_epochs=1, shuffle=True, seed=1, batch_size=8,
                            worker_count=2) as loader:
                got = list(loader)
            order = np.concatenate([b["m"][:, 0] for b in got]) / 2048
            same = all(np.array_equal(b["m"], b[k]) for b in got for k in "hz")
            print(same, sorted(order) == list(range(64)))
    """
    lines = scripts.output(tmp_path, textwrap.dedent(text), GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == ["True True"] * 2
