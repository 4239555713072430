"""Sources of the workloads: classes with `__len__` and `__getitem__`, of no library."""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import numpy as np


class Numbers:
    """The numbers from `start`, as Python's own."""

    def __init__(self, length: int, start: int = 0) -> None:
        self._length, self._start = length, start

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return self._start + int(index)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._length}, start={self._start})"


class Digits:
    """28x28 images with labels, in two arrays."""

    def __init__(self, length: int) -> None:
        rng = np.random.default_rng(0)
        self.images = rng.integers(0, 256, (length, 28, 28), np.uint8)
        self.labels = rng.integers(0, 10, length)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": self.images[index], "label": self.labels[index]}


def columns(length: int) -> dict[str, np.ndarray]:
    """A dict of arrays: 64 numbers and a label a row."""
    rng = np.random.default_rng(0)
    return {"x": rng.random((length, 64), np.float32), "y": np.arange(length)}


class Rows:
    """The rows of such a dict, for libraries to which it is no source."""

    def __init__(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: array[index] for name, array in self.arrays.items()}


class Images:
    """64 different images, 256x256x3, in which each pixel says its row, its column and the image.

    Each process makes them as it gets the source, so that nobody pickles them.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._made = [self._make(which) for which in range(64)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> np.ndarray:
        return self._made[int(index) % 64]

    def _make(self, which: int) -> np.ndarray:
        image = np.full((256, 256, 3), which, np.uint8)
        image[..., 0] = np.arange(256)[:, None]
        image[..., 1] = np.arange(256)
        return image

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._length,)


class Large(Images):
    """64 different records of 16 MB."""

    def _make(self, which: int) -> np.ndarray:
        return np.full(4 * 2**20, which, np.float32)


class Slow(Numbers):
    """Numbers, each of which takes 2 ms to read, as over a network."""

    def __getitem__(self, index: int) -> int:
        time.sleep(0.002)
        return super().__getitem__(index)


class Leaves(Numbers):
    """Records of 64 small arrays."""

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {f"leaf{i:02}": np.full(4, int(index) + i, np.float32) for i in range(64)}


class Tokens:
    """Documents of 1 to 1,023 tokens, most of them short."""

    def __init__(self, length: int) -> None:
        rng = np.random.default_rng(0)
        self._lengths = np.minimum(rng.geometric(1 / 250, length), 1023)
        self._text = np.arange(2048, dtype=np.int32)

    def __len__(self) -> int:
        return len(self._lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        start = int(index) % 1024
        return {"tokens": self._text[start : start + self._lengths[index]]}


class Photographs:
    """JPEG files, as bytes, over and over."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> bytes:
        files = photographs()
        return files[int(index) % len(files)]


@functools.cache
def photographs() -> Sequence[bytes]:
    """The photographs that scikit-learn and scikit-image bring along, as JPEG files."""
    import io
    from pathlib import Path

    import skimage
    import sklearn.datasets
    from PIL import Image

    folders = [Path(sklearn.datasets.__file__).parent / "images", Path(skimage.__file__).parent]
    found = [folders[0] / "china.jpg", folders[0] / "flower.jpg"]
    names = ("rocket.jpg", "astronaut.png", "chelsea.png", "coffee.png")
    found += [folders[1] / "data" / name for name in names]
    files = []
    for path in found:
        if path.suffix == ".jpg":
            files.append(path.read_bytes())
        else:
            buffer = io.BytesIO()
            Image.open(path).convert("RGB").save(buffer, "JPEG", quality=90)
            files.append(buffer.getvalue())
    return files


class Mixture:
    """Two sources, of which the second has this share of the elements."""

    def __init__(self, length: int) -> None:
        self.parts = [Numbers(length), Numbers(length, start=10**9)]
        self.share = 0.25

    def __len__(self) -> int:
        return sum(map(len, self.parts))
