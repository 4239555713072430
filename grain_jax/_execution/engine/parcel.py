"""The pipeline on its way to the workers: one memory file, large buffers beside the pickle."""

from __future__ import annotations

import functools
import io
import mmap
import os
import pickle
import struct
import types
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle

from grain_jax._execution.engine import arena, wire
from grain_jax._values.errors import InvalidTypeError

__all__ = ["pack", "unpack"]

_LARGE = 1 << 20  # bytes; smaller buffers travel inside the pickle
_HEAD = struct.Struct("<QQQ")  # lengths of the settings, the places of buffers, the pickle


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Notes every class and function that travels by value, and keeps large buffers apart."""

    def __init__(self, file: io.BytesIO) -> None:
        self.by_value: list[Any] = []
        self.large: list[memoryview] = []
        cloudpickle.Pickler.__init__(self, file, 5, functools.partial(_keep, self.large))

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            # cloudpickle leaves out the file name, and an error shall say where the user's code is.
            make, args, *rest = cloudpickle.Pickler.dispatch_table[types.CodeType](obj)
            return make, tuple(obj.co_filename if a == "<dynamic-code>" else a for a in args), *rest
        reduced = cloudpickle.Pickler.reducer_override(self, obj)
        if isinstance(reduced, tuple) and len(reduced) > 2:
            closed = isinstance(obj, types.FunctionType) and obj.__closure__
            if isinstance(obj, type | types.FunctionType) and not closed:
                self.by_value.append(obj)
        return reduced


def _keep(large: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    raw = buffer.raw()
    if raw.nbytes < _LARGE:
        return True
    large.append(raw)
    return False


def pack(program: Any, settings: dict[str, Any], token: str) -> tuple[int, wire.Registry]:
    """Writes a program to a memory file.

    Args:
        program: whatever the workers are to run.
        settings: plain values for the helper, readable without loading the program.
        token: the name of the registry, unique in the trainer.

    Returns:
        The descriptor of the file, and the registry of what the script defines.

    Raises:
        InvalidTypeError: part of the program does not pickle; the text names it.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(program)
        by_value = list(pickler.by_value)
        pickler.dump(by_value)
    except Exception as error:
        raise InvalidTypeError(_explain(program, error)) from error
    body = file.getbuffer()
    plain = pickle.dumps({**settings, "token": token}, 5)
    places, at = [], 0
    for raw in pickler.large:
        places.append((at, raw.nbytes))
        at += -(-raw.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    index = pickle.dumps(places, 5)
    head = _HEAD.pack(len(plain), len(index), len(body))
    start = _buffers_start(len(plain), len(index), len(body))
    descriptor, on_disk = arena.memory_file("grain_jax_pipeline")
    try:
        os.ftruncate(descriptor, start + max(at, 1))
        if on_disk:
            arena.reserve(descriptor, 0, start + at)
        _write(descriptor, 0, b"".join((head, plain, index, body)))
        for (offset, _), raw in zip(places, pickler.large, strict=True):
            _write(descriptor, start + offset, raw)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, wire.Registry(token, by_value)


def _buffers_start(*lengths: int) -> int:
    return -(-(_HEAD.size + sum(lengths)) // mmap.PAGESIZE) * mmap.PAGESIZE


def _write(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view[: 1 << 30], offset)
        view, offset = view[written:], offset + written


def unpack(descriptor: int, token: str) -> tuple[Any, wire.Registry]:
    """Loads the program of a parcel.

    Large arrays lie on the file itself, shared between all workers until one writes to them.
    """
    lengths = _HEAD.unpack(os.pread(descriptor, _HEAD.size, 0))
    plain, index, body = lengths
    at = _HEAD.size + plain
    places = pickle.loads(os.pread(descriptor, index, at))
    start = _buffers_start(*lengths)
    buffers: list[Any] = []
    if places:
        size = start + places[-1][0] + places[-1][1]
        memory = arena.memory_over(arena.map_file(descriptor, 0, size, private=True), size)
        for offset, length in places:
            buffers.append(memory.data[start + offset : start + offset + length])
    file = io.BytesIO(os.pread(descriptor, body, at + index))
    unpickler = pickle.Unpickler(file, buffers=buffers)
    program = unpickler.load()
    return program, wire.Registry(token, unpickler.load())


def _pickles(value: Any) -> bool:
    try:
        _Pickler(io.BytesIO()).dump(value)
    except Exception:
        return False
    return True


def _function_parts(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f"the variable `{name}` of {function.__qualname__}", cell.cell_contents
        except ValueError:
            continue
    for name in code.co_names:
        if name in function.__globals__:
            yield f"the global `{name}` of {function.__qualname__}", function.__globals__[name]
    for default in function.__defaults__ or ():
        yield f"a default argument of {function.__qualname__}", default


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield f"[{key!r}]", item
    elif isinstance(value, list | tuple | set | frozenset):
        for number, item in enumerate(value):
            yield f"[{number}]", item
    elif isinstance(value, types.FunctionType):
        yield from _function_parts(value)
    elif isinstance(value, types.MethodType):
        yield "the object of the method", value.__self__
        yield "its function", value.__func__
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield "a part of the partial", part
    elif isinstance(value, type):
        for name, item in vars(value).items():
            yield f"{value.__name__}.{name}", item
    else:
        for name, item in getattr(value, "__dict__", {}).items():
            yield f".{name}", item
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    yield f".{name}", getattr(value, name)


def _find(value: Any) -> tuple[list[tuple[str, Any]], Any]:
    path: list[tuple[str, Any]] = []
    seen: set[int] = set()
    while len(path) < 30:
        seen.add(id(value))
        for name, part in _parts(value):
            if id(part) not in seen and not _pickles(part):
                path.append((name, part))
                value = part
                break
        else:
            break
    return path, value


def _explain(program: Any, error: BaseException) -> str:
    path, culprit = _find(program)
    steps = [_name(part) for _, part in path if _is_step(part)]
    where = path[-1][0] if path else "it"
    if where.startswith((".", "[")) and len(path) > 1:
        where = f"{where.lstrip('.')} of {_name(path[-2][1])}"
    inside = f" (inside {steps[-1]})" if steps and steps[-1] != _name(culprit) else ""
    kind = type(culprit)
    return (
        f"the pipeline cannot be sent to worker processes: {where.lstrip('.')} is a "
        f"{kind.__module__}.{kind.__qualname__}, which does not pickle{inside}: {error}. Make it "
        "inside the function that uses it, on first use, or use worker_count=0."
    )


def _is_step(part: Any) -> bool:
    named: Callable[..., bool] = callable
    return named(part) or type(part).__module__ == "__main__"


def _name(part: Any) -> str:
    name = getattr(part, "__qualname__", None)
    return str(name) if name else f"a {type(part).__qualname__}"
