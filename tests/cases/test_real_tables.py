"""Tables are sources of rows: each a dict of its columns, batches dicts of arrays."""

from __future__ import annotations

import datetime
import decimal
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import grain_jax as grain
from tests.cases import scripts

pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.usefixtures("no_process_left")

COLUMNS: dict[str, list[Any]] = {
    "i": [1, -2, 3, 4, 5, 2**62],
    "f": [0.5, float("nan"), 2.0, 3.0, 4.0, -1.0],
    "b": [True, False, True, False, True, True],
    "t": ["a", "", "ä€", "d", "long " * 9, "f"],
}

TABLES = {
    "pandas": lambda columns: pd.DataFrame(columns, index=[f"row {i}" for i in range(6)]),
    "polars": pl.DataFrame,
    "pyarrow": pa.table,
    "record batch": pa.RecordBatch.from_pydict,
    "chunks": lambda columns: pa.concat_tables(
        [pa.table({k: v[:2] for k, v in columns.items()}), pa.table(columns).slice(2)]
    ),
    "polars chunks": lambda columns: pl.concat(
        [pl.DataFrame({k: v[:2] for k, v in columns.items()}), pl.DataFrame(columns)[2:]],
        rechunk=False,
    ),
}

each_table = pytest.mark.parametrize("kind", TABLES)


class Pass(grain.transforms.Map):
    def map(self, element: Any) -> Any:
        return element


def rows(source: Any, workers: int = 0, *steps: Any, **more: Any) -> list[Any]:
    options = {"num_epochs": 1, **more}
    with grain.load(source, worker_count=workers, transformations=steps, **options) as loader:
        return list(loader)


@each_table
def test_a_row_is_a_dict_of_its_columns(kind: str) -> None:
    table = TABLES[kind](COLUMNS)
    for workers in (0, 2):
        got = rows(table, workers)
        assert len(got) == 6
        for i, row in enumerate(got):
            assert list(row) == list(COLUMNS)
            for name, values in COLUMNS.items():
                np.testing.assert_equal(row[name], values[i])
            types = [type(row[name]) for name in COLUMNS]
            assert types == [np.int64, np.float64, np.bool_, str]
    dataset = grain.MapDataset.source(table)
    assert len(dataset) == 6
    assert dataset[2]["t"] == "ä€"


@each_table
@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_a_dict_of_arrays_and_the_stack_of_its_rows(kind: str, workers: int) -> None:
    table = TABLES[kind](COLUMNS)
    options: dict[str, Any] = {"batch_size": 4, "shuffle": True, "seed": 5, "num_epochs": 2}
    got = rows(table, workers, **options)
    reference = rows(
        [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)],
        **options,
    )
    assert repr(got) == repr(reference)
    assert repr(rows(table, workers, Pass(), **options)) == repr(reference)
    assert [b["i"].dtype for b in got] == [np.int64] * 3
    assert [b["t"].dtype for b in got] == [object] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda c: pd.DataFrame(
            {
                k: pd.array(v, dtype=d)
                for (k, v), d in zip(c.items(), ("Int64", "boolean", "string"), strict=True)
            }
        ),
        pl.DataFrame,
        pa.table,
        lambda c: pa.table(c).to_pandas(types_mapper=pd.ArrowDtype),
    ],
    ids=["pandas", "polars", "pyarrow", "pandas with arrow"],
)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_missing_value_is_none_and_never_changes_the_others(make: Any, workers: int) -> None:
    big = 2**53 + 1  # no float
    table = make({"i": [1, None, big], "b": [None, True, False], "t": ["a", None, "c"]})
    got = rows(table, workers)
    assert got == [
        {"i": 1, "b": None, "t": "a"},
        {"i": None, "b": True, "t": None},
        {"i": big, "b": False, "t": "c"},
    ]
    with pytest.raises(
        grain.errors.StackError, match=r"\['i'\] is .* None .*a missing value of a table"
    ):
        rows(table, workers, batch_size=3)

    class Fill(grain.transforms.Map):
        def map(self, element: Any) -> Any:
            return {"i": -1 if element["i"] is None else element["i"]}

    (batch,) = rows(table, workers, Fill(), batch_size=3)
    assert batch["i"].tolist() == [1, -1, big]
    assert batch["i"].dtype == np.int64


