"""The pipeline on its way to the workers: one memory file, large buffers beside the pickle."""

from __future__ import annotations

import functools
import io
import mmap
import os
import pickle
import struct
import traceback
import types
from collections.abc import Sequence
from typing import Any

import cloudpickle
import numpy as np

from grain_jax._algebra import handles, reach, sentinels
from grain_jax._execution.engine import (
    arena,
    classes,
    culprit,
    imports,
    locations,
    namesakes,
    namespaces,
    observer,
    overlaps,
    registrations,
    wire,
    wrappers,
)
from grain_jax._values import arrays, faults
from grain_jax._values.errors import InvalidTypeError

__all__ = ["Parcel", "pack"]

_LARGE = 1 << 20  # bytes; smaller buffers travel inside the pickle
_MOST = 16 << 20  # bytes of a global that code may look up, and does not name
_HEAD = struct.Struct("<QQQ")  # lengths of the settings, the places of buffers, the pickle


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc, unused-ignore]
    """Notes what travels by value and which modules are named, and keeps large buffers apart."""

    def __init__(self, file: io.BytesIO, before: overlaps.Found | None = None) -> None:
        self.file = file
        self.overlaps = overlaps.Overlaps(before)
        self.by_value: list[Any] = []
        self.code: list[Any] = []  # all functions that travel by value
        self.named: list[Any] = []  # functions, classes and modules that do not
        self.modules: dict[str, None] = {}  # in the order of their first use
        self.large: list[memoryview] = []
        self.scripts: list[dict[str, Any]] = []  # globals of those that are there as modules
        self.complete: set[int] = set()  # globals of which all travel, with no function's own
        cloudpickle.Pickler.__init__(self, file, 5, functools.partial(_keep, self.large))

    def reducer_override(self, obj: Any) -> Any:
        reduced = _reduce(obj)
        if reduced is not None:
            return reduced
        reduced = sentinels.reduce(obj)
        if reduced is not None:
            self.named.append(type(obj))  # its methods may be called
            return reduced
        if type(obj) is types.ModuleType:
            namesakes.check(obj)
            if namespaces.is_script(obj):
                self.scripts.append(vars(obj))
                return namespaces.module_of, (self._globals(vars(obj)),)
            self.named.append(obj)
        view = self.overlaps.reduce(obj)
        if view is not None:
            return view
        if type(obj) is np.ndarray:
            swapped = arrays.reduce_swapped(obj)
            if swapped is None:
                return NotImplemented
            self.overlaps.leave_out(swapped[1][0])
            return swapped
        if isinstance(obj, types.CodeType):
            # cloudpickle leaves out the file name, and an error shall say where the user's code is.
            make, args, *rest = cloudpickle.Pickler.dispatch_table[types.CodeType](obj)
            return make, tuple(map(functools.partial(_with_file, obj), args)), *rest
        if isinstance(obj, types.FunctionType):
            self._globals(obj.__globals__)
        reduced = cloudpickle.Pickler.reducer_override(self, obj)
        if isinstance(reduced, tuple) and len(reduced) > 2:
            if isinstance(obj, type):
                reduced = classes.completed(obj, reduced)
            closed = isinstance(obj, types.FunctionType) and obj.__closure__
            if isinstance(obj, type | types.FunctionType) and not closed:
                self.by_value.append(obj)
            if isinstance(obj, types.FunctionType):
                self.code.append(obj)
                if id(obj.__globals__) in self.complete:
                    reduced[2][1].update(__globals__={}, _cloudpickle_submodules=[])
        elif name := imports.module_of(obj):
            self.modules[name] = None
            self.named.append(obj)
        return reduced

    def _globals(self, scope: dict[str, Any]) -> dict[str, Any]:
        known: dict[str, Any] | None = self.globals_ref.get(id(scope))
        if known is None:
            known = self.globals_ref[id(scope)] = namespaces.of(scope)
        return known

    def dump_names(self, functions: Sequence[types.FunctionType] | None = None) -> None:
        """Writes the globals that code looks up by their names as it runs.

        Args:
            functions: of modules, that what was written can call; None where more is to come.
        """
        found, pickled = namespaces.searched(self.code, functions or ())
        found += self.scripts
        parts: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        if functions is not None:
            self.complete = set(map(id, found))
        for scope in found:
            code = [one.__code__ for one in self.code if one.__globals__ is scope]
            there = set().union(*map(cloudpickle.cloudpickle._extract_code_globals, code))
            parts.append((scope, namespaces.sent(scope, there, self._try_out)))
        for scope in pickled:
            parts.append((scope, namespaces.named(scope, [*self.by_value, *self.code])))
        self.dump([namespaces.Sent(self._globals(scope), values) for scope, values in parts])
        self.complete = set()

    def _try_out(self, value: Any) -> tuple[str, list[str]]:
        """Says why a value does not travel with the pipeline, or "", and what it would import."""
        trial = _Pickler(_Limited())
        trial.complete = self.complete
        try:
            trial.dump(value)
        except _LargeError:
            return "it is large", []
        except Exception as error:
            return f"it does not pickle ({type(error).__name__}: {error})", []
        if sum(one.nbytes for one in trial.large) > _MOST:
            return "it is large", []
        for one in trial.by_value:
            if isinstance(one, type) and not reach.is_users(one.__module__):
                return f"its class {one.__qualname__} does not pickle", []
        return "", [name for name in trial.modules if name not in self.modules]


