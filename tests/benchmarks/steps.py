"""Steps of the workloads: functions, and what each of them is to a pipeline."""

from __future__ import annotations

import dataclasses
import io
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np


@dataclasses.dataclass(frozen=True)
class Step:
    """A function of a record; one that draws also takes a generator."""

    kind: Literal["map", "random", "filter"]
    function: Callable[..., Any]


def add_one(number: int) -> int:
    return number + 1


def is_even(number: int) -> bool:
    return number % 2 == 0


def is_hundredth(number: int) -> bool:
    return number % 100 == 0


def is_rare(number: int) -> bool:
    return number % 256 == 0


def crop_and_flip(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random 224x224 window of the image, mirrored half of the time."""
    top, left = rng.integers(0, 256 - 224, size=2)
    crop = image[top : top + 224, left : left + 224]
    return crop[:, ::-1] if rng.random() < 0.5 else crop


def decode(file: bytes) -> np.ndarray:
    """The middle 224x224 pixels of a photograph."""
    from PIL import Image

    image = np.asarray(Image.open(io.BytesIO(file)).convert("RGB"))
    top, left = (image.shape[0] - 224) // 2, (image.shape[1] - 224) // 2
    return image[top : top + 224, left : left + 224]


def work(number: int) -> int:
    """Takes 50 us of the processor; 100 times as long for one number in 50."""
    end = time.perf_counter() + (0.005 if number % 50 == 0 else 0.00005)
    while time.perf_counter() < end:
        pass
    return number


def work_a_little(number: int) -> int:
    """Takes 100 us of the processor."""
    end = time.perf_counter() + 0.0001
    while time.perf_counter() < end:
        pass
    return number


ADD_ONE = Step("map", add_one)
KEEP_HALF = Step("filter", is_even)
KEEP_HUNDREDTH = Step("filter", is_hundredth)
KEEP_RARE = Step("filter", is_rare)
CROP_AND_FLIP = Step("random", crop_and_flip)
DECODE = Step("map", decode)
WORK = Step("map", work)
WORK_A_LITTLE = Step("map", work_a_little)


def apply(steps: tuple[Step, ...], record: Any, rng: np.random.Generator | None) -> Any:
    """What is left of a record after the steps; None where a filter drops it."""
    for step in steps:
        if step.kind == "map":
            record = step.function(record)
        elif step.kind == "random":
            record = step.function(record, rng)
        elif not step.function(record):
            return None
    return record
