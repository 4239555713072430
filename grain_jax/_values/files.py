"""Files that hold states: one for each process, in one directory of a checkpoint.

A file is `process_<index>-of-<count>.json` and holds one JSON value. It is written whole or not at
all, and read as data only: nothing in it is executed, unpickled or used as a path.

A state that says `"elastic": true` is the same on every process, so that any one file restores any
number of processes; the others are checked for equality. Every other state belongs to one process
of one count. Where it has a number in `"joined"`, those of all processes together say where any of
another number of them goes on. Where every process loads everything, as on a mesh whose model axis
spans them, their states are of one shard, and equal: any one restores, as an elastic one does.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import re
import secrets
import stat
from collections.abc import Mapping
from typing import Any

from grain_jax._values.errors import InvalidValueError, StateError

__all__ = [
    "JOINT",
    "StatePath",
    "file_name",
    "is_joint",
    "read_all_states",
    "read_state",
    "write_state",
]

JOINT = "processes"
"""The key of a joint state, which holds the states of all processes in a list."""

StatePath = str | os.PathLike[str]

_FILE_NAME = re.compile(r"process_([0-9]{1,9})-of-([0-9]{1,9})\.json")

# Up to this many files, each process compares all of them. Beyond it the processes share the
# comparison: thousands of processes that read thousands of files would be a load of its own.
_COMPARED_BY_EACH = 64


def file_name(index: int, count: int) -> str:
    """Returns the name of the file that holds the state of process `index` of `count`.

    Example:
      >>> file_name(0, 2)
      'process_0-of-2.json'
    """
    if not 0 <= index < count:
        raise InvalidValueError(
            f"process index {index} of {count} cannot be: an index runs from 0 to count - 1"
        )
    return f"process_{index}-of-{count}.json"


def write_state(directory: StatePath, index: int, count: int, state: bytes) -> None:
    """Writes the state of process `index` of `count`; a crash leaves the old file or the new one.

    Args:
      directory: an existing directory: a local path, or an `epath.Path` or URL of a remote store.
      index: the index of this process.
      count: the number of processes.
      state: JSON text in UTF-8.
    """
    name = file_name(index, count)
    if _is_remote(directory):
        # An object store shows an object once its upload is complete, and a rename there is a copy.
        (_remote(directory) / name).write_bytes(state)
        return
    folder = os.fspath(directory)
    # The suffix is random so that two writers of one file never share a temporary one.
    draft = os.path.join(folder, f".{name}.{secrets.token_hex(8)}.tmp")
    try:
        _write_durably(draft, state)
        os.replace(draft, os.path.join(folder, name))
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        if isinstance(error, OSError):
            error.add_note(f"{name} could not be written to {folder}; what was there is as it was.")
        raise
    _sync_directory(folder)


def read_state(directory: StatePath, index: int, count: int) -> bytes:
    """Returns the state that process `index` of `count` continues from.

    Args:
      directory: the directory that `write_state` was given.
      index: the index of this process.
      count: the number of processes now, which may differ from that of the save.

    Returns:
      JSON text: the file exactly as it was written, or what `read_all_states` returns.

    Raises:
      StateError: if the file that is needed is missing or damaged, belongs to another number of
        processes, or differs from the files that it should equal.
    """
    own = file_name(index, count)
    names = _state_files(directory)
    if own in names:
        source = own
    elif names:
        # A neighbour of this count comes first: if it is not elastic, a file is missing, and
        # to speak of another number of processes would send the reader the wrong way.
        source = min(names, key=lambda name: (names[name][1] != count, names[name]))
    else:
        raise StateError(
            f"{own} is missing in {os.fspath(directory)}, and so is the state of any other process:"
            " no iterator was saved there. Give the directory of an item that was saved with"
            " CheckpointSave."
        )
    state = _read(directory, source)
    value = _parse(directory, source, state)
    if _is_elastic(value) or (source != own and _is_of_one_shard(value)):
        others = sorted(names.keys() - {source}, key=lambda name: (names[name][1], names[name][0]))
        if len(others) > _COMPARED_BY_EACH:
            others = [others[0], *others[1:][index::count]]
        for other in others:
            _check_equal(directory, source, value, other, is_own=source == own)
    elif source != own:
        if names[source][1] != count and _may_join(value):
            return read_all_states(directory)
        raise _refusal(directory, own, count, names)
    return state


def read_all_states(directory: StatePath) -> bytes:
    """Returns the states of all processes as one: JSON text of `{"processes": [...]}`.

    Raises:
      StateError: if one is missing or damaged, or the directory has those of several saves.
    """
    names = _state_files(directory)
    counts = sorted({count for _, count in names.values()})
    where = os.fspath(directory)
    if len(counts) != 1:
        raise StateError(
            f"{where} has the files of {' and of '.join(map(_processes, counts)) or 'no process'},"
            " and one save writes those of one number: two saves share the directory. Restore"
            " another step of the checkpoint."
        )
    wanted = map(file_name, range(counts[0]), itertools.repeat(counts[0]))
    # A name may say any number: the first that is missing is soon found.
    missing = next((name for name in wanted if name not in names), None)
    if missing is not None:
        raise StateError(
            f"{missing} is missing in {where}, and the files of all processes are needed, since"
            " each of these states knows its own shard alone. Restore another step of the"
            " checkpoint."
        )
    values = [
        _parse(directory, n, _read(directory, n)) for n in sorted(names, key=names.__getitem__)
    ]
    return json.dumps({JOINT: values}).encode()


def is_joint(state: Any) -> bool:
    """Whether a value is the states of all processes together."""
    return isinstance(state, Mapping) and state.keys() == {JOINT}


def _is_remote(directory: StatePath) -> bool:
    return "://" in os.fspath(directory)


def _remote(directory: StatePath) -> Any:
    from etils import epath

    return epath.Path(directory)


def _write_durably(path: str, state: bytes) -> None:
    # `os.open` with 0o666 leaves the permissions to the user's umask, as for any other file.
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
        file.write(state)
        file.flush()
        _fsync(file.fileno())


def _sync_directory(folder: str) -> None:
    """Makes the rename itself survive a power cut, where directories can be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        _fsync(descriptor)
    finally:
        os.close(descriptor)


