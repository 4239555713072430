"""Parquet: files of tables, in groups of rows whose numbers stand at the file's end."""

from __future__ import annotations

import bisect
import dataclasses
import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from grain_jax._algebra import tables
from grain_jax._algebra.columns import Column, Columns
from grain_jax._algebra.files import paths
from grain_jax._algebra.files.source import Contents, Damage, corrupt
from grain_jax._algebra.packing import Array, Keys
from grain_jax._values.errors import (
    CorruptFileError,
    InvalidTypeError,
    InvalidValueError,
    MissingDependencyError,
)

__all__ = ["ParquetFiles", "parquet_files"]

_BATCH_BYTES = 4 << 20
_MOST_ROWS = 4096


def parquet_files(columns: Any, filters: Any, options: Mapping[str, Any]) -> ParquetFiles:
    """Returns how Parquet files are read.

    Args:
      columns: names of those that are read; None for all.
      filters: an expression of pyarrow, or tuples `(column, operator, value)` in one list or in
        several, of which one has to hold.
      options: what `pyarrow.parquet.ParquetFile` takes.

    Raises:
      MissingDependencyError: if pyarrow is not installed.
      InvalidValueError: for columns and filters that cannot be.
      InvalidTypeError: for an option that pyarrow does not know.
    """
    parquet = _pyarrow("parquet")
    known = inspect.signature(parquet.ParquetFile).parameters
    for name in options:
        if name == "filesystem":
            raise InvalidValueError(
                "ParquetIterDataset opens files by itself; write the file system into the path, as "
                "in 'gs://bucket/file.parquet', instead of filesystem=."
            )
        if name not in known or name == "source":
            raise InvalidTypeError(
                f"{name}= is neither known to ParquetIterDataset nor to "
                f"pyarrow.parquet.ParquetFile, which takes {', '.join(list(known)[1:])}."
            )
    chosen = None
    if columns is not None:
        chosen = (columns,) if isinstance(columns, str) else tuple(columns)
        if not chosen or not all(isinstance(name, str) for name in chosen):
            raise InvalidValueError(
                f"columns must be names, at least one, or None for all; got {columns!r}."
            )
    if filters is not None and not isinstance(filters, _pyarrow("compute").Expression):
        try:
            filters = parquet.filters_to_expression(filters)
        except (ValueError, TypeError) as error:
            raise InvalidValueError(
                f"filters={filters!r} cannot be read: {error}. Write [(column, operator, value)], "
                "or an expression such as pyarrow.compute.field('x') > 1."
            ) from None
    return ParquetFiles(chosen, filters, dict(options))


def _pyarrow(part: str) -> Any:
    try:
        return importlib.import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise MissingDependencyError(
            'reading Parquet files needs pyarrow: pip install "grain-jax[parquet]"'
        ) from error


