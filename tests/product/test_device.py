"""The device stage: values, shardings, which leaves stay on the host, and whose memory is used."""

from __future__ import annotations

import collections
import ctypes
import gc
import threading
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.sharding import AbstractMesh, Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

import grain_jax as grain
from grain_jax import prefetch_to_device
from grain_jax._product import leaves, structure
from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from grain_jax._values.memory import is_owned, owned_empty
from grain_jax.experimental import device_put
from tests.waiting import PATIENCE


def mesh(*shape: int, names: str = "data model") -> Mesh:
    return Mesh(np.array(jax.devices()).reshape(shape), tuple(names.split()[: len(shape)]))


def sharded(*axes: Any, shape: tuple[int, ...] = (4,)) -> NamedSharding:
    return NamedSharding(mesh(*shape), P(*axes))


def one(batch: Any, sharding: Any = None, **more: Any) -> Any:
    """The batch that comes out where this one goes in."""
    with prefetch_to_device([batch], sharding, **more) as iterator:
        (result,) = iterator
    return result


def test_case_10_leaves_go_where_they_belong() -> None:
    batches = [
        {"x": np.arange(8, dtype=np.float32) + i, "n": np.float32(i), "name": f"batch {i}"}
        for i in range(5)
    ]
    with prefetch_to_device(batches, sharded("data")) as iterator:
        assert len(iterator) == 5
        for i, batch in enumerate(iterator):
            np.testing.assert_array_equal(batch["x"], np.arange(8) + i)
            assert batch["x"].sharding == sharded("data")
            assert [shard.data.shape for shard in batch["x"].addressable_shards] == [(2,)] * 4
            assert batch["n"] == i
            assert batch["n"].sharding == sharded()
            assert batch["name"] == f"batch {i}"
        assert i == 4


def test_without_a_sharding_axis_0_is_over_all_devices() -> None:
    x = one(np.arange(24.0, dtype=np.float32).reshape(8, 3))
    assert x.sharding.device_set == set(jax.devices())
    np.testing.assert_array_equal(x, np.arange(24.0).reshape(8, 3))
    assert [shard.index[0] for shard in x.addressable_shards] == [
        slice(2 * i, 2 * i + 2, None) for i in range(4)
    ]


@pytest.mark.parametrize("place", [jax.devices()[2], SingleDeviceSharding(jax.devices()[2])])
def test_a_device_takes_the_whole_batch(place: Any) -> None:
    batch = one({"x": np.arange(5, dtype=np.int32), "n": 3}, place)
    assert {leaf.sharding for leaf in batch.values()} == {SingleDeviceSharding(jax.devices()[2])}
    np.testing.assert_array_equal(batch["x"], np.arange(5))
    assert batch["n"] == 3


def test_a_tree_of_shardings_is_a_prefix_of_the_batch() -> None:
    grid = sharded("data", "model", shape=(2, 2))
    table = NamedSharding(grid.mesh, P())
    batch = {
        "inputs": {"tokens": np.arange(32, dtype=np.int32).reshape(4, 8), "length": 8},
        "table": np.arange(3, dtype=np.float32),
        "host": "text",
    }
    placed = one(batch, {"inputs": grid, "table": table, "host": None})
    assert placed["inputs"]["tokens"].sharding == grid
    assert placed["inputs"]["tokens"].addressable_shards[1].data.shape == (2, 4)
    assert placed["inputs"]["length"].sharding == table
    assert placed["table"].sharding == table
    for got, expected in zip(jax.tree.leaves(placed), jax.tree.leaves(batch), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_the_structure_of_the_batch_stays() -> None:
    Pair = collections.namedtuple("Pair", "left right")
    batch = [Pair(np.ones(4, np.float32), None), (np.zeros(4, np.float32), {"a": "b"})]
    placed = one(batch)
    assert jax.tree.structure(placed) == jax.tree.structure(batch)
    assert type(placed[0]) is Pair


@pytest.mark.parametrize(
    "dtype",
    [
        *("bool", "int8", "uint16", "int32", "uint32", "float16", "float32", "complex64"),
        *(ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.int4),
    ],
)
def test_every_dtype_of_jax_arrives_as_itself(dtype: Any) -> None:
    x = np.arange(8).astype(dtype)
    placed = one(x)
    assert placed.dtype == np.dtype(dtype)
    assert np.asarray(placed).tobytes() == x.tobytes()


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("int64", "int32"),
        ("uint64", "uint32"),
        ("float64", "float32"),
        ("complex128", "complex64"),
        (">i2", "int16"),
        (">f4", "float32"),
        (">i8", "int32"),
    ],
)
def test_other_dtypes_arrive_as_jax_casts_them(dtype: str, expected: str) -> None:
    x = np.array([0, 1, 3, 100], dtype)
    placed = one({"x": x, "n": x[3]})
    assert placed["x"].dtype == placed["n"].dtype == np.dtype(expected)
    np.testing.assert_array_equal(placed["x"], x)
    assert placed["n"] == 100