class _LargeError(Exception):
    pass


class _Limited(io.BytesIO):
    """Takes no more than is sent without having been named."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > _MOST:
            raise _LargeError
        return super().write(data)


def _with_file(code: types.CodeType, argument: Any) -> Any:
    is_left_out = type(argument) is str and argument == "<dynamic-code>"
    return code.co_filename if is_left_out else argument


def _reduce(obj: Any) -> Any:
    for way in (handles.reduce, wrappers.reduce, classes.reduce):
        reduced = way(obj)
        if reduced is not None:
            return reduced
    return None


def _keep(large: list[memoryview], buffer: pickle.PickleBuffer) -> bool:
    raw = buffer.raw()
    if raw.nbytes < _LARGE:
        return True
    large.append(raw)
    return False


def pack(
    program: Any, init: Any, settings: dict[str, Any], token: str, ignored: Sequence[str] = ()
) -> tuple[int, wire.Registry, tuple[str, ...]]:
    """Writes a program to a memory file.

    Args:
        program: whatever the workers are to run.
        init: what is loaded before the program, and by itself.
        settings: plain values for the helper, readable without loading the program.
        token: the name of the registry, unique in the trainer.
        ignored: what is not compared; see `observer.observe`.

    Returns:
        The descriptor of the file, the registry of what the script defines, and the modules that
        loading imports.

    Raises:
        InvalidTypeError: part of the program does not pickle; the text names it. What the user's
            own code raises as it is pickled is raised as itself, with that in its notes.
        InvalidValueError: the pipeline's code has a module that is not the one of its name.
    """
    pickler, body, observed, by_value, nodes = _pickled(program, init, ignored)
    modules = (*pickler.modules, *(["jax.tree_util"] if nodes else []))
    apart = pickle.dumps(observed, 5)  # for the workers alone
    more = {"token": token, "modules": modules, "locations": locations.find(), "observed": apart}
    plain = pickle.dumps({**settings, **more}, 5)
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
        front = head + plain + index
        _write(descriptor, 0, front)
        _write(descriptor, len(front), body)
        for (offset, _), raw in zip(places, pickler.large, strict=True):
            _write(descriptor, start + offset, raw)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, wire.Registry(token, by_value), modules


def _pickled(
    program: Any, init: Any, ignored: Sequence[str]
) -> tuple[_Pickler, memoryview, Any, list[Any], list[registrations.Registration]]:
    """Returns all that workers load, and what was met as it was pickled."""
    pickler = _Pickler(io.BytesIO())
    made = _dump_all(pickler, program, init, ignored)
    found = pickler.overlaps.found(pickler.memo.copy)
    if found is not None:
        pickler = _Pickler(io.BytesIO(), found)
        made = _dump_all(pickler, program, init, ignored)
    return pickler, pickler.file.getbuffer(), *made


def _dump_all(
    pickler: _Pickler, program: Any, init: Any, ignored: Sequence[str]
) -> tuple[Any, list[Any], list[registrations.Registration]]:
    with locations.by_value():
        _dump(pickler, init, "worker_init_fn")
        pickler.dump_names()
        first = [*pickler.named, *pickler.code]
        _dump(pickler, program, "the pipeline")
        observed, functions = observer.observe(pickler.named, pickler.code, first, ignored)
        sent = len(pickler.code), len(pickler.named)
        pickler.dump_names(functions)
        if sent != (len(pickler.code), len(pickler.named)):
            observed, _ = observer.observe(pickler.named, pickler.code, first, ignored)
        known = [*functions, *pickler.code]
        _dump(pickler, classes.families(known, pickler.by_value), "a class of the script")
        nodes = registrations.read(pickler.by_value, pickler.named)
        for one in nodes:
            _dump(pickler, one, f"how {one.kind.__qualname__} is registered with jax.tree_util")
        pickler.dump(None)
        by_value = list(pickler.by_value)
        pickler.dump(by_value)
    return observed, by_value, nodes


def _dump(pickler: _Pickler, part: Any, name: str) -> None:
    try:
        pickler.dump(part)
    except namesakes.NamesakeError:
        raise
    except Exception as error:
        what = culprit.describe(part, reduce=_reduce)
        text = f"{name} cannot be sent to worker processes: {what}"
        remedy = (
            "Make it inside the function that uses it, at its first use there, and leave it out of"
            " what is pickled (__getstate__), or use worker_count=0."
        )
        where = faults.place(traceback.extract_tb(error.__traceback__))
        if not where:
            raise InvalidTypeError(f"{text}: {error}. {remedy}") from error
        faults.add_note(error, f"{text}\n  {where}\n{remedy}")
        faults.mark_told(error)
        raise


def _buffers_start(*lengths: int) -> int:
    return -(-(_HEAD.size + sum(lengths)) // mmap.PAGESIZE) * mmap.PAGESIZE


def _write(descriptor: int, offset: int, data: bytes | memoryview) -> None:
    view = memoryview(data).cast("B")
    while view:
        written = os.pwrite(descriptor, view[: 1 << 30], offset)
        view, offset = view[written:], offset + written


def _read(descriptor: int, offset: int, size: int) -> bytes:
    parts = []
    while size:  # the system reads 2 GiB at once at most
        parts.append(os.pread(descriptor, min(size, 1 << 30), offset))
        offset, size = offset + len(parts[-1]), size - len(parts[-1])
    return b"".join(parts)


class Parcel:
    """A parcel in the process that loads it.

    Large arrays lie on the file itself, shared between all workers until one writes to them.
    """

    def __init__(self, descriptor: int, token: str) -> None:
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
        file = io.BytesIO(_read(descriptor, at + index, body))
        self._token = token
        self._unpickler = pickle.Unpickler(file, buffers=buffers)

    def load_init(self) -> Any:
        """Loads what comes before the program; once, and first."""
        init = self._unpickler.load()
        namespaces.install(self._unpickler.load())
        return init

    def load_program(self) -> tuple[Any, wire.Registry]:
        """Loads the program, once."""
        program = self._unpickler.load()
        namespaces.install(self._unpickler.load())
        classes.arrange(self._unpickler.load())
        registrations.apply(iter(self._unpickler.load, None))
        return program, wire.Registry(self._token, self._unpickler.load())
