"""The TFDS builder: `digits.Builder(file_format="array_record")` needs no TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from sklearn.datasets import load_digits


class Builder(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """1,797 real 8x8 images, every sixth of them for testing."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        # `Tensor` and not `Image`, whose encoding wants TensorFlow.
        features = {
            "id": tfds.features.Tensor(shape=(), dtype=np.int64),
            "image": tfds.features.Tensor(shape=(8, 8), dtype=np.float32),
            "label": tfds.features.Tensor(shape=(), dtype=np.int64),
        }
        return self.dataset_info_from_configs(features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {
            "train": self._generate_examples(i for i in range(1797) if i % 6),
            "test": self._generate_examples(range(0, 1797, 6)),
        }

    def _generate_examples(self, ids: Iterable[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        digits = load_digits()
        for i in ids:
            image = (digits.images[i] / 16).astype(np.float32)
            yield i, {"id": i, "image": image, "label": digits.target[i]}