@dataclasses.dataclass(frozen=True)
class ParquetFiles:
    """How Parquet files are read; rows that a filter leaves out are absent.

    Attributes:
      columns: names, or None for all.
      filters: an expression, or None.
      options: for pyarrow.
    """

    columns: tuple[str, ...] | None
    filters: Any
    options: dict[str, Any]

    @property
    def has_gaps(self) -> bool:
        """Whether there is a filter."""
        return self.filters is not None

    @property
    def about(self) -> str:
        """The filter."""
        return "" if self.filters is None else f"filters={self.filters}"

    def look(self, path: str) -> Contents:
        """Reads the numbers of rows, and checks the names of columns.

        Raises:
          CorruptFileError: for a file that is no Parquet file, or is cut off.
          InvalidValueError: for columns that it does not have.
        """
        stamp = paths.stamp_of(path)
        file = paths.open_file(path)
        try:
            opened = self._opened(file)
            about = opened.metadata
            counts = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
            self._check(path, opened.schema_arrow)
            weight = sum(about.row_group(g).total_byte_size for g in range(about.num_row_groups))
        except Exception as error:
            if not _is_damage(error):
                raise
            raise CorruptFileError(
                f"the file {path!r} is no whole Parquet file: {error}"
            ) from error
        finally:
            file.close()
        ends = np.cumsum([0, *counts], dtype=np.int64)
        rows = int(ends[-1])
        each = max(1, weight // max(1, rows))
        return Contents(rows, stamp, (ends, max(1, min(_MOST_ROWS, _BATCH_BYTES // each))))

    def _check(self, path: str, schema: Any) -> None:
        names = schema.names
        for name in self.columns or ():
            if name not in names and name.partition(".")[0] not in names:
                raise InvalidValueError(
                    f"the Parquet file {path!r} has no column {name!r}; it has {', '.join(names)}."
                )
        if self.filters is not None:
            empty = _pyarrow("dataset").dataset(schema.empty_table())
            try:
                empty.to_table(columns={"keep": self.filters}, use_threads=False)
            except (ValueError, TypeError, NotImplementedError) as error:
                raise InvalidValueError(
                    f"filters={self.filters} do not fit the Parquet file {path!r}, which has the "
                    f"columns {', '.join(names)}: {error}"
                ) from error

    def _opened(self, file: IO[bytes]) -> Any:
        options = {"pre_buffer": False, "page_checksum_verification": True, **self.options}
        return _pyarrow("parquet").ParquetFile(file, **options)

    def open(self, path: str, contents: Contents) -> _Rows:
        """Opens a file."""
        file = paths.open_file(path)
        try:
            return _Rows(path, file, self._opened(file), self, contents)
        except BaseException:
            file.close()
            raise


def _is_damage(error: Exception) -> bool:
    """Whether an exception of pyarrow speaks of the bytes of a file, and not of reading them."""
    if isinstance(error, InvalidValueError):
        return False
    kind = _pyarrow("lib").ArrowException
    return isinstance(error, kind) or (isinstance(error, OSError) and error.errno is None)


class _Rows:
    """An open file, with a batch of its rows in memory."""

    def __init__(
        self, path: str, file: IO[bytes], opened: Any, given: ParquetFiles, contents: Contents
    ) -> None:
        self._path, self._file, self._opened, self._given = path, file, opened, given
        ends, self._batch_rows = contents.index
        self._ends: list[int] = ends.tolist()
        self._filter = None if given.filters is None else _Filter(path, given.filters)
        self._group = -1
        self._batches: Iterator[Any] = iter(())
        self._columns: Columns | None = None  # of the batch in memory
        self._end = 0  # the row behind it
        self.following = 0  # its first row

    def read(self, rows: Sequence[int], found: list[Any]) -> None:
        """Appends the rows, batch by batch."""
        wanted = np.array(rows, np.int64)
        done = 0
        while done < len(rows):
            row = rows[done]
            group = bisect.bisect_right(self._ends, row) - 1
            begin, end = self._ends[group : group + 2]
            try:
                kept = None if self._filter is None else self._filter.of(group)
                if kept is None or kept.any():
                    self._go_to(group, row)
                    end = min(end, self._end)
            except Exception as error:
                if not _is_damage(error):
                    raise
                # What is behind it in its group cannot be found.
                raise Damage(row, self._ends[group + 1], f"it cannot be read: {error}") from error
            here = bisect.bisect_left(rows, end, done)
            self._append(
                wanted[done:here], None if kept is None else kept[wanted[done:here] - begin], found
            )
            done = here

    def _append(self, rows: Array, kept: Array | None, found: list[Any]) -> None:
        if kept is not None:
            rows = rows[kept]
        if kept is not None and not len(rows):
            found.extend([None] * len(kept))
            return
        assert self._columns is not None
        records = self._columns.rows(rows - self.following)
        if kept is None:
            found.extend(records)
        else:
            present = iter(records)
            found.extend(next(present) if here else None for here in kept.tolist())

    def _go_to(self, group: int, row: int) -> None:
        """Has the batch of a row in memory."""
        if self._columns is not None and self.following <= row < self._end:
            return
        try:
            self._advance(group, row)
        except Exception as error:
            if not _is_damage(error) or self._batch_rows == 1:
                raise
            # Which rows come before the damage shows where they are read one by one.
            self._batch_rows, self._group = 1, -1
            self._advance(group, row)

    def _advance(self, group: int, row: int) -> None:
        if group != self._group or row < self._end:
            self._group, self._end = group, self._ends[group]
            self._batches = self._begun(group)
        self._columns, batch = None, None
        while self._end <= row:
            batch = next(self._batches, None)
            if batch is None:
                raise corrupt(self._path, row, "its group of rows ends before it")
            self.following, self._end = self._end, self._end + batch.num_rows
        self._columns = Columns(_tree(batch))

    def _begun(self, group: int) -> Iterator[Any]:
        columns = self._given.columns
        found: Iterator[Any] = self._opened.iter_batches(
            self._batch_rows,
            row_groups=[group],
            columns=None if columns is None else list(columns),
            use_threads=False,
        )
        return found

    def close(self) -> None:
        """Closes the file."""
        self._columns, self._batches = None, iter(())
        self._opened.close()
        self._file.close()
        if self._filter is not None:
            self._filter.close()


class _Arrays(Column):
    """Lists of pyarrow as arrays, made as they are asked for."""

    def __init__(self, lists: Any) -> None:
        self._lists = lists
        self.length = len(lists)

    def rows(self, keys: Keys) -> list[Any]:
        """The arrays, which are read-only."""
        types, kind = _pyarrow("types"), self._lists.type
        found = self._lists.take(_pyarrow("lib").array(keys)).to_pylist()
        return [_array_of(row, kind, types) for row in found]


def _tree(batch: Any) -> dict[str, Any]:
    """Returns the columns of a batch; what an element is follows from the schema and its row.

    Lists become arrays whatever the others of the batch hold, and times with a zone those of UTC.
    """
    arrow, types = _pyarrow("lib"), _pyarrow("types")
    columns, lists = [], {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        kind = column.type
        if types.is_timestamp(kind) and kind.tz is not None:
            column = column.cast(arrow.timestamp(kind.unit))
        if _is_list(kind, types) and not _is_simple(column, types):
            lists[name] = _Arrays(column)
            column = arrow.nulls(len(column))  # stands for its place
        columns.append(column)
    table = arrow.RecordBatch.from_arrays(columns, names=batch.schema.names)
    return {name: lists.get(name, column) for name, column in tables.tree_of(table).items()}


def _is_list(kind: Any, types: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _is_simple(column: Any, types: Any) -> bool:
    """Whether a column of lists is one of numbers, without a missing one among them."""
    values = column.flatten()
    while types.is_fixed_size_list(column.type) and types.is_fixed_size_list(values.type):
        values = values.flatten()
    kind = values.type
    is_number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    return bool(is_number and not values.null_count)


def _array_of(row: Any, kind: Any, types: Any) -> Any:
    """Returns the array of a list: of numbers where all are there, else of objects."""
    if row is None:
        return None
    inner = kind.value_type
    if _is_list(inner, types):
        row = [_array_of(one, inner, types) for one in row]
    is_number = types.is_integer(inner) or types.is_floating(inner) or types.is_boolean(inner)
    if is_number and None not in row:
        array = np.array(row, inner.to_pandas_dtype())
    else:
        array = np.empty(len(row), object)
        array[:] = row
    array.setflags(write=False)
    return array


class _Filter:
    """Which rows of a group a filter keeps: found by statistics, and by reading its columns."""

    def __init__(self, path: str, filters: Any) -> None:
        self._filters = filters
        self._file = paths.open_file(path)
        form = _pyarrow("dataset").ParquetFileFormat()
        self._whole = form.make_fragment(_pyarrow("lib").PythonFile(self._file, mode="r"))
        self._groups: set[int] | None = None
        self._last: tuple[int, Any] = (-1, None)

    def of(self, group: int) -> Array:
        """Returns for each row of a group whether it is kept."""
        if self._last[0] != group:
            self._last = group, self._found(group)
        kept: Array = self._last[1]
        return kept

    def _found(self, group: int) -> Array:
        whole = self._whole
        if self._groups is None:
            self._groups = {one.id for one in whole.subset(filter=self._filters).row_groups}
        if group not in self._groups:
            return np.zeros(whole.metadata.row_group(group).num_rows, bool)
        part = whole.subset(row_group_ids=[group])
        table = part.to_table(columns={"keep": self._filters}, use_threads=False)
        return np.asarray(table["keep"].fill_null(False).to_numpy(), bool)

    def close(self) -> None:
        """Closes the file."""
        self._whole = None
        self._file.close()
