from __future__ import annotations

import errno
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from etils import epath

from grain_jax._values import files
from grain_jax._values.errors import InvalidValueError, StateError
from grain_jax._values.files import file_name, read_state, write_state

ROOT = Path(__file__).resolve().parents[2]


def own(position: int) -> bytes:
    """A state that belongs to one process."""
    return json.dumps({"position": position}).encode()


def elastic(position: int) -> bytes:
    return json.dumps({"elastic": True, "position": position}).encode()


def refusal(directory: Any, index: int, count: int) -> str:
    with pytest.raises(StateError) as caught:
        read_state(directory, index, count)
    assert isinstance(caught.value, ValueError)
    return str(caught.value)


# Names


def test_a_file_is_named_by_index_and_count() -> None:
    assert file_name(3, 16) == "process_3-of-16.json"


@pytest.mark.parametrize(("index", "count"), [(2, 2), (-1, 2), (0, 0)])
def test_an_index_outside_the_count_is_refused(index: int, count: int) -> None:
    with pytest.raises(InvalidValueError, match=f"process index {index} of {count} cannot be"):
        file_name(index, count)


# Writing


def test_what_was_written_is_read_byte_for_byte(tmp_path: Path) -> None:
    state = '{ "name":\n "Käse" }'.encode()
    write_state(tmp_path, 0, 1, state)
    assert read_state(tmp_path, 0, 1) == state
    assert [path.name for path in tmp_path.iterdir()] == ["process_0-of-1.json"]


@pytest.mark.parametrize("kind", [str, Path, epath.Path])
def test_every_kind_of_local_path_works(tmp_path: Path, kind: Any) -> None:
    write_state(kind(os.fspath(tmp_path)), 1, 2, own(4))
    assert read_state(kind(os.fspath(tmp_path)), 1, 2) == own(4)


def test_a_file_has_the_permissions_of_any_other(tmp_path: Path) -> None:
    write_state(tmp_path, 0, 1, own(0))
    (tmp_path / "other").write_bytes(b"")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_an_interrupted_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    write_state(tmp_path, 0, 1, own(1))

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, "the disk went away")

    if broken == "write":
        monkeypatch.setattr(files, "_write_durably", fail)
    else:
        monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="the disk went away") as caught:
        write_state(tmp_path, 0, 1, own(2))
    monkeypatch.undo()
    (note,) = caught.value.__notes__
    assert f"process_0-of-1.json could not be written to {tmp_path}" in note
    assert read_state(tmp_path, 0, 1) == own(1)
    assert [path.name for path in tmp_path.iterdir()] == ["process_0-of-1.json"]


KILLED_BEFORE_THE_RENAME = """
import os, signal, sys
from grain_jax._values import files
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
files.write_state(sys.argv[1], 0, 1, b"new")
"""


def test_a_process_killed_while_it_writes_leaves_the_old_file(tmp_path: Path) -> None:
    write_state(tmp_path, 0, 1, own(1))
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_BEFORE_THE_RENAME, tmp_path], cwd=ROOT, timeout=200
    )
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2  # its draft is still there, and does no harm
    assert read_state(tmp_path, 0, 1) == own(1)
    write_state(tmp_path, 0, 1, own(3))
    assert read_state(tmp_path, 0, 1) == own(3)


def test_a_file_system_without_fsync_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(_: int) -> None:
        raise OSError(errno.ENOTSUP, "not supported")

    monkeypatch.setattr(os, "fsync", unsupported)
    write_state(tmp_path, 0, 1, own(5))
    assert read_state(tmp_path, 0, 1) == own(5)


def test_writing_makes_no_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_state(tmp_path / "missing", 0, 1, own(0))


# A remote store


class Bucket(PurePosixPath):
    """The part of a remote path that state files need; objects live in a dict."""

    objects: dict[str, bytes] = {}  # noqa: RUF012

    def __fspath__(self) -> str:
        return str(self).replace("bucket:/", "bucket://", 1)

    def write_bytes(self, content: bytes) -> None:
        self.objects[os.fspath(self)] = content

    def read_bytes(self) -> bytes:
        return self.objects[os.fspath(self)]

    def iterdir(self) -> Iterator[Bucket]:
        prefix = os.fspath(self) + "/"
        names = [name for name in self.objects if name.startswith(prefix)]
        if not names:
            raise FileNotFoundError(prefix)
        return (Bucket(name) for name in names)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    monkeypatch.setattr(Bucket, "objects", {})
    monkeypatch.setattr(epath, "Path", Bucket)
    return Bucket("bucket://run/step")