NESTED = {
    "ragged": [[1, 2], [], [3]],
    "struct": [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}],
    "words": [["a"], ["b", "c"], []],
    "raw": [b"a\0", b"", b"c"],
    "day": [datetime.date(2020, 1, i) for i in (1, 2, 3)],
    "when": [datetime.datetime(2020, 1, 1, i, tzinfo=None) for i in (1, 2, 3)],
    "span": [datetime.timedelta(seconds=i) for i in (1, 2, 3)],
    "money": [decimal.Decimal("1.10"), decimal.Decimal("2.20"), decimal.Decimal("3.30")],
}


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table], ids=["polars", "pyarrow"])
@pytest.mark.parametrize("workers", [0, 2])
def test_nested_and_other_columns(make: Any, workers: int) -> None:
    got = rows(make(NESTED), workers)
    assert len(got) == 3
    for i, row in enumerate(got):
        assert isinstance(row["ragged"], np.ndarray)
        assert row["ragged"].dtype == np.int64
        assert row["ragged"].tolist() == NESTED["ragged"][i]
        assert not row["ragged"].flags.writeable
        for name in ("struct", "words", "raw", "money"):
            assert row[name] == NESTED[name][i]
        for name, kind in (("day", "M"), ("when", "M"), ("span", "m")):
            assert row[name].dtype.kind == kind
            assert row[name].item() == NESTED[name][i]


@pytest.mark.parametrize("make", [pl.DataFrame, pa.table], ids=["polars", "pyarrow"])
def test_structs_and_columns_beside_them_keep_their_order(make: Any) -> None:
    table = make({"x": [1.0, 2.0], "box": [{"y": 1, "x": 2, "h": 3}] * 2, "label": [0, 1]})
    (batch,) = rows(table, 0, batch_size=2)
    for tree in (*rows(table, 0), *rows(table, 2), batch):
        assert list(tree) == ["x", "box", "label"]
        assert list(tree["box"]) == ["y", "x", "h"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [pa.table, pl.DataFrame])
def test_a_missing_row_of_a_nested_column_leaves_the_others_as_they_are(
    make: Any, workers: int
) -> None:
    lists = [[1.5], [2.0, 3.0], [], [4.0]]
    structs = [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}, {"a": 4, "b": ""}]
    full = rows(make({"l": lists, "s": structs}), workers)
    holes = rows(make({"l": [*lists[:2], None, *lists[3:]], "s": [None, *structs[1:]]}), workers)
    for number, (whole, row) in enumerate(zip(full, holes, strict=True)):
        if number == 2:
            assert row["l"] is None
        else:
            assert row["l"].dtype == np.float64
            assert row["l"].tolist() == lists[number] == whole["l"].tolist()
        if number == 0:
            assert row["s"] is None
        else:
            assert row["s"] == structs[number] == whole["s"]
            assert type(row["s"]["a"]) is type(whole["s"]["a"]) is np.int64


@pytest.mark.parametrize("workers", [0, 2])
def test_rows_of_fixed_size_are_arrays(workers: int) -> None:
    data = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
    fixed = pa.FixedSizeListArray.from_arrays(
        pa.FixedSizeListArray.from_arrays(pa.array(data.ravel()), 3), 2
    )
    for table in (
        pa.table({"x": fixed}),
        pa.table({"x": pa.FixedShapeTensorArray.from_numpy_ndarray(data)}),
        pl.DataFrame({"x": pl.Series(data.tolist(), dtype=pl.Array(pl.Float32, (2, 3)))}),
    ):
        assert np.array_equal(np.stack([row["x"] for row in rows(table, workers)]), data)
        (batch,) = rows(table, workers, batch_size=4)
        assert batch["x"].dtype == np.float32
        assert np.array_equal(batch["x"], data)


def test_columns_of_pandas_that_are_no_arrays() -> None:
    when = pd.date_range("2020-01-01", periods=3, tz="Europe/Paris")
    table = pd.DataFrame(
        {
            "category": pd.Categorical(["x", "y", "x"]),
            "number": pd.Categorical([3, 1, 3]),
            "gap": pd.Categorical(["x", None, "y"]),
            "zone": when,
            "naive": when.tz_localize(None),
            "period": pd.period_range("2020", periods=3, freq="D"),
            "sparse": pd.arrays.SparseArray([0, 1, 0]),
            "object": [[1], {"a": 2}, None],
            "nat": pd.to_datetime(["2020", None, "2021"]),
        }
    )
    for workers in (0, 1):
        got = rows(table, workers)
        assert [row["category"] for row in got] == ["x", "y", "x"]
        assert [row["number"] for row in got] == [3, 1, 3]
        assert [row["gap"] for row in got] == ["x", None, "y"]
        assert [row["zone"] for row in got] == list(when)
        assert [row["naive"] for row in got] == [np.datetime64(w.tz_localize(None)) for w in when]
        assert [str(row["period"]) for row in got] == [f"2020-01-0{i}" for i in (1, 2, 3)]
        assert [row["sparse"] for row in got] == [0, 1, 0]
        assert [row["object"] for row in got] == [[1], {"a": 2}, None]
        assert np.isnat(got[1]["nat"])
        assert got[0]["object"] is not table["object"][0]


