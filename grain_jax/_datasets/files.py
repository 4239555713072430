"""Files: streams of the records of Parquet, TFRecord and text files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from grain_jax._algebra.files import paths
from grain_jax._algebra.files.examples import ParseExample
from grain_jax._algebra.files.parquet import parquet_files
from grain_jax._algebra.files.source import FileSource, Format
from grain_jax._algebra.files.text import TextFiles
from grain_jax._algebra.files.tfrecord import TFRecordFiles
from grain_jax._datasets import iter_dataset, nodes, roots
from grain_jax._datasets.iter_dataset import IterDataset
from grain_jax._values import errors, options

__all__ = ["ParquetIterDataset", "TFRecordIterDataset", "TextLinesIterDataset"]

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


class _Files(IterDataset[Any]):
    """A stream of the records of files, which take turns."""

    _source: FileSource

    def _read(self, given: Format, path: Paths, cycle_length: int) -> None:
        places = options.check_count("cycle_length", cycle_length, minimum=1)
        self._begin(FileSource(given, paths.expand(path), places), f"({path!r})")

    def _begin(self, source: FileSource, text: str) -> None:
        root = roots.NodeRoot(nodes.SourceNode(source))
        self._be(iter_dataset.stream_of(root, parents=(), seed=None, steps=0, randoms=0))
        self._source, self._text = source, f"{type(self).__name__}{text}"

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Leaves, in this very dataset, only the files that a slice of their list has.

        `shard` deals records out as well where there are fewer files than shards.

        Args:
          sl: of the list of files.
          sequential_slice: accepted for compatibility.

        Raises:
          InvalidValueError: if no file is left.
        """
        source = self._source
        names = source.names[sl]
        if not names:
            raise errors.InvalidValueError(
                f"set_slice({sl}) leaves none of {len(source.names)} files. Write "
                "ds.shard(shard_options), which deals records out where files do not suffice."
            )
        text = self._text.removeprefix(type(self).__name__)
        self._begin(FileSource(source.given, names, source.places), f"{text}[{sl}]")


class ParquetIterDataset(_Files):
    """The rows of Parquet files, as dicts.

    A value is a scalar of NumPy, `str`, `bytes`, an array for a list, a dict for a struct, or None
    where it is missing.

    Args:
      path: a path, a pattern (`"data/*.parquet"`), or a sequence of them; with a protocol
        (`gs://`) for other file systems.
      columns: names of those that are read; None for all.
      filters: rows to keep, as pyarrow takes them: `[("year", ">", 2000)]`, or an expression.
      cycle_length: how many files take turns, one row each, as in Grain. A multiple of the number
        of shards gives each shard files of its own.
      **read_kwargs: for `pyarrow.parquet.ParquetFile`.

    Raises:
      MissingDependencyError: if pyarrow is not installed.
      FileNotFoundError: if a file is missing, or no file fits a pattern.
      CorruptFileError: where the first iteration begins, for what is no Parquet file, or is cut
        off; at a row that is damaged, behind those before it.

    Example:
      >>> import os, tempfile
      >>> import pyarrow as pa, pyarrow.parquet as pq
      >>> path = os.path.join(tempfile.mkdtemp(), "a.parquet")
      >>> pq.write_table(pa.table({"x": [1, 2, 3], "y": ["a", "b", "c"]}), path)
      >>> import grain_jax as grain
      >>> rows = grain.experimental.ParquetIterDataset(path, columns=["y"])
      >>> [row["y"] for row in rows]
      ['a', 'b', 'c']
    """

    def __init__(
        self,
        path: Paths,
        *,
        columns: Sequence[str] | None = None,
        filters: Any = None,
        cycle_length: int = 16,
        **read_kwargs: Any,
    ) -> None:
        super().__init__()
        self._read(parquet_files(columns, filters, read_kwargs), path, cycle_length)


class TFRecordIterDataset(_Files):
    """The records of TFRecord files, as `bytes`, or decoded; without TensorFlow.

    The files are gone through once as the first iteration begins, length by length, to number their
    records; see docs/files.md.

    Args:
      path: a path, a pattern, or a sequence of them, as for `ParquetIterDataset`.
      features: None for bytes; a mapping, as `ParseExample` takes it, or `"all"`, for the arrays of
        a `tf.train.Example`.
      compression: `"gzip"`, `"zlib"`, `"bz2"`, `"xz"`, `"zstd"`, None, or "auto": what the first
        bytes of each file say, but for zlib.
      cycle_length: how many files take turns.
      verify_checksums: whether those of the records are compared; those of the lengths always are.

    Raises:
      FileNotFoundError: if a file is missing, or no file fits a pattern.
      CorruptFileError: at a record that is cut off, damaged, or no example as declared, behind
        those before it.

    Example:
      >>> import numpy as np
      >>> ds = TFRecordIterDataset(
      ...     "train-*.tfrecord.gz", features={"image": ((), bytes), "label": ((), np.int32)}
      ... )  # doctest: +SKIP
      >>> next(iter(ds))["label"].dtype  # doctest: +SKIP
      dtype('int32')
    """

    def __init__(
        self,
        path: Paths,
        *,
        features: Mapping[str, Any] | str | None = None,
        compression: str | None = "auto",
        cycle_length: int = 16,
        verify_checksums: bool = True,
    ) -> None:
        super().__init__()
        decode = None
        if isinstance(features, str):
            if features != "all":
                raise errors.InvalidValueError(
                    f'features={features!r}: write "all", or a mapping from names to dtypes or '
                    "(shape, dtype)."
                )
            decode = ParseExample()
        elif features is not None:
            decode = ParseExample(features)
        chosen = paths.check_compression(compression)
        self._read(TFRecordFiles(decode, chosen, verify_checksums), path, cycle_length)


class TextLinesIterDataset(_Files):
    r"""The lines of text files, as `str` without their ends (`"\n"` or `"\r\n"`).

    Args:
      path: a path, a pattern, or a sequence of them, as for `ParquetIterDataset`.
      encoding: of the text.
      compression: as for `TFRecordIterDataset`.
      cycle_length: how many files take turns.

    Raises:
      FileNotFoundError: if a file is missing, or no file fits a pattern.
      InvalidValueError: for an encoding in which a line does not end with the byte 10.
      CorruptFileError: at a line that cannot be decoded, or decompressed, behind those before it.

    Example:
      >>> import os, tempfile
      >>> path = os.path.join(tempfile.mkdtemp(), "a.txt")
      >>> with open(path, "w") as file:
      ...     _ = file.write("one")
      >>> import grain_jax as grain
      >>> list(grain.experimental.TextLinesIterDataset(path).map(str.upper))
      ['ONE']
    """

    def __init__(
        self,
        path: Paths,
        *,
        encoding: str = "utf-8",
        compression: str | None = "auto",
        cycle_length: int = 16,
    ) -> None:
        super().__init__()
        try:
            is_plain = "\n".encode(encoding) == b"\n"
        except LookupError:
            is_plain = False
        if not is_plain:
            raise errors.InvalidValueError(
                f"encoding={encoding!r} is not known, or one in which a line does not end with "
                'the byte 10. Write the files as "utf-8".'
            )
        self._read(TextFiles(encoding, paths.check_compression(compression)), path, cycle_length)