@pytest.mark.parametrize("kind", [str, Bucket])
def test_a_remote_store_gets_one_object_and_no_rename(bucket: Bucket, kind: Any) -> None:
    directory = bucket if kind is Bucket else os.fspath(bucket)
    write_state(directory, 0, 2, elastic(3))
    write_state(directory, 1, 2, elastic(3))
    assert sorted(Bucket.objects) == [
        "bucket://run/step/process_0-of-2.json",
        "bucket://run/step/process_1-of-2.json",
    ]
    assert read_state(directory, 2, 3) == elastic(3)


def test_a_missing_remote_directory_is_named(bucket: Bucket) -> None:
    assert "bucket://run/step is no directory" in refusal(bucket, 0, 1)


# A state that belongs to its process


def test_each_process_reads_its_own_file(tmp_path: Path) -> None:
    for index in range(3):
        write_state(tmp_path, index, 3, own(index))
    assert [read_state(tmp_path, index, 3) for index in range(3)] == [own(i) for i in range(3)]


def test_the_files_of_others_are_not_read(tmp_path: Path) -> None:
    write_state(tmp_path, 0, 2, own(1))
    (tmp_path / "process_1-of-2.json").write_bytes(b"damaged")
    assert read_state(tmp_path, 0, 2) == own(1)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    message = refusal(tmp_path, 0, 1)
    assert message.startswith(f"process_0-of-1.json is missing in {tmp_path}")
    assert "Give the directory of an item that was saved with CheckpointSave" in message


@pytest.mark.parametrize("make", ["nothing", "file"])
def test_a_missing_directory_is_named(tmp_path: Path, make: str) -> None:
    directory = tmp_path / "data"
    if make == "file":
        directory.write_bytes(b"{}")
    assert f"{directory} is no directory" in refusal(directory, 0, 1)


def test_another_process_count_is_refused_with_both_counts(tmp_path: Path) -> None:
    for index in range(2):
        write_state(tmp_path, index, 2, own(index))
    message = refusal(tmp_path, 0, 1)
    assert "written by 2 processes (process_0-of-2.json, process_1-of-2.json)" in message
    assert "1 process would restore it" in message
    assert "Restore with 2 processes" in message


def test_a_lost_neighbour_is_not_taken_for_another_count(tmp_path: Path) -> None:
    write_state(tmp_path, 0, 2, own(0))
    message = refusal(tmp_path, 1, 2)
    assert message.startswith("process_1-of-2.json is missing")
    assert "which has process_0-of-2.json" in message
    assert "written by" not in message


def test_many_files_do_not_make_a_long_message(tmp_path: Path) -> None:
    for index in range(100):
        write_state(tmp_path, index, 100, own(index))
    assert len(refusal(tmp_path, 0, 1)) < 800 + len(str(tmp_path))


@pytest.mark.parametrize(
    "name",
    [
        "process_2-of-2.json",
        "process_00-of-2.json",
        "process_0-of-2.json.tmp",
        ".process_0-of-2.json.0123.tmp",
        "process_-1-of-2.json",
        "process_0-of-99999999999999999999.json",
        "..",
    ],
)
def test_other_names_are_no_state_files(tmp_path: Path, name: str) -> None:
    if name != "..":
        (tmp_path / name).write_bytes(elastic(1))
    assert "process_0-of-2.json is missing" in refusal(tmp_path, 0, 2)


# An elastic state


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_an_elastic_state_restores_on_any_count(tmp_path: Path, count: int) -> None:
    for index in range(3):
        write_state(tmp_path, index, 3, elastic(12))
    assert {read_state(tmp_path, index, count) for index in range(count)} == {elastic(12)}


def test_any_one_elastic_file_is_enough(tmp_path: Path) -> None:
    write_state(tmp_path, 2, 3, elastic(9))
    assert {read_state(tmp_path, index, 3) for index in range(3)} == {elastic(9)}


def test_equal_values_may_be_written_differently(tmp_path: Path) -> None:
    write_state(tmp_path, 0, 2, b'{"elastic": true, "position": 1}')
    write_state(tmp_path, 1, 2, b'{"position":1,"elastic":true}')
    assert read_state(tmp_path, 1, 2) == b'{"position":1,"elastic":true}'