def test_a_float_that_jax_makes_infinite_is_told_by_its_leaf() -> None:
    x = np.array([1.0, -1e39, np.inf, np.nan])
    with pytest.warns(RuntimeWarning, match=r"batch\['x'\] holds numbers .* float32.*x64") as seen:
        placed = one({"x": x, "y": np.array([3e38, np.inf, 0, 1])})
    assert len(seen) == 1
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(placed["x"], jnp.asarray(x))
        assert one(x)[1] == -np.inf  # who says that it may be is not told


def test_with_64_bit_types_on_they_stay() -> None:
    x = np.array([2**40, -(2**50), 0, 1])
    # In older versions of JAX it is in `jax.experimental`.
    module: Any = jax if hasattr(jax, "enable_x64") else jax.experimental
    with module.enable_x64(True):
        placed = one({"x": x, "y": x / 3})
    assert (placed["x"].dtype, placed["y"].dtype) == (np.int64, np.float64)
    np.testing.assert_array_equal(placed["x"], x)
    np.testing.assert_array_equal(placed["y"], x / 3)


@pytest.mark.parametrize(
    ("batch", "place"),
    [
        (
            {"y": {"label": np.array([0, 1, 2**31, 3])}},
            "batch['y']['label'], row 2, holds 2147483648",
        ),
        ({"y": np.array([0, 1, 2, -(2**31) - 1])}, "batch['y'], row 3, holds -2147483649"),
        (
            {"y": np.array([[0, 2**32], [1, 1]] * 2, np.uint64)},
            "batch['y'], row 0, holds 4294967296",
        ),
        ({"y": 2**31}, "batch['y'] holds 2147483648"),
        ({"y": 2**63}, "batch['y'] holds 9223372036854775808"),
        ({"y": 2**64}, "batch['y'] is 18446744073709551616, an integer of more than 64 bits"),
    ],
)
def test_an_integer_that_does_not_fit_is_named(batch: Any, place: str) -> None:
    with pytest.raises(InvalidValueError) as caught:
        one(batch)
    assert place in str(caught.value)
    assert "2**64" in place or "jax_enable_x64" in str(caught.value) or "64 bits" in place


def test_the_ends_of_the_range_fit() -> None:
    x = np.array([-(2**31), 2**31 - 1, 0, 1])
    np.testing.assert_array_equal(one(x), x)
    u = np.array([0, 2**32 - 1, 0, 1], np.uint64)
    np.testing.assert_array_equal(one(u), u)
    assert one(np.zeros((4, 0), np.int64)).shape == (4, 0)


@pytest.mark.parametrize(
    "leaf",
    [
        "text",
        b"bytes",
        np.array(["a", "bc"]),
        np.array([b"a", b"bc"]),
        np.array([None, "x"], object),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, "m8[s]"),
        np.timedelta64(3, "s"),
        np.zeros(2, [("a", "i4")]),
        np.zeros(2, np.longdouble),
        np.str_("x"),
        {1, 2},
    ],
    ids=repr,
)
def test_what_jax_cannot_hold_stays_on_the_host(leaf: Any) -> None:
    placed = one({"x": np.arange(4, dtype=np.int32), "leaf": leaf})
    assert type(placed["leaf"]) is type(leaf)
    np.testing.assert_array_equal(placed["leaf"], leaf)


