"""Shared records: attached by name, read-only, gone with their creator, silent on stderr."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from grain_jax._algebra import names
from grain_jax._algebra.shared_memory import SharedMemoryDataSource
from grain_jax._algebra.sources import adapt
from grain_jax._values.errors import ClosedError, InvalidTypeError, InvalidValueError


@pytest.fixture(autouse=True)
def own_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)


def names_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"grain_jax-{os.geteuid()}"


def made() -> set[str]:
    return {path.name for path in names_folder().glob("*")}


ELEMENTS: list[Any] = [
    [1, 2, 3, "a"],
    list(range(5)),
    [2**70, 1],
    [1.5, 2.5],
    [True, False],
    [None, b"bytes", "text", {"x": (1, [2])}],
    [np.arange(3), np.arange(3) * 2],
    [np.arange(3), np.zeros((2, 2))],
    [np.zeros((0, 3))] * 2,
    [{"image": np.arange(6).reshape(2, 3)[:, ::-1], "label": i} for i in range(3)],
    np.arange(5),
    np.arange(20.0).reshape(5, 2, 2)[:, ::-1],
    np.array([1, "a", None], object),
    np.array(["a", "bc"]),
    np.array(["2020-01-01"], "M8[D]"),
    range(4),
    (1, 2),
    [],
]


@pytest.mark.parametrize("elements", ELEMENTS, ids=lambda e: repr(e)[:20])
def test_what_is_stored_comes_back(elements: Any) -> None:
    with SharedMemoryDataSource(elements) as source:
        assert len(source) == len(elements)
        assert repr(list(source)) == repr(list(elements))
        indices = list(range(len(elements)))[::-1] * 2
        expected = [elements[i] for i in indices]
        for reader in (
            source,
            SharedMemoryDataSource(name=source.name),
            pickle.loads(pickle.dumps(source)),
        ):
            assert repr(reader.__getitems__(indices)) == repr(expected)
            types = [type(r) for r in reader.__getitems__(indices)]
            assert types == [type(e) for e in expected]
        source.unlink()


def test_it_is_a_sequence() -> None:
    source = SharedMemoryDataSource(["a", "b", "c"])
    assert source[-1] == "c"
    assert source[1:] == ["b", "c"]
    assert "b" in source
    assert source.index("c") == 2
    with pytest.raises(IndexError):
        source[3]


def test_arrays_are_read_only_views_without_a_copy() -> None:
    for elements in (
        np.zeros((3, 4)),
        [np.zeros(4)] * 3,
        [{"x": np.zeros(4)}] * 3,
        [{"x": np.zeros((4, 4)).T[::2]}] * 3,
        [{"x": jnp.zeros(4)}] * 3,
    ):
        source = SharedMemoryDataSource(elements)
        record = adapt(source).read(np.array([1]))[0]
        array = record["x"] if isinstance(record, dict) else record
        assert type(array) is np.ndarray
        with pytest.raises(ValueError, match="read-only"):
            array += 1


def test_a_description_shows_name_and_length_only() -> None:
    source = SharedMemoryDataSource([7777], name=f"test-{os.getpid()}")
    assert repr(source) == f"SharedMemoryDataSource(name=test-{os.getpid()}, len=1)"
    assert adapt(source).description == "SharedMemoryDataSource of length 1"
    assert adapt(source).in_memory
    source.unlink()


def test_records_outlive_close_and_unlink() -> None:
    source = SharedMemoryDataSource(np.arange(10).reshape(5, 2))
    row = source[3]
    source.close()
    source.close()
    source.unlink()
    source.unlink()
    del source
    assert row.tolist() == [6, 7]


def test_reading_after_close_is_refused() -> None:
    for elements in ([1, 2], ["a", {}]):
        source = SharedMemoryDataSource(elements)
        source.close()
        with pytest.raises(ClosedError, match="after close"):
            source[0]


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="needs the elements"):
        SharedMemoryDataSource()
    with pytest.raises(InvalidValueError, match="no file name"):
        SharedMemoryDataSource([1], name="a/b")
    with pytest.raises(InvalidTypeError, match=r"not list_iterator; write list"):
        SharedMemoryDataSource(iter([1]))  # type: ignore[arg-type]
    with pytest.raises(InvalidTypeError, match="record 1 does not pickle"):
        SharedMemoryDataSource([1, lambda: 0])
    with pytest.raises(FileNotFoundError, match="'never-stored'"):
        SharedMemoryDataSource(name="never-stored")


def test_a_name_is_taken_until_unlink() -> None:
    name = f"taken-{os.getpid()}"
    first = SharedMemoryDataSource([1], name=name)
    with pytest.raises(FileExistsError, match="already"):
        SharedMemoryDataSource([2], name=name)
    attached = SharedMemoryDataSource(name=name)
    attached.unlink()  # not the creator
    assert SharedMemoryDataSource(name=name)[0] == 1
    first.unlink()
    with pytest.raises(FileNotFoundError):
        SharedMemoryDataSource(name=name)
    second = SharedMemoryDataSource([2], name=name)
    assert attached[0] == 1
    second.unlink()


def test_a_name_of_a_killed_creator_is_free_again() -> None:
    name = f"killed-{os.getpid()}"
    run(f"s = SharedMemoryDataSource([1], name={name!r}); os.kill(os.getpid(), 9)", code=-9)
    with pytest.raises(FileNotFoundError):
        SharedMemoryDataSource(name=name)
    source = SharedMemoryDataSource([2], name=name)
    assert source[0] == 2
    source.unlink()


@pytest.mark.parametrize("memory_files", [True, False])
def test_the_next_creation_removes_what_a_killed_creator_left(memory_files: bool) -> None:
    before = made()
    without = "" if memory_files else "del os.memfd_create; "
    run(f"{without}s = SharedMemoryDataSource([1]); os.kill(os.getpid(), 9)", code=-9)
    left = made() - before
    assert len(left) == 1
    living = SharedMemoryDataSource([2])
    other = SharedMemoryDataSource([3])
    assert not made() & left
    assert SharedMemoryDataSource(name=living.name)[0] == 2
    living.unlink()
    other.unlink()
    assert made() == before


def test_the_number_of_an_ended_process_may_be_anothers(tmp_path: Path) -> None:
    name = f"reused-{os.getpid()}"
    entry = names_folder() / name
    (tmp_path / "mine").touch()
    living = SharedMemoryDataSource([1])
    meant = json.loads((names_folder() / living.name).read_bytes()[8:])
    others: list[Any] = [
        [meant[0], meant[1], meant[2], meant[3] + 1],
        [meant[0], 0, *meant[2:]],
        [1, 0, 0, 0],
        [1 << 70, 0, 0, 0],
        [],
        ["a", 1, 2, 3],
        {},
    ]
    for other in others:
        entry.write_bytes(b"grainjx@" + json.dumps(other).encode())
        with pytest.raises(FileNotFoundError):
            SharedMemoryDataSource(name=name)
        SharedMemoryDataSource([1], name=name).unlink()
        assert not entry.exists()
    living.unlink()


def test_links_are_never_followed(tmp_path: Path) -> None:
    """Neither in the folder, nor where a name stood once."""
    name = f"linked-{os.getpid()}"
    source = SharedMemoryDataSource([1], name=f"{name}-true")
    forged = tmp_path / "mine"
    forged.write_bytes((names_folder() / source.name).read_bytes())
    former = Path(tempfile.gettempdir()) / f"grain_jax-{os.geteuid()}-{name}"
    for link in (names_folder() / name, former):
        for target in (
            forged,
            names_folder() / source.name,
            f"/proc/{os.getpid()}/fd/{source._descriptor}",
        ):
            link.symlink_to(target)
            with pytest.raises(FileNotFoundError):
                SharedMemoryDataSource(name=name)
            link.unlink()
    assert forged.exists()
    source.unlink()


@pytest.mark.parametrize("what", ["link", "mode", "owner", "file"])
def test_a_folder_that_others_could_write_to_is_refused(what: str, tmp_path: Path) -> None:
    folder = tmp_path / f"grain_jax-{os.geteuid()}"
    if what == "link":
        (tmp_path / "other").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "other")
    elif what == "file":
        folder.touch()
    else:
        folder.mkdir(mode=0o700)
        if what == "mode":
            folder.chmod(0o777)
        else:
            if os.geteuid():
                pytest.skip("only root can give folders away")
            os.chown(folder, 12345, 12345)
    for arguments in ({"name": "features"}, {"elements": [1], "name": "features"}):
        with pytest.raises(PermissionError, match=r"mode 0700.*TMPDIR"):
            SharedMemoryDataSource(**arguments)


def test_the_folder_is_nobody_elses(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        SharedMemoryDataSource(name="features")
    source = SharedMemoryDataSource([1], name="features")
    (folder,) = tmp_path.iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "features").stat().st_mode & 0o777 == 0o600
    source.unlink()
    assert not list(folder.iterdir())


def test_what_memory_says_of_itself_is_no_pickle(tmp_path: Path) -> None:
    class Opened:
        def __reduce__(self) -> Any:
            return open, (str(tmp_path / "opened"), "w")

    SharedMemoryDataSource([1]).unlink()
    (folder,) = tmp_path.glob("grain_jax-*")
    body = pickle.dumps(Opened())
    head = b"grainjx2" + (24).to_bytes(8, "little") + len(body).to_bytes(8, "little")
    (folder / "features").write_bytes(head + body)
    with pytest.raises(ValueError, match="features"):
        SharedMemoryDataSource(name="features")
    assert not (tmp_path / "opened").exists()


def test_without_memory_files_a_temporary_file_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made()
    monkeypatch.delattr(os, "memfd_create", raising=False)
    source = SharedMemoryDataSource(["a", np.arange(3)])
    assert (names_folder() / source.name).read_bytes().startswith(b"grainjx2")
    assert pickle.loads(pickle.dumps(source))[1].tolist() == [0, 1, 2]
    source.unlink()
    with pytest.raises(InvalidTypeError):
        SharedMemoryDataSource([lambda: 0])
    assert made() == before


def test_one_with_a_made_up_name_goes_with_the_object() -> None:
    before, known = made(), dict(names._made)
    source = SharedMemoryDataSource([1])
    assert len(made() - before) == 1
    del source
    assert made() == before
    assert names._made == known


# --- processes ---------------------------------------------------------------------------------


def run(script: str, code: int = 0, *arguments: str) -> str:
    head = (
        "import os, sys, pickle, numpy as np\n"
        "from grain_jax._algebra.shared_memory import SharedMemoryDataSource\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + script, *arguments],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stderr == ""
    assert done.returncode == code
    return done.stdout


def test_another_process_attaches_and_its_end_changes_nothing() -> None:
    source = SharedMemoryDataSource([{"x": np.arange(3)}, 2])
    out = run(
        "s = SharedMemoryDataSource(name=sys.argv[1]); print(len(s), s[0]['x'].tolist(), s[1])\n"
        "print('multiprocessing.resource_tracker' in sys.modules)",
        0,
        source.name,
    )
    assert out == "2 [0, 1, 2] 2\nFalse\n"
    assert SharedMemoryDataSource(name=source.name)[1] == 2


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("pass", 0),
        ("sys.exit(3)", 3),
        (f"os.kill(os.getpid(), {int(signal.SIGTERM)})", -signal.SIGTERM),
        (f"os.kill(os.getpid(), {int(signal.SIGKILL)})", -signal.SIGKILL),
    ],
)
def test_the_memory_goes_with_its_creator(end: str, code: int) -> None:
    name = f"creator-{os.getpid()}"
    run(f"s = SharedMemoryDataSource([1], name={name!r})\nassert s[0] == 1\n{end}", code)
    with pytest.raises(FileNotFoundError):
        SharedMemoryDataSource(name=name)
    (names_folder() / name).unlink(missing_ok=True)  # a killed creator leaves some bytes


def test_a_fork_of_the_creator_does_not_unlink() -> None:
    out = run(
        "s = SharedMemoryDataSource(['a', 'b'])\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    assert s[1] == 'b'\n"
        "    s.unlink()\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "print(SharedMemoryDataSource(name=s.name)[0])\n"
    )
    assert out == "a\n"


def _first(source: SharedMemoryDataSource) -> Any:
    return source[0]


def test_it_travels_to_processes_of_multiprocessing() -> None:
    source = SharedMemoryDataSource(["from the creator", 1])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_first, (source,)) == "from the creator"
    assert source[0] == "from the creator"