def test_categories_of_polars_and_dictionaries_of_arrow_are_their_values() -> None:
    polars = pl.DataFrame({"c": pl.Series(["x", None, "y"], dtype=pl.Categorical)})
    arrow = pa.table({"c": pa.array(["x", None, "y"]).dictionary_encode()})
    for table in (polars, arrow):
        assert [row["c"] for row in rows(table)] == ["x", None, "y"]


@pytest.mark.parametrize("workers", [0, 2])
def test_columns_as_sources_and_as_leaves(workers: int) -> None:
    series = pd.Series([10, 20, 30], index=[2, 1, 0])  # by position, never by label
    assert rows(series, workers) == [10, 20, 30]
    assert rows(pl.Series([10, 20, 30]), workers) == [10, 20, 30]
    assert rows(pa.chunked_array([[10], [20, 30]]), workers) == [10, 20, 30]
    tree = {"x": series, "y": np.arange(3), "z": pl.Series(["a", "b", "c"])}
    assert rows(tree, workers) == [{"x": 10 * (i + 1), "y": i, "z": "abc"[i]} for i in range(3)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_edit_of_a_table_shows_in_the_next_iteration(workers: int) -> None:
    table = pd.DataFrame({"a": [1, 2, 3]})
    with grain.load(table, num_epochs=1, batch_size=3, worker_count=workers) as loader:
        assert next(iter(loader))["a"].tolist() == [1, 2, 3]
        table["a"] = table["a"] * 10
        assert next(iter(loader))["a"].tolist() == [10, 20, 30]


def test_tables_that_are_no_sources_are_refused() -> None:
    with pytest.raises(ValueError, match="two columns called 'a'"):
        grain.load(pd.DataFrame([[1, 2]], columns=["a", "a"]))
    with pytest.raises(ValueError, match="two columns called 'a'"):
        grain.load(pa.table([[1], [2]], names=["a", "a"]))
    with pytest.raises(TypeError, match="collect"):
        grain.load(pl.LazyFrame({"a": [1]}))
    with pytest.raises(ValueError, match="without columns"):
        grain.load(pd.DataFrame())
    with pytest.raises(ValueError, match="is empty"):
        grain.load(pd.DataFrame({"a": []}))


def test_several_datasets_in_a_dict_are_refused_by_name(tmp_path: Path) -> None:
    hf = pytest.importorskip("datasets")
    train = hf.Dataset.from_dict({"x": [1, 2, 3], "t": ["a", "b", "c"]})
    splits = hf.DatasetDict({"train": train, "test": train})
    table = pd.DataFrame({"a": [1]})
    for given in (splits, dict(splits), {"train": table, "test": table}):
        with pytest.raises(TypeError, match=r"'train', 'test'.*write source\['train'\]"):
            grain.load(given)
    splits.save_to_disk(tmp_path / "data")
    expected = [{"x": i, "t": t} for i, t in ((1, "a"), (2, "b"), (3, "c"))]
    for source in (train, hf.load_from_disk(tmp_path / "data")["train"]):
        for workers in (0, 1):  # which takes seconds to import what such a table needs
            assert rows(source, workers) == expected
        (batch,) = rows(source, 0, batch_size=3)
        assert batch["x"].tolist() == [1, 2, 3]
        with grain.load(source, num_epochs=1) as loader:
            assert len(list(loader)) == 3
        assert source[0] == {"x": 1, "t": "a"}  # the end of a loader leaves it usable


MODES = ["fork_imported", "fork_first", "fresh"]


@pytest.mark.parametrize("mode", MODES)
def test_tables_in_every_start_mode(tmp_path: Path, mode: str) -> None:
    text = """
    import os
    import numpy as np
    import pandas as pd, polars as pl, pyarrow as pa
    import grain_jax as grain

    columns = {"i": np.arange(300_000), "t": [f"text {i}" for i in range(300_000)]}
    class Look(grain.transforms.Map):
        def map(self, element):
            assert element["t"] == f"text {element['i']}"
            return element["i"]
    for table in (pd.DataFrame(columns), pl.DataFrame(columns), pa.table(columns)):
        for memory in ("", "file"):
            os.environ["GRAIN_JAX_ENGINE_MEMORY"] = memory
            with grain.load(table, num_epochs=1, shuffle=True, seed=1, batch_size=1000,
                            worker_count=2) as loader:
                batch = next(iter(loader))
            good = [f"text {i}" for i in batch["i"]] == batch["t"].tolist()
            with grain.load(table, num_epochs=1, transformations=[Look()], batch_size=1000,
                            worker_count=2) as loader:
                print(good, next(iter(loader)).sum())
    """
    lines = scripts.output(tmp_path, textwrap.dedent(text), GRAIN_JAX_ENGINE_MODE=mode)
    assert lines == [f"True {sum(range(1000))}"] * 6
