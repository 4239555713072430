"""Values arrive as they are: what becomes of each kind of leaf, from a record to a `jax.Array`.

The right values come from NumPy: `np.stack` of the leaves, and JAX's 32 bits behind the stage.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import grain_jax as grain
from grain_jax._values.errors import InvalidTypeError, InvalidValueError
from tests.cases.unlike import Twice, Unit
from tests.property.registered import Sample, Sound

pytestmark = pytest.mark.timeout(300)

N = 4
WORKERS = pytest.mark.parametrize("workers", [0, 2])


class Kind(NamedTuple):
    """Four leaves, the batch they make, and whether JAX can hold it."""

    leaves: list[Any]
    batch: Any
    placed: bool = True
    column: Any = None


def stacked(leaves: list[Any], placed: bool = True) -> Kind:
    """A kind of which NumPy says the batch."""
    batch = np.stack([np.asarray(leaf) for leaf in leaves])
    return Kind(leaves, batch, placed)


def rows(array: Any, placed: bool = True) -> Kind:
    """The rows of an array, which is a column of a source, too."""
    kind = stacked(list(array), placed)
    return kind._replace(column=array)


def text(leaves: list[Any], plain: list[Any]) -> Kind:
    batch = np.empty(N, object)
    batch[:] = plain
    return Kind(leaves, batch, placed=False)


def ml_types() -> dict[str, Any]:
    """The number types of ml_dtypes."""
    found = vars(ml_dtypes).items()
    return {n: t for n, t in found if isinstance(t, type) and issubclass(t, np.generic)}


def has_arrays(kind: Any) -> bool:
    """Whether this release of JAX has arrays of a number type."""
    try:
        jnp.asarray(np.zeros(1, kind))
    except Exception:  # of several classes, by release
        return False
    return True


ON_THE_HOST = {name for name, kind in ml_types().items() if not has_arrays(kind)}


def kinds() -> dict[str, Kind]:
    big = np.arange(N * 3).reshape(N, 3)
    found = {
        "int": stacked([3, -1, 2**31 - 1, -(2**31)]),
        "float": stacked([0.5, -1.25, 3.0, 0.0]),
        "bool": stacked([True, False, True, True]),
        "complex": stacked([1j, 2.0 + 1j, 0j, -1j]),
        "bool with int": stacked([True, 2, False, -1]),
        "int with float": stacked([3, 2.5, -1, 2**24]),
        "int8 with uint8": stacked([np.int8(-1), np.uint8(255), np.int8(3), np.uint8(0)]),
        "rows of int8 and uint8": stacked([np.full(3, -1, np.int8), np.full(3, 255, np.uint8)] * 2),
        "int with np.int64": stacked([3, np.int64(4), 5, np.int64(6)]),
        "float16 with float32": stacked([np.float16(0.1), np.float32(0.1)] * 2),
        "uint64 with int64": Kind(
            [np.uint64(7), np.int64(1), 2, True], np.array([7, 1, 2, 1], np.uint64)
        ),
        "negative with uint64": Kind([np.uint64(7), -1, 2, 3], np.array([7, -1, 2, 3])),
        "0-d": stacked([np.array(i) for i in range(N)]),
        "0-d text": stacked([np.array(t) for t in ("a", "bc", "", "d")], placed=False),
        "str": text(["a", "long", "", "b\0"], ["a", "long", "", "b\0"]),
        "bytes": text([b"a", b"long", b"", b"b\0"], [b"a", b"long", b"", b"b\0"]),
        "np.str_": text([np.str_("a\0"), np.str_("b"), "c", np.str_("")], ["a\0", "b", "c", ""]),
        "np.bytes_": text(
            [np.bytes_(b"ab\0"), np.bytes_(b"\0"), b"c", np.bytes_(b"")],
            [b"ab\0", b"\0", b"c", b""],
        ),
        "rows of text": rows(np.array([["a", "bc"]] * N), placed=False),
        "rows of bytes": rows(np.array([[b"a", b"bc"]] * N), placed=False),
        "datetime64": rows(np.arange(N).astype("M8[s]"), placed=False),
        "rows of datetime64": rows(big.astype("M8[ms]"), placed=False),
        "timedelta64": rows(np.arange(N).astype("m8[s]"), placed=False),
        "rows of timedelta64": rows(big.astype("m8[ns]"), placed=False),
        "structured": rows(np.array([(i, i / 2) for i in range(N)], "i4,f8"), placed=False),
        "rows of structured": rows(np.zeros((N, 2), [("a", ">i4"), ("b", "S3")]), placed=False),
        "objects": stacked([np.array([i, "x", None], object) for i in range(N)], placed=False),
        "integers of many bits": Kind(
            [2**70, 1, -5, 2**64], np.array([2**70, 1, -5, 2**64], object), placed=False
        ),
        "longdouble": rows(np.arange(N, dtype=np.longdouble) / 3, placed=False),
        "empty": rows(np.zeros((N, 0), np.float32)),
        "empty matrix": rows(np.zeros((N, 0, 3), np.int16)),
        "big endian": rows(big.astype(">i4")),
        "big endian floats": rows(big.astype(">f8")),
        "big endian scalars": rows(np.arange(N, dtype=">u2")),
        "Fortran": stacked([np.asfortranarray(big + i) for i in range(N)]),
        "strided": rows(np.arange(N * 12).reshape(N, 12)[:, ::3]),
        "backwards": rows(np.arange(N * 12).reshape(N, 12)[::-1, ::-2]),
        "one value everywhere": rows(np.broadcast_to(np.float32(3), (N, 5))),
        "large": rows(np.arange(N * 3000, dtype=np.int32).reshape(N, 3000)),
        "raw keys": rows(np.arange(2 * N, dtype=np.uint32).reshape(N, 2)),
        "raw keys of JAX": stacked([jax.random.PRNGKey(i) for i in range(N)]),
        "arrays of JAX": stacked([jax.numpy.full(3, i, jax.numpy.bfloat16) for i in range(N)]),
        "scalars of JAX": stacked([jax.numpy.float32(i) for i in range(N)]),
        "None": Kind([None] * N, None),
        "empty dict": Kind([{}] * N, {}),
        "empty list": Kind([[]] * N, []),
        "empty tuple": Kind([()] * N, ()),
    }
    for code in "?bBhHiIlLqQefdFD":
        kind = np.dtype(code)
        found[f"np.{kind.name} ({code})"] = stacked([kind.type(i) for i in range(N)])
        found[f"rows of {kind.name} ({code})"] = rows(big.astype(kind))
    for name, scalar in ml_types().items():
        values = (np.arange(N * 3) % 2).reshape(N, 3).astype(scalar)
        placed = name not in ON_THE_HOST
        found[f"rows of {name}"] = rows(values, placed)
        found[f"scalars of {name}"] = stacked([values[i, 0] for i in range(N)], placed)
    return found


KINDS = kinds()


def same(got: Any, right: Any) -> bool:
    """Of one type, dtype, shape and content, bit for bit."""
    if not isinstance(right, np.ndarray | np.generic):
        return type(got) is type(right) and got == right
    if got.dtype != right.dtype or got.shape != right.shape:
        return False
    if right.dtype.kind in "OMmSUV" and right.dtype.isbuiltin != 2:
        return repr(got.tolist()) == repr(right.tolist())
    if right.dtype.char in "gG":  # whose padding has no meaning
        return bool((got == right).all())
    return np.ascontiguousarray(got).tobytes() == np.ascontiguousarray(right).tobytes()


def assert_batch(batch: dict[str, Any], names: Any) -> None:
    wrong = [name for name in names if not same(batch[name], KINDS[name].batch)]
    assert not wrong, {name: (batch[name], KINDS[name].batch) for name in wrong}


NARROW = {"int64": "int32", "uint64": "uint32", "float64": "float32", "complex128": "complex64"}


def on_device(kind: Kind) -> Any:
    """What JAX without 64-bit types makes of a batch."""
    if not kind.placed or not isinstance(kind.batch, np.ndarray):
        return kind.batch
    dtype = kind.batch.dtype.newbyteorder("=")
    return kind.batch.astype(NARROW.get(dtype.name, dtype))


def assert_placed(batch: dict[str, Any], names: Any) -> None:
    for name in names:
        kind = KINDS[name]
        is_array = kind.placed and isinstance(kind.batch, np.ndarray)
        assert isinstance(batch[name], jax.Array) == is_array, name
        got = np.asarray(batch[name]) if is_array else batch[name]
        assert same(got, on_device(kind)), (name, got, on_device(kind))


LOADERS: list[grain.DataLoader] = []


@pytest.fixture(autouse=True)
def closed_loaders(no_process_left: None) -> Iterator[None]:
    yield
    while LOADERS:
        LOADERS.pop().close()


def load(source: Any, workers: int, batch_size: int | None = N) -> Any:
    LOADERS.append(grain.load(source, num_epochs=1, batch_size=batch_size, worker_count=workers))
    return LOADERS[-1]


RECORDS = [{name: kind.leaves[i] for name, kind in KINDS.items()} for i in range(N)]
COLUMNS = {name: kind.column for name, kind in KINDS.items() if kind.column is not None}


@WORKERS
def test_each_kind_of_leaf_in_a_batch(workers: int) -> None:
    (batch,) = load(RECORDS, workers)
    assert_batch(batch, KINDS)


@WORKERS
def test_each_kind_of_leaf_behind_the_device_stage(workers: int) -> None:
    with grain.prefetch_to_device(load(RECORDS, workers), jax.devices()[0]) as batches:
        (batch,) = batches
    assert_placed(batch, KINDS)


@WORKERS
def test_each_kind_of_leaf_padded(workers: int) -> None:
    names = [name for name, kind in KINDS.items() if isinstance(kind.batch, np.ndarray)]
    records = [{name: record[name] for name in names} for record in RECORDS]
    loader = load(records + records[:2], workers)
    with grain.prefetch_to_device(loader, jax.devices()[0], remainder="pad") as batches:
        whole, short = batches
    assert_placed(whole, names)
    for name in names:
        # The types of a column can be others where only the first two rows are there.
        got, right = np.asarray(short[name]), on_device(stacked_again(name))
        assert same(got[:2], right), name
        fill = got[2:].ravel().tolist() if got.dtype == object else got[2:].tobytes()
        assert not any(fill), name
    assert short["mask"].tolist() == [True, True, False, False]


def stacked_again(name: str) -> Kind:
    kind = KINDS[name]
    few = kind.leaves[:2]
    if isinstance(few[0], str | bytes):
        return kind._replace(batch=kind.batch[:2])
    if name in ("uint64 with int64", "negative with uint64", "integers of many bits"):
        return kind._replace(batch=kind.batch[:2])
    return stacked(few, kind.placed)


@WORKERS
def test_each_kind_of_leaf_in_single_elements(workers: int) -> None:
    elements = list(load(RECORDS, workers, batch_size=None))
    assert len(elements) == N
    for element, record in zip(elements, RECORDS, strict=True):
        for name, leaf in record.items():
            got = element[name]
            is_number = isinstance(leaf, np.number)  # `longlong` may arrive as `int64`
            assert is_number or type(got) is type(leaf) or isinstance(leaf, jax.Array), name
            if isinstance(leaf, jax.Array):
                got, leaf = np.asarray(got), np.asarray(leaf)
            assert same(got, leaf), (name, got, leaf)


@WORKERS
@pytest.mark.parametrize("batch_size", [N, None])
def test_each_kind_of_column_of_a_dict_as_a_source(workers: int, batch_size: int | None) -> None:
    if batch_size:
        loader = load(COLUMNS, workers)
        (batch,) = loader
        assert_batch(batch, COLUMNS)
        with grain.prefetch_to_device(loader, jax.devices()[0]) as batches:
            (placed,) = batches
        assert_placed(placed, COLUMNS)
        return
    for i, element in enumerate(load(COLUMNS, workers, batch_size=None)):
        for name, column in COLUMNS.items():
            assert same(np.asarray(element[name]), np.asarray(column[i])), name


@WORKERS
def test_a_column_of_text_is_text_in_a_batch(workers: int) -> None:
    for column in (np.array(["a", "bc", "", "d"]), np.array([b"a", b"bc", b"", b"d"])):
        (batch,) = load({"t": column}, workers)
        assert batch["t"].dtype == object
        assert batch["t"].tolist() == column.tolist()


@WORKERS
def test_memory_maps(workers: int, tmp_path: Path) -> None:
    values = np.arange(N * 6, dtype=np.float32).reshape(N, 6)
    values.tofile(tmp_path / "values")
    mapped = np.memmap(tmp_path / "values", np.float32, "r", shape=(N, 6))
    for source in ([{"x": row} for row in mapped], {"x": mapped}):
        (batch,) = load(source, workers)
        assert type(batch["x"]) is np.ndarray
        assert same(batch["x"], values)
        with grain.prefetch_to_device(load(source, workers), jax.devices()[0]) as batches:
            np.testing.assert_array_equal(next(batches)["x"], values)


@WORKERS
def test_registered_classes(workers: int) -> None:
    records = [{"a": Sample(np.full(3, i, np.int16), "n"), "b": Sound(i, 8)} for i in range(N)]
    (batch,) = load(records, workers)
    assert isinstance(batch["a"], Sample)
    assert (batch["a"].name, batch["b"].rate) == ("n", 8)
    assert same(batch["a"].x, np.stack([np.full(3, i, np.int16) for i in range(N)]))
    assert same(batch["b"].x, np.arange(N))
    with grain.prefetch_to_device(load(records, workers), jax.devices()[0]) as batches:
        placed = next(batches)
    assert (placed["a"].name, placed["b"].rate) == ("n", 8)
    assert isinstance(placed["b"].x, jax.Array)


@WORKERS
def test_records_that_differ_in_a_static_field(workers: int) -> None:
    records = [{"b": Sound(i, 8 if i < 2 else 16)} for i in range(N)]
    with pytest.raises(InvalidValueError, match=r"'rate' is 8 in element 0 .* 16 in element 2"):
        list(load(records, workers))


@WORKERS
@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_typed_keys(workers: int, impl: str) -> None:
    keys = [jax.random.key(i, impl=impl) for i in range(N)]
    loader = load([{"key": key, "pair": jax.random.split(key)} for key in keys], workers)
    right = np.stack([jax.random.key_data(key) for key in keys])
    pairs = np.stack([jax.random.key_data(jax.random.split(key)) for key in keys])
    (batch,) = loader
    with grain.prefetch_to_device(loader, jax.devices()[0]) as batches:
        (placed,) = batches
    for got in (batch, placed):
        assert got["key"].dtype == got["pair"].dtype == keys[0].dtype
        np.testing.assert_array_equal(jax.random.key_data(got["key"]), right)
        np.testing.assert_array_equal(jax.random.key_data(got["pair"]), pairs)
    single = list(load([{"key": key} for key in keys], workers, batch_size=None))
    np.testing.assert_array_equal([jax.random.key_data(one["key"]) for one in single], right)


LARGE = 2**53 + 1
REFUSED = {
    "an integer that is no float": ([1, LARGE, 2.5, 3], "int64.* float64.*9007199254740993"),
    "rows of such": ([np.full(2, LARGE), np.zeros(2)] * 2, "int64 .* float64 .*9007199254740993"),
    "integers of no one type": ([2**63, -1, 1, 1], "uint64 .*int64 .* holds both -1 and 92233720"),
    "masked": ([np.ma.MaskedArray([1, 2], [True, False])] * N, "its mask would be lost"),
    "masked constant": ([1.0, np.ma.masked, 2.0, 3.0], "its mask would be lost"),
    "a unit": ([np.zeros(2).view(Unit)] * N, "class Unit.*np.asarray"),
    "durations with integers": ([np.timedelta64(1, "s"), 2, 3, 4], "durations do not stack with"),
    "text with numbers": (["a", 1, "b", 2], "text does not stack with anything else"),
    "rows of text and numbers": (
        [np.array(["a"]), np.array([1])] * 2,
        "text do not stack with num",
    ),
    "None with numbers": ([None, 1, 2, 3], "None in element 0 and a value of type int"),
    "bfloat16 with float16": ([ml_dtypes.bfloat16(1), np.float16(1)] * 2, "no common type"),
}


@WORKERS
@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_is_an_error_that_names_it(name: str, workers: int) -> None:
    leaves, message = REFUSED[name]
    with pytest.raises(InvalidValueError, match=message) as caught:
        list(load([{"id": leaf} for leaf in leaves], workers))
    assert "['id']" in str(caught.value)


@WORKERS
@pytest.mark.parametrize("name", ["masked", "a unit"])
def test_what_is_refused_in_a_batch_arrives_alone_as_it_is(name: str, workers: int) -> None:
    leaf = REFUSED[name][0][0]
    elements = list(load([{"x": leaf}] * 2, workers, batch_size=None))
    for element in elements:
        assert type(element["x"]) is type(leaf)
        assert np.asarray(element["x"]).tolist() == np.asarray(leaf).tolist()
        assert np.ma.getmaskarray(element["x"]).tolist() == np.ma.getmaskarray(leaf).tolist()
    with grain.prefetch_to_device(elements) as stage, pytest.raises(InvalidTypeError, match="x"):
        next(stage)


def test_masked_arrays_are_no_source_and_no_column_of_one() -> None:
    masked = np.ma.MaskedArray(np.zeros((4, 2)), False)
    for source in (masked, {"x": masked}):
        with pytest.raises(InvalidTypeError, match="is a masked array, and JAX has none: its mask"):
            grain.load(source, batch_size=2)
        with pytest.raises(InvalidTypeError, match="is a masked array, and JAX has none: its mask"):
            grain.MapDataset.source(source)


@WORKERS
def test_integers_above_the_signed_ones(workers: int) -> None:
    (batch,) = load([{"id": 2**63 + 1}, {"id": 5}], workers, 2)
    assert same(batch["id"], np.array([2**63 + 1, 5], np.uint64))
    loader = load([{"id": 2**63 + 1}, {"id": 5}], workers, 2)
    with (
        grain.prefetch_to_device(loader, jax.devices()[0]) as stage,
        pytest.raises(InvalidValueError, match=r"batch\['id'\], row 0, holds 9223372036854775809"),
    ):
        next(stage)


@WORKERS
def test_none_from_a_flat_map(workers: int) -> None:
    def streams() -> Iterator[Any]:
        for more in ([], [grain.transforms.Batch(2)]):
            yield grain.DataLoader(
                data_source=range(6),
                sampler=grain.samplers.SequentialSampler(6),
                operations=[Twice(), *more],
                worker_count=workers,
            )
        options = grain.MultiprocessingOptions(num_workers=workers)
        random_access = grain.MapDataset.range(6).flat_map(Twice())
        yield random_access.to_iter_dataset().mp_prefetch(options)
        yield grain.MapDataset.range(6).to_iter_dataset().flat_map(Twice()).mp_prefetch(options)
        yield (random_access[i] for i in range(12))

    for stream in streams():
        with pytest.raises(ValueError, match=r"Twice\) returned None among its .*number 0\)"):
            list(stream)


@WORKERS
@pytest.mark.parametrize("memory", ["memfd", "file"])
def test_what_a_user_still_has_does_not_reach_the_device(
    workers: int, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if memory == "file":
        monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", memory)
    values = np.arange(8 * 4096, dtype=np.float32).reshape(8, 4096)
    host = list(load({"x": values}, workers))
    device = list(grain.prefetch_to_device(host, jax.devices()[0]))
    for batch in host:
        batch["x"] *= 0
    np.testing.assert_array_equal(np.concatenate([batch["x"] for batch in device]), values)


@pytest.mark.parametrize("mode", ["fork_imported", "fork_first", "fresh"])
def test_each_kind_of_leaf_however_workers_start(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MODE", mode)
    (batch,) = load(RECORDS, 1)
    assert_batch(batch, KINDS)
    monkeypatch.setenv("GRAIN_JAX_ENGINE_MEMORY", "file")
    (batch,) = load(RECORDS, 1)
    assert_batch(batch, KINDS)
