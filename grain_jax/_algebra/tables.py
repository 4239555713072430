"""Tables of pandas, polars and pyarrow: their columns, without importing those libraries.

Numbers, booleans, dates and durations become arrays, without a copy where the table has them as
such. Text becomes `str`, a list of numbers an array, a struct a dict. A missing value is None,
whatever the type of its column; NaN and NaT stay what they are where a library has no other word.
All else comes as the library gives it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grain_jax._algebra.columns import ArrayColumn, Column
from grain_jax._algebra.lists import ListColumn, Texts
from grain_jax._algebra.packing import Array, Keys, frozen_array
from grain_jax._values.errors import InvalidTypeError, InvalidValueError

__all__ = ["column_of", "is_column", "is_table", "tree_of"]


def _is(value: Any, library: str, *names: str) -> bool:
    module = sys.modules.get(library)
    kinds = tuple(getattr(module, name) for name in names if hasattr(module, name))
    return bool(kinds) and isinstance(value, kinds)


def is_table(value: Any) -> bool:
    """Whether a value is a table.

    Raises:
        InvalidTypeError: if it is a table that is not computed yet.
    """
    if _is(value, "polars", "LazyFrame"):
        raise InvalidTypeError("a LazyFrame has no rows yet; give lazy_frame.collect().")
    return (
        _is(value, "pandas", "DataFrame")
        or _is(value, "polars", "DataFrame")
        or _is(value, "pyarrow", "Table", "RecordBatch")
    )


def tree_of(table: Any) -> dict[Any, Any]:
    """The columns of a table, by name; structs are dicts of columns.

    Raises:
        InvalidValueError: if it has none, or two of one name.
    """
    names = list(
        table.schema.names if _is(table, "pyarrow", "Table", "RecordBatch") else table.columns
    )
    if not names:
        raise InvalidValueError("a table without columns is no data source: it has no records.")
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidValueError(
            f"the table has two columns called {twice!r}, and a record is a dict: rename one."
        )
    if _is(table, "pandas", "DataFrame"):
        return {name: _of_pandas(table.iloc[:, number]) for number, name in enumerate(names)}
    if _is(table, "polars", "DataFrame"):
        return {name: _of_polars(table[name]) for name in names}
    return {name: _of_arrow(table.column(number)) for number, name in enumerate(names)}


def is_column(value: Any) -> bool:
    """Whether a value is one column of a table."""
    return (
        _is(value, "pandas", "Series", "Index")
        or _is(value, "polars", "Series")
        or _is(value, "pyarrow", "Array", "ChunkedArray")
    )


def column_of(value: Any) -> Any:
    """The column of one column of a table, or a tree of them."""
    if _is(value, "pandas", "Series", "Index"):
        return _of_pandas(value)
    return _of_polars(value) if _is(value, "polars", "Series") else _of_arrow(value)


class _Ragged(Column):
    """Arrays of different lengths, one behind the other in one."""

    def __init__(self, values: Array, ends: Keys) -> None:
        self._values = frozen_array(values)
        self._ends = ends  # the first is that of nothing: 0
        self.length = len(ends) - 1

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._values, self._ends)

    def rows(self, keys: Keys) -> list[Any]:
        """Read-only views."""
        values = self._values
        spans = zip(self._ends[keys].tolist(), self._ends[keys + 1].tolist(), strict=True)
        return [values[begin:end] for begin, end in spans]


class _Gapped(Column):
    """A column of which some elements are missing: None. The others are those of a shorter one."""

    def __init__(self, present: Any, missing: Array) -> None:
        self._present = present  # a column, or a dict of such
        self._places = np.where(missing, -1, np.cumsum(~missing) - 1)
        self.length = len(missing)
        self.has_none = bool(missing.any())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._present, self._places < 0)

    def rows(self, keys: Keys) -> list[Any]:
        """The elements, or None."""
        places = self._places[keys]
        found = iter(_rows(self._present, places[places >= 0]))
        return [None if place < 0 else next(found) for place in places.tolist()]


def _rows(part: Any, keys: Keys) -> list[Any]:
    if not isinstance(part, dict):
        rows: list[Any] = part.rows(keys)
        return rows
    columns = [_rows(column, keys) for column in part.values()]
    return [dict(zip(part, row, strict=True)) for row in zip(*columns, strict=True)]


def _of_array(values: Array, missing: Array) -> Column:
    """Values as an array; with some missing, one by one and None for those."""
    if values.dtype.hasobject:
        return _of_objects(values.tolist(), missing)
    if not missing.any():
        return ArrayColumn(values)
    return ListColumn(
        [None if gone else value for value, gone in zip(values, missing, strict=True)]
    )


def _of_objects(values: list[Any], missing: Sequence[Any] | Array | None = None) -> Column:
    if missing is not None and any(missing):
        values = [None if gone else value for value, gone in zip(values, missing, strict=True)]
    kinds = set(map(type, values))
    if kinds == {str} or kinds == {bytes}:
        return Texts.of(values, kinds.pop())
    return ListColumn(values)


# --- pandas ------------------------------------------------------------------------------------


def _of_pandas(series: Any) -> Any:
    dtype, missing = series.dtype, np.asarray(series.isna())
    if isinstance(dtype, np.dtype):
        # What is missing in it is a value of its own: NaN, NaT, or any object.
        return _of_array(series.to_numpy(), np.zeros(len(series), bool))
    name = type(dtype).__name__
    if name == "CategoricalDtype":
        categories = series.dtype.categories
        codes = np.asarray(getattr(series, "cat", series).codes)
        if not len(categories):
            return ListColumn([None] * len(series))
        return _of_pandas_values(categories.take(np.where(missing, 0, codes)), missing)
    if name == "SparseDtype":
        return _of_array(np.asarray(series), np.zeros(len(series), bool))
    as_arrow = getattr(series.array, "__arrow_array__", None)
    if name in ("StringDtype", "ArrowDtype") and "pyarrow" in sys.modules and as_arrow is not None:
        return _of_arrow(as_arrow())
    numpy_dtype = getattr(dtype, "numpy_dtype", None)
    if numpy_dtype is not None and hasattr(series.array, "_mask"):
        return _of_array(series.to_numpy(numpy_dtype, na_value=numpy_dtype.type(0)), missing)
    return _of_objects(series.tolist(), missing)


def _of_pandas_values(values: Any, missing: Array) -> Column:
    """The column of values of which some count as missing."""
    if isinstance(values.dtype, np.dtype):
        return _of_array(values.to_numpy(), missing)
    return _of_objects(values.tolist(), missing)


# --- polars ------------------------------------------------------------------------------------


def _of_polars(series: Any) -> Any:
    polars, dtype = sys.modules["polars"], series.dtype
    kind = dtype.base_type()
    missing = np.zeros(len(series), bool)
    if series.null_count():
        missing = series.is_null().to_numpy()
    if kind in (polars.String, polars.Categorical, polars.Enum):
        return _of_objects(series.cast(polars.String).to_list())
    if kind is polars.Boolean:
        return _of_array(series.fill_null(False).to_numpy(), missing)
    if dtype.is_numeric() and kind is not polars.Decimal:
        return _of_array(series.fill_null(0).to_numpy(), missing)
    if kind in (polars.Date, polars.Duration) or (
        kind is polars.Datetime and dtype.time_zone is None
    ):
        return _of_array(series.to_numpy(), missing)
    if missing.any() and kind in (polars.Struct, polars.List, polars.Array):
        return _Gapped(_of_polars(series.drop_nulls()), missing)
    if not missing.any():
        if kind is polars.Struct and dtype.fields:
            return {
                field.name: _of_polars(series.struct.field(field.name)) for field in dtype.fields
            }
        if kind is polars.List and dtype.inner.is_numeric():
            lengths = series.list.len()
            values = series.filter(lengths > 0).explode()
            if not values.null_count():
                return _ragged(values.to_numpy(), lengths.to_numpy())
        if kind is polars.Array and not series.explode().null_count():
            values = series.to_numpy()
            if not values.dtype.hasobject:
                return ArrayColumn(values)
    return _of_objects(series.to_list())


def _ragged(values: Array, lengths: Array) -> Column:
    ends = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ListColumn(values.tolist()) if values.dtype.hasobject else _Ragged(values, ends)


# --- pyarrow -----------------------------------------------------------------------------------


def _of_arrow(column: Any) -> Any:
    pyarrow = sys.modules["pyarrow"]
    types: Any = pyarrow.types
    array = column
    if isinstance(column, pyarrow.ChunkedArray):
        if types.is_string(column.type) or types.is_binary(column.type):
            # One array of 32-bit offsets may not hold all chunks.
            wide = pyarrow.large_string if types.is_string(column.type) else pyarrow.large_binary
            column = column.cast(wide())
        array = column.combine_chunks()
    if isinstance(array, pyarrow.ExtensionArray):
        if hasattr(array, "to_numpy_ndarray") and not array.null_count:
            return ArrayColumn(array.to_numpy_ndarray())
        array = array.storage
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    missing = np.asarray(array.is_null()) if array.null_count else np.zeros(len(array), bool)
    kind = array.type
    simple: tuple[tuple[Callable[[Any], bool], Any], ...] = (
        (types.is_boolean, False),
        (types.is_integer, 0),
        (types.is_floating, 0.0),
    )
    for is_kind, zero in simple:
        if is_kind(kind):
            filled = array.fill_null(pyarrow.scalar(zero).cast(kind)) if array.null_count else array
            return _of_array(filled.to_numpy(zero_copy_only=False), missing)
    if (
        types.is_date(kind)
        or types.is_duration(kind)
        or (types.is_timestamp(kind) and kind.tz is None)
    ):
        return _of_array(array.to_numpy(zero_copy_only=False), missing)
    if array.null_count and types.is_nested(kind):
        return _Gapped(_of_arrow(array.drop_null()), missing)
    if not array.null_count:
        nested = _of_nested(array, types)
        if nested is not None:
            return nested
    return _of_objects(array.to_pylist())


def _of_nested(array: Any, types: Any) -> Any:
    """The column of an array without nulls; None if it is no kind that has a short way."""
    kind = array.type
    if types.is_struct(kind) and kind.num_fields:
        names = [kind.field(number).name for number in range(kind.num_fields)]
        if len(set(names)) == len(names):
            return {
                name: _of_arrow(part) for name, part in zip(names, array.flatten(), strict=True)
            }
    if types.is_large_string(kind) or types.is_string(kind):
        return _text(array, True)
    if types.is_large_binary(kind) or types.is_binary(kind):
        return _text(array, False)
    if types.is_list(kind) or types.is_large_list(kind):
        values = array.flatten()
        if _is_number(values, types):
            lengths = np.diff(array.offsets.to_numpy())
            return _ragged(values.to_numpy(zero_copy_only=False), lengths)
    if types.is_fixed_size_list(kind):
        shape, values = [len(array)], array
        while types.is_fixed_size_list(values.type) and not values.null_count:
            shape.append(values.type.list_size)
            values = values.flatten()
        if _is_number(values, types):
            return ArrayColumn(values.to_numpy(zero_copy_only=False).reshape(shape))
    return None


def _is_number(values: Any, types: Any) -> bool:
    kind = values.type
    return not values.null_count and (
        types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    )


def _text(array: Any, encoded: bool) -> Column:
    _, offsets, data = array.buffers()
    wide = str(array.type).startswith("large_")
    ends = (
        np.frombuffer(offsets, np.int64 if wide else np.int32) if offsets else np.zeros(1, np.int32)
    )
    ends = ends[array.offset : array.offset + len(array) + 1].astype(np.int64)
    return Texts(data if data is not None else b"", ends, encoded)
