"""Examples: records of `tf.train.Example`, read from their bytes without TensorFlow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from grain_jax._algebra.packing import Array
from grain_jax._values.errors import InvalidTypeError, InvalidValueError

__all__ = ["MalformedError", "ParseExample"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_KINDS = {_BYTES_LIST: "bytes", _FLOAT_LIST: "float32", _INT64_LIST: "int64"}


class MalformedError(InvalidValueError):
    """Bytes that are no `tf.train.Example`, or one that is not what was declared."""


@dataclasses.dataclass(frozen=True)
class _Feature:
    """What is declared of a feature; `shape` is None where its length varies."""

    shape: tuple[int, ...] | None
    dtype: Any
    default: Any = None


class ParseExample:
    r"""Makes a dict of arrays of the bytes of a `tf.train.Example`: for `map`, or a file stream.

    Args:
      features: what to read, by name: a dtype for values of any number (shape `(n,)`), or
        `(shape, dtype)`, or `(shape, dtype, default)` for one that may be missing, or anything with
        `shape` and `dtype`, as a `jax.ShapeDtypeStruct`. The dtype of text is `bytes`. None reads
        all that a record has, as int64, float32, or objects (bytes) of shape `(n,)`.

    What is declared with shape `()` is a scalar: of NumPy, or `bytes`.

    Raises:
      InvalidTypeError: for a declaration that is none of these.
      MalformedError: for bytes that are no example, or a feature that is missing, or of another
        kind or size, or with a value that its dtype does not hold.

    Example:
      >>> parse = ParseExample({"label": ((), np.int32)})
      >>> parse(b"\n\x10\n\x0e\n\x05label\x12\x05\x1a\x03\n\x01\x07")
      {'label': np.int32(7)}
    """

    def __init__(self, features: Mapping[str, Any] | None = None) -> None:
        self._features: dict[str, _Feature] | None = None
        if features is not None:
            if not isinstance(features, Mapping):
                raise InvalidTypeError(
                    f"features must be a mapping from names to dtypes or (shape, dtype), or None, "
                    f"got {features!r}."
                )
            self._features = {name: _declared(name, one) for name, one in features.items()}

    def __repr__(self) -> str:
        if self._features is None:
            return "ParseExample()"
        shown = ", ".join(
            f"{name!r}: ({one.shape}, {_name(one.dtype)})" for name, one in self._features.items()
        )
        return f"ParseExample({{{shown}}})"

    def __call__(self, record: bytes) -> dict[str, Any]:
        """Returns the features of one record."""
        if not isinstance(record, bytes):
            raise InvalidTypeError(f"a tf.train.Example is read from bytes, got {type(record)}.")
        wanted = self._features
        try:
            found = _features(record, wanted)
        except (IndexError, ValueError) as error:
            raise MalformedError(f"its bytes are no tf.train.Example: {error}") from None
        if wanted is None:
            return {name: _as_array(*part) for name, part in found.items()}
        return {name: _as_declared(name, one, found.get(name)) for name, one in wanted.items()}


def _name(dtype: Any) -> str:
    return "bytes" if dtype is bytes else str(np.dtype(dtype))


def _declared(name: str, given: Any) -> _Feature:
    shape: Any
    default = None
    if isinstance(given, tuple) and len(given) in (2, 3):
        shape, dtype, *rest = given
        default = rest[0] if rest else None
    elif hasattr(given, "shape") and hasattr(given, "dtype") and not isinstance(given, type):
        shape, dtype = (None, given) if isinstance(given, np.dtype) else (given.shape, given.dtype)
    else:
        shape, dtype = None, given
    try:
        chosen: Any = bytes if dtype in (bytes, object, str) else np.dtype(dtype)
        return _Feature(None if shape is None else tuple(map(int, shape)), chosen, default)
    except (TypeError, ValueError):
        raise InvalidTypeError(
            f"the feature {name!r} is declared as {given!r}; write a dtype, (shape, dtype) or "
            "(shape, dtype, default)."
        ) from None


def _features(record: bytes, wanted: Mapping[str, Any] | None) -> dict[str, tuple[int, list[Any]]]:
    """Returns the kind of each feature and its parts, not decoded; the last of one name counts."""
    found: dict[str, tuple[int, list[Any]]] = {}
    for number, features in _fields(record):
        if number != 1:
            continue
        for inner, entry in _fields(features):
            if inner != 1:
                continue
            name, feature = "", b""
            for part, value in _fields(entry):
                if part == 1:
                    name = bytes(value).decode()
                elif part == 2:
                    feature = value
            if wanted is not None and name not in wanted:
                continue
            kind = 0
            values: list[Any] = []
            for number_of_kind, data in _fields(feature):
                kind = number_of_kind
                values = [value for part, value in _fields(data) if part == 1]
            if kind in _KINDS:
                found[name] = kind, values
    return found


def _fields(data: Any) -> Iterator[tuple[int, Any]]:
    """Yields the fields of a message: bytes of a part, or of a number as it is stored."""
    at, end = 0, len(data)
    while at < end:
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind == _VARINT:
            _, after = _varint(data, at)
            size = after - at
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"there is no wire type {kind}")
        if at + size > end:
            raise ValueError("a field is longer than what it is part of")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: Any, at: int) -> tuple[int, int]:
    value = data[at]
    if value < 128:
        return value, at + 1
    value &= 127
    for shift in range(7, 70, 7):
        at += 1
        byte = data[at]
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at + 1
    raise ValueError("a number is longer than ten bytes")


def _as_array(kind: int, parts: list[Any]) -> Array:
    if kind == _BYTES_LIST:
        objects = np.empty(len(parts), object)
        objects[:] = parts
        return objects
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    if kind == _FLOAT_LIST:
        if len(data) % 4:
            raise MalformedError("its bytes are no tf.train.Example: a list of floats is cut off")
        return np.frombuffer(data, "<f4").astype(np.float32)
    return _integers(data)


def _integers(data: bytes) -> Array:
    """Decodes varints side by side."""
    raw = np.frombuffer(data, np.uint8)
    if not raw.size or raw.max() < 128:
        return raw.astype(np.int64)
    ends = np.flatnonzero(raw < 128) + 1
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]])
    if not ends.size or ends[-1] != raw.size or (ends - begins).max() > 10:
        raise MalformedError("its bytes are no tf.train.Example: a list of integers is cut off")
    places = np.arange(raw.size) - np.repeat(begins, ends - begins)
    bits = (raw & 127).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.bitwise_or.reduceat(bits, begins).view(np.int64)


def _as_declared(name: str, declared: _Feature, found: tuple[int, list[Any]] | None) -> Any:
    if found is None or (not found[1] and declared.default is not None):
        if declared.default is None:
            raise MalformedError(
                f"it has no feature {name!r}; write (shape, dtype, default) for one that may be "
                "missing"
            )
        return _default(declared)
    kind, parts = found
    expected = _kind_of(declared.dtype)
    if kind != expected:
        raise MalformedError(
            f"its feature {name!r} has values of kind {_KINDS[kind]}, and {_name(declared.dtype)} "
            "was declared"
        )
    values = _as_array(kind, parts)
    if declared.dtype is not bytes:
        values = _cast(name, values, declared.dtype)
    shape = declared.shape
    if shape is None:
        return values
    if math.prod(shape) != values.size:
        raise MalformedError(
            f"its feature {name!r} has {values.size} values, and the shape {shape} was declared"
        )
    return values[0] if shape == () else values.reshape(shape)


def _kind_of(dtype: Any) -> int:
    if dtype is bytes:
        return _BYTES_LIST
    return _INT64_LIST if dtype.kind in "iub" else _FLOAT_LIST


def _cast(name: str, values: Array, dtype: Any) -> Array:
    cast = values.astype(dtype)
    if values.dtype.kind == "i" and cast.dtype != values.dtype:
        wrong = np.flatnonzero((cast.astype(np.int64) != values) | ((cast < 0) != (values < 0)))
        if wrong.size:
            raise MalformedError(
                f"its feature {name!r} has the value {values[wrong[0]]}, which {dtype} does not "
                "hold"
            )
    return cast


def _default(declared: _Feature) -> Any:
    shape = declared.shape or ()
    if declared.dtype is bytes:
        if declared.shape == ():
            return declared.default
        value: Array = np.empty(shape or np.shape(declared.default), object)
        value[...] = declared.default
        return value
    filled = np.broadcast_to(np.asarray(declared.default, declared.dtype), shape).copy()
    if declared.shape is None:
        return np.atleast_1d(np.asarray(declared.default, declared.dtype))
    return filled[()] if declared.shape == () else filled
