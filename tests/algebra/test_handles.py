"""Arrays of mapped files are opened by another process where their bytes lie."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grain_jax._algebra import handles

DATA = np.arange(64 * 1024.0).reshape(64, 1024)

VIEWS: dict[str, Any] = {
    "whole": lambda m: m,
    "rows": lambda m: m[5:60],
    "backwards": lambda m: m[::-1, ::-1],
    "strided": lambda m: m[1::2, 3::2],
    "transposed": lambda m: m.T,
    "bytes": lambda m: m.view(np.uint8)[:, 1:],
    "plain": lambda m: np.asarray(m)[7:],
    "none": lambda m: np.frombuffer(m, np.float64)[100:],
}


@pytest.fixture(params=["linux", "darwin"])
def platform(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "linux":
        pytest.importorskip("fcntl")
        if not Path("/proc/self/maps").exists():
            pytest.skip("the kernel does not tell")
    monkeypatch.setattr("sys.platform", request.param)
    name: str = request.param
    return name


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_view_is_the_same_view_of_the_file(
    tmp_path: Path, platform: str, view: str, mode: Any
) -> None:
    np.save(tmp_path / "x.npy", DATA)
    array = VIEWS[view](np.load(tmp_path / "x.npy", mmap_mode=mode))
    reduced = handles.reduce(array)
    if view == "none" and platform != "linux":
        assert reduced is None or np.array_equal(reduced[0](*reduced[1]), array)
        return
    assert reduced is not None
    make, arguments = reduced
    again = make(*arguments)
    assert type(again) is type(array)
    assert again.strides == array.strides
    assert again.flags.writeable == array.flags.writeable
    assert np.array_equal(again, array)


def test_what_is_in_no_file_is_copied(tmp_path: Path, platform: str) -> None:
    np.save(tmp_path / "x.npy", DATA)
    private = np.load(tmp_path / "x.npy", mmap_mode="c")
    private[:] = 0
    anonymous = np.frombuffer(mmap.mmap(-1, 1 << 20), np.uint8)
    for array in (DATA, private, private[3:], anonymous, np.load(tmp_path / "x.npy")):
        assert handles.reduce(array) is None


def test_a_file_that_was_cut_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", DATA)
    reduced = handles.reduce(np.load(tmp_path / "x.npy", mmap_mode="r"))
    assert reduced is not None
    with (tmp_path / "x.npy").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ValueError, match=r"x\.npy has 1000 bytes.*it was cut since"):
        reduced[0](*reduced[1])