@pytest.mark.parametrize(("index", "count"), [(0, 2), (1, 2), (0, 1)])
def test_elastic_files_that_differ_are_named_with_the_difference(
    tmp_path: Path, index: int, count: int
) -> None:
    write_state(tmp_path, 0, 2, elastic(5))
    write_state(tmp_path, 1, 2, elastic(6))
    message = refusal(tmp_path, index, count)
    assert "process_0-of-2.json" in message
    assert "process_1-of-2.json" in message
    pair = "6 and 5" if (index, count) == (1, 2) else "5 and 6"
    assert f"differ (position: {pair})" in message


@pytest.mark.parametrize("other", [own(5), b"[1]"])
def test_an_elastic_file_beside_another_kind_is_refused(tmp_path: Path, other: bytes) -> None:
    write_state(tmp_path, 0, 2, elastic(5))
    write_state(tmp_path, 1, 2, other)
    assert "process_0-of-2.json and process_1-of-2.json" in refusal(tmp_path, 0, 2)


def test_a_damaged_neighbour_of_an_elastic_file_is_named(tmp_path: Path) -> None:
    write_state(tmp_path, 0, 2, elastic(5))
    (tmp_path / "process_1-of-2.json").write_bytes(elastic(5)[:-3])
    assert "process_1-of-2.json" in refusal(tmp_path, 0, 2)


@pytest.mark.parametrize("saved", [80, 200])
@pytest.mark.parametrize("count", [1, 80, 7])
def test_of_many_files_each_is_compared_by_some_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved: int, count: int
) -> None:
    for index in range(saved):
        (tmp_path / file_name(index, saved)).write_bytes(elastic(1))
    read: set[str] = set()
    most = 0
    real = files._read

    def counted(directory: Any, name: str) -> bytes:
        names.add(name)
        return real(directory, name)

    monkeypatch.setattr(files, "_read", counted)
    for index in range(count):
        names: set[str] = set()
        read_state(tmp_path, index, count)
        read |= names
        most = max(most, len(names))
    assert read == {file_name(index, saved) for index in range(saved)}
    assert most <= 2 + -(-saved // count)


# Damage


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is cut short, or is no JSON"),
        (b'{"position": 12', "is cut short, or is no JSON"),
        (b'{"elastic": tr', "is cut short, or is no JSON"),
        (b'{"a": 1},', "is cut short, or is no JSON (Extra data: line 1 column 9"),
        (b"position = 12", "is cut short, or is no JSON"),
        (b'{"name": "\xff"}', "is not UTF-8 text (byte 10 of 13)"),
        (b"\x80\x04\x95\x0c\x00\x00\x00\x00\x00\x00\x00", "is not UTF-8 text"),
        (b"[" * 200_000, "is not a state"),
        (b"1" * 5000, "is not a state"),
    ],
    ids=lambda value: repr(value[:16]),
)
def test_a_damaged_file_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    (tmp_path / "process_0-of-1.json").write_bytes(content)
    message = refusal(tmp_path, 0, 1)
    assert message.startswith(f"process_0-of-1.json in {tmp_path} {problem}")
    assert "restore another step of the checkpoint" in message


@pytest.mark.parametrize("length", range(len(elastic(12345))))
def test_a_state_cut_anywhere_is_refused(tmp_path: Path, length: int) -> None:
    (tmp_path / "process_0-of-1.json").write_bytes(elastic(12345)[:length])
    refusal(tmp_path, 0, 1)


def test_a_name_with_a_count_beyond_all_measure_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "process_0-of-999999999.json").write_text('{"joined": 1}')
    with pytest.raises(StateError, match=r"process_1-of-999999999\.json is missing"):
        read_state(tmp_path, 0, 1)


@pytest.mark.parametrize("kind", ["pipe", "directory", "device", "loop"])
@pytest.mark.parametrize("index", [0, 1])
def test_what_is_no_plain_file_is_named_and_not_waited_for(
    tmp_path: Path, kind: str, index: int
) -> None:
    path = tmp_path / f"process_{index}-of-2.json"
    (tmp_path / f"process_{1 - index}-of-2.json").write_text('{"elastic": true}')
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero" if kind == "device" else path)
    with pytest.raises(StateError, match=rf"process_{index}-of-2\.json .*(plain|cannot be read)"):
        read_state(tmp_path, 0, 2)