def _fsync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network and user-space file systems have no fsync; they say so in one of these.
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EBADF):
            raise


def _state_files(directory: StatePath) -> dict[str, tuple[int, int]]:
    """Returns the names of the state files in a directory, each with its (index, count)."""
    try:
        if _is_remote(directory):
            listed = [path.name for path in _remote(directory).iterdir()]
        else:
            listed = os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StateError(
            f"{os.fspath(directory)} is no directory, so no state can be read from it."
            " Give the directory of an item that was saved with CheckpointSave."
        ) from error
    names = {}
    for name in listed:
        match = _FILE_NAME.fullmatch(name)
        if match is not None:
            index, count = int(match[1]), int(match[2])
            if index < count and name == file_name(index, count):
                names[name] = (index, count)
    return names


def _read(directory: StatePath, name: str) -> bytes:
    if _is_remote(directory):
        content: bytes = (_remote(directory) / name).read_bytes()
        return content
    # A pipe of that name would wait for somebody to write to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(os.path.join(os.fspath(directory), name), flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _is_no_state(directory, name, f"cannot be read ({error.strerror})") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _is_no_state(directory, name, "is no plain file")
    with open(descriptor, "rb") as file:
        return file.read()


def _parse(directory: StatePath, name: str, state: bytes) -> Any:
    try:
        return json.loads(state.decode("utf-8"))
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text (byte {error.start} of {len(state)})"
    except json.JSONDecodeError as error:
        problem = f"is cut short, or is no JSON ({error}; the file has {len(state)} bytes)"
    except (ValueError, RecursionError) as error:  # a number or a nesting beyond all measure
        problem = f"is not a state ({error})"
    raise _is_no_state(directory, name, problem)


def _is_no_state(directory: StatePath, name: str, problem: str) -> StateError:
    return StateError(
        f"{name} in {os.fspath(directory)} {problem}. The file was damaged after it was written,"
        " or something else wrote it: restore another step of the checkpoint."
    )


def _is_elastic(value: Any) -> bool:
    return isinstance(value, dict) and value.get("elastic") is True


def _is_of_one_shard(value: Any) -> bool:
    """Whether this process loaded everything, so that the others were to load the same."""
    one = [0, 1]
    return isinstance(value, dict) and value.get("shard") == value.get("sampler_shard") == one


def _is_counted(value: Any) -> bool:
    """Whether a process of an elastic stream has met a record that is absent."""
    return isinstance(value, dict) and value.get("elastic") is False and value.get("sparse") is True


def _may_join(value: Any) -> bool:
    return isinstance(value, dict) and type(value.get("joined")) is int


def _check_equal(
    directory: StatePath, name: str, value: Any, other: str, *, is_own: bool = False
) -> None:
    other_value = _parse(directory, other, _read(directory, other))
    if other_value == value or (is_own and _is_counted(other_value)):
        return
    if _is_counted(other_value):
        raise StateError(
            f"{other} in {os.fspath(directory)} is that of a process that met an absent record, and"
            " has counted for itself since then. Restore with as many processes as saved it."
        )
    if isinstance(other_value, dict):
        keys = sorted(
            key for key in value.keys() | other_value.keys() if _differ(value, other_value, key)
        )
        text = "; ".join(
            f"{key}: {_text(value, key)} and {_text(other_value, key)}" for key in keys
        )
    else:
        text = "the second is no JSON object"
    raise StateError(
        f"{name} and {other} in {os.fspath(directory)} differ ({text}), and {_kind(value)} is the"
        " same on every process: the processes were at different steps when they saved, or two"
        " saves share the directory. Restore another step of the checkpoint."
    )


def _kind(value: Any) -> str:
    return "an elastic state" if _is_elastic(value) else "the state of the only shard"


def _differ(value: dict[str, Any], other: dict[str, Any], key: str) -> bool:
    return key not in value or key not in other or value[key] != other[key]


def _text(value: dict[str, Any], key: str) -> str:
    if key not in value:
        return "absent"
    text = json.dumps(value[key])
    return text if len(text) <= 80 else text[:77] + "..."


def _refusal(
    directory: StatePath, own: str, count: int, names: dict[str, tuple[int, int]]
) -> StateError:
    counts = sorted({count_of for _, count_of in names.values()})
    found = ", ".join(sorted(names)[:8]) + (", ..." if len(names) > 8 else "")
    if count in counts:
        return StateError(
            f"{own} is missing in {os.fspath(directory)}, which has {found}. Each of these states"
            " belongs to its own process, so the missing one cannot be made from the others:"
            " restore another step of the checkpoint."
        )
    was = " or ".join(_processes(number) for number in counts)
    return StateError(
        f"{own} is missing in {os.fspath(directory)}: the checkpoint was written by {was} ({found})"
        f" and {_processes(count)} would restore it. These states are tied to the shard that they"
        f" were taken on. Restore with {was}. States restore on other numbers where shard_options"
        " are given to the loader, or to shard of a dataset, lanes are not, and records go into one"
        " batch without an Operation of your own."
    )


def _processes(count: int) -> str:
    return f"{count} process" if count == 1 else f"{count} processes"