def test_arrays_of_jax_are_taken_as_they_are() -> None:
    x = jax.numpy.arange(8.0)
    keys = jax.random.split(jax.random.key(0), 8)
    placed = one({"x": x, "keys": keys, "n": x[3]})
    np.testing.assert_array_equal(placed["x"], np.arange(8.0))
    assert len(placed["x"].addressable_shards) == 4
    np.testing.assert_array_equal(jax.random.key_data(placed["keys"]), jax.random.key_data(keys))
    assert placed["n"] == 3


def overwriting(buffer: np.ndarray[Any, Any], batches: int) -> Iterator[Any]:
    for i in range(batches):
        buffer[...] = i
        yield {"x": buffer, "view": buffer[::-1], "frozen": _frozen(buffer)}


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    view = array.view()
    view.flags.writeable = False
    return view


def _aligned(size: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    """64-byte aligned, so that JAX on CPU would take it without a copy."""
    memory = (ctypes.c_uint8 * (size * np.dtype(dtype).itemsize + 64))()
    offset = -ctypes.addressof(memory) % 64
    return np.frombuffer(memory, dtype, size, offset)


@pytest.mark.parametrize("sharding", [None, jax.devices()[0]])
def test_case_9_a_buffer_that_the_source_overwrites(sharding: Any) -> None:
    buffer = _aligned(1 << 14)
    assert buffer.flags.writeable
    with prefetch_to_device(overwriting(buffer, 6), sharding) as iterator:
        kept = list(iterator)
    buffer[...] = -1
    assert [sorted(set(np.asarray(b[k]).tolist())) for b in kept for k in b] == [
        [float(i)] for i in range(6) for _ in range(3)
    ]


def test_arrays_for_the_host_are_copied_from_such_a_buffer_too() -> None:
    buffer = np.array(["", ""], object)

    def source() -> Iterator[Any]:
        for i in range(4):
            buffer[:] = str(i)
            yield {"x": np.arange(4), "text": buffer}

    assert [list(batch["text"]) for batch in prefetch_to_device(source())] == [
        [str(i)] * 2 for i in range(4)
    ]


def placed_addresses(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Fills up with the address of each array before the transfer and of what JAX is given."""
    seen: list[tuple[int, int]] = []

    def noted(array: Any, *args: Any, **more: Any) -> Any:
        ready = leaves.prepare(array, *args, **more)
        seen.append((array.ctypes.data, ready.ctypes.data))
        return ready

    monkeypatch.setattr(structure, "prepare", noted)
    return seen


SOURCE = [np.full(1 << 14, i, np.float32) for i in range(8)]
PAIRS = [np.stack(SOURCE[i : i + 2]) for i in range(0, 8, 2)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.usefixtures("no_process_left")
def test_batches_that_nobody_else_has_are_handed_over_without_a_copy(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = placed_addresses(monkeypatch)
    loader = grain.load(SOURCE, num_epochs=1, batch_size=2, worker_count=workers)
    with prefetch_to_device(loader, jax.devices()[0]) as iterator:
        got = list(iterator)
    assert len(seen) == 4
    assert all(before == after for before, after in seen)
    assert [batch.unsafe_buffer_pointer() for batch in got] == [after for _, after in seen]
    np.testing.assert_array_equal(got, PAIRS)


def test_memory_of_the_library_is_not_used_again_while_jax_has_it() -> None:
    placed = next(
        prefetch_to_device(grain.load(SOURCE, num_epochs=1, batch_size=2), jax.devices()[0])
    )
    gc.collect()
    other = [owned_empty((2, 1 << 14), np.dtype(np.float32)) for _ in range(8)]
    for array in other:
        array[...] = 1
    np.testing.assert_array_equal(placed, PAIRS[0])


KEPT: list[Any] = []


def keep(element: Any) -> Any:
    KEPT.append(element)
    return element


class KeepsBatches:
    """A source that stacks, out of batches that its user has."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return 2 * len(self.batches)

    def __getitem__(self, index: int) -> Any:
        return self.batches[index // 2][index % 2]

    def __getbatch__(self, indices: np.ndarray[Any, Any]) -> Any:
        return self.batches[indices[0] // 2]


def test_memory_of_the_library_that_a_user_can_write_is_copied() -> None:
    loader = grain.load(SOURCE, num_epochs=1, batch_size=2)
    host = list(loader)
    assert all(is_owned(batch) for batch in host)
    KEPT.clear()

    def generator() -> Iterator[Any]:
        last = None
        for batch in loader:
            if last is not None:
                last[...] = -7
            last = batch
            yield batch

    batches = grain.MapDataset.source(SOURCE).batch(2)
    sources: dict[str, Any] = {
        "a list": host,
        "a generator": generator(),
        "a map that keeps": batches.to_iter_dataset().map(keep),
        "a random-access map that keeps": batches.map(keep),
        "a source of batches": grain.MapDataset.source(host),
        "a source that stacks": grain.load(KeepsBatches(host), num_epochs=1, batch_size=2),
    }
    for name, source in sources.items():
        for stage in (prefetch_to_device, device_put):
            if name == "a generator" and stage is device_put:
                continue
            got = list(stage(source, jax.devices()[0]))
            assert not KEPT or is_owned(KEPT[0])
            for batch in host + KEPT:
                batch *= 0
            np.testing.assert_array_equal(got, PAIRS, err_msg=f"{name}, {stage.__name__}")
            for batch, before in zip(host, PAIRS, strict=True):
                batch[...] = before
            KEPT.clear()


@pytest.mark.parametrize("stage", [prefetch_to_device, device_put])
@pytest.mark.usefixtures("no_process_left")
def test_what_workers_made_and_a_user_has_is_copied(stage: Any) -> None:
    host = list(grain.load(SOURCE, num_epochs=1, batch_size=2, worker_count=1))
    got = list(stage(host, jax.devices()[0]))
    for batch in host:
        batch *= 0
    np.testing.assert_array_equal(got, PAIRS)


def test_memory_that_nobody_can_write_is_handed_over_without_a_copy() -> None:
    raw = np.arange(1 << 14, dtype=np.float32).tobytes()
    for x in (_frozen(np.frombuffer(raw, np.float32)), np.frombuffer(raw, np.float32)):
        np.testing.assert_array_equal(one(x, jax.devices()[0]), np.arange(1 << 14))


def test_a_masked_array_is_refused() -> None:
    with pytest.raises(InvalidTypeError, match=r"batch\['x'\] is a masked array.*x.filled"):
        one({"x": np.ma.masked_array([1.0, 2.0], [False, True])})


def test_batches_of_changing_structure_arrive() -> None:
    batches = [{"x": np.zeros(4), "names": ["a"] * i} for i in range(1, 4)]
    got = list(prefetch_to_device(batches))
    assert [batch["names"] for batch in got] == [["a"], ["a", "a"], ["a", "a", "a"]]


def test_it_runs_ahead_of_its_user_by_the_buffer_size() -> None:
    reads: list[int] = []
    enough = threading.Event()

    def source() -> Iterator[Any]:
        for i in range(50):
            reads.append(i)
            if len(reads) == 4:
                enough.set()
            yield np.full(4, i)

    with prefetch_to_device(source(), buffer_size=3) as iterator:
        assert not reads
        next(iterator)
        assert enough.wait(PATIENCE)
        assert len(reads) <= 5


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"buffer_size": 0}, InvalidValueError, "buffer_size=0 is below 1"),
        ({"buffer_size": -2}, InvalidValueError, "buffer_size=-2 is below 1"),
        ({"buffer_size": 1.5}, InvalidTypeError, "buffer_size=1.5 is no integer"),
        ({"buffer_size": True}, InvalidTypeError, "buffer_size=True is no integer"),
        ({"remainder": "wrap"}, InvalidValueError, "remainder='wrap'.*'error', 'drop' or 'pad'"),
        ({"mask_key": 3}, InvalidTypeError, "mask_key=3 is no string"),
        ({"sharding": P("data")}, InvalidTypeError, r"NamedSharding\(mesh, P"),
        ({"sharding": "cpu"}, InvalidTypeError, "sharding is 'cpu', a str"),
        ({"sharding": {"x": 5}}, InvalidTypeError, r"sharding\['x'\] is 5, a int"),
        ({"sharding": {}}, InvalidValueError, "tree of shardings is empty"),
    ],
)
def test_bad_arguments_are_refused_at_once(
    arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prefetch_to_device([np.zeros(4)], **arguments)


def test_an_abstract_mesh_is_refused() -> None:
    # Older versions of JAX want one tuple of pairs.
    try:
        mesh = AbstractMesh((4,), ("data",))
    except TypeError:
        mesh = AbstractMesh((("data", 4),))
    abstract = NamedSharding(mesh, P("data"))
    with pytest.raises(InvalidTypeError, match="abstract mesh, which has no devices"):
        prefetch_to_device([np.zeros(4)], abstract)


@pytest.mark.parametrize("source", [5, {"x": np.zeros(4)}, "text"])
def test_what_is_no_source_is_refused(source: Any) -> None:
    with pytest.raises(InvalidTypeError, match="is no source of elements"):
        prefetch_to_device(source)


@pytest.mark.parametrize(
    ("batch", "sharding", "message"),
    [
        (
            {"x": np.zeros((6, 3))},
            lambda: sharded("data"),
            r"batch\['x'\] has shape \(6, 3\), and axis 0 is cut into 4 parts by the mesh axes"
            r" \('data',\) of the mesh {'data': 4}: 6 is not a multiple of 4. Use a batch size per"
            r" process of 4 or 8, or a mesh with fewer devices along them \(2 would work\)",
        ),
        (
            {"x": np.zeros((2, 3))},
            lambda: sharded(("data", "model"), shape=(2, 2)),
            r"\(2, 3\), and axis 0 is cut into 4 parts by the mesh axes \('data', 'model'\)",
        ),
        (
            {"x": np.zeros((4, 3))},
            lambda: sharded("data", "model", shape=(2, 2)),
            r"axis 1 is cut into 2 parts.*3 is not a multiple of 2. Use an axis 1 of 2 or 4",
        ),
        (
            {"ok": np.zeros((4, 2)), "x": np.zeros(4)},
            lambda: sharded("data", "model", shape=(2, 2)),
            r"batch\['x'\] has rank 1.*\('data', 'model'\).* is for rank 2 or more. Give a tree of"
            r" shardings, with a PartitionSpec of at most 1 entries for this leaf",
        ),
        (
            {"x": np.zeros(4), "y": np.zeros(3)},
            lambda: sharded("data"),
            r"batch\['x'\] has 4 rows \(shape \(4,\)\) and batch\['y'\] has 3",
        ),
        ({"x": np.zeros(4)}, lambda: {"y": sharded("data")}, "tree of shardings does not fit"),
        ({"x": np.zeros(4)}, lambda: [sharded("data")], "tree of shardings does not fit"),
    ],
)
def test_a_batch_that_does_not_fit_the_mesh_is_named(
    batch: Any, sharding: Any, message: str
) -> None:
    with pytest.raises(InvalidValueError, match=message):
        one(batch, sharding())


def test_device_put_gives_a_fresh_iterator_each_time() -> None:
    ragged = [{"tokens": np.arange(i, dtype=np.int32), "n": i} for i in (3, 5, 2)]
    ds = device_put(ragged, jax.devices()[1])
    assert len(ds) == 3
    for _ in range(2):
        with iter(ds) as iterator:
            got = list(iterator)
        assert [batch["n"].devices() for batch in got] == [{jax.devices()[1]}] * 3
        for batch, expected in zip(got, ragged, strict=True):
            np.testing.assert_array_equal(batch["tokens"], expected["tokens"])


@pytest.mark.parametrize("sizes", [(0, 0), (1, 1), (4, 2)])
def test_device_put_of_a_buffer_that_the_source_overwrites(sizes: tuple[int, int]) -> None:
    class Source:
        def __iter__(self) -> Iterator[Any]:
            return overwriting(_aligned(1 << 12), 6)

    ds = device_put(
        Source(), sharded("data"), cpu_buffer_size=sizes[0], device_buffer_size=sizes[1]
    )
    for _ in range(2):
        kept = list(ds)
        assert [set(np.asarray(batch["x"]).tolist()) for batch in kept] == [{i} for i in range(6)]


def test_device_put_refuses_what_cannot_work() -> None:
    with pytest.raises(InvalidValueError, match="cpu_buffer_size=-1 is below 0"):
        device_put([], jax.devices()[0], cpu_buffer_size=-1)
    with pytest.raises(InvalidTypeError, match="device_buffer_size='2' is no integer"):
        device_put([], jax.devices()[0], device_buffer_size="2")  # type: ignore[arg-type]
