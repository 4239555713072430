"""Names that Grain keeps under `grain.experimental`."""

from typing import TYPE_CHECKING

from grain_jax import _lazy
from grain_jax._algebra.transforms import FlatMap as FlatMapTransform
from grain_jax._algebra.transforms import MapWithIndex as MapWithIndexTransform

if TYPE_CHECKING:
    from grain_jax._datasets.operators.limit import LimitIterDataset as LimitIterDataset
    from grain_jax._product.device import device_put as device_put
    from grain_jax._product.elastic import ElasticIterator as ElasticIterator
else:
    __getattr__, __dir__ = _lazy.facade(
        __name__,
        {
            "ElasticIterator": "grain_jax._product.elastic:ElasticIterator",
            "LimitIterDataset": "grain_jax._datasets.operators.limit:LimitIterDataset",
            "device_put": "grain_jax._product.device:device_put",
        },
    )

__all__ = [
    "ElasticIterator",
    "FlatMapTransform",
    "LimitIterDataset",
    "MapWithIndexTransform",
    "device_put",
]
