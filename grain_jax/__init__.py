"""Feeds JAX training loops: records to global arrays, in an order that can be saved and resumed.

    import grain_jax as grain

    loader = grain.load(source, shuffle=True, seed=0, batch_size=64, worker_count=2)
    for batch in grain.prefetch_to_device(loader):
        ...

Names and signatures are those of Grain 0.2.18. Importing this package loads neither jax nor orbax:
each name is fetched when it is first used.
"""

from typing import TYPE_CHECKING

from grain_jax import _lazy

if TYPE_CHECKING:
    from grain_jax import checkpoint as checkpoint
    from grain_jax import constants as constants
    from grain_jax import errors as errors
    from grain_jax import experimental as experimental
    from grain_jax import multiprocessing as multiprocessing
    from grain_jax import python as python
    from grain_jax import samplers as samplers
    from grain_jax import sharding as sharding
    from grain_jax import sources as sources
    from grain_jax import transforms as transforms
    from grain_jax._datasets.epochs import Epochs as Epochs
    from grain_jax._datasets.iter_dataset import IterDataset as IterDataset
    from grain_jax._datasets.iterators import DatasetIterator as DatasetIterator
    from grain_jax._datasets.map_dataset import MapDataset as MapDataset
    from grain_jax._execution.bars import progress as progress
    from grain_jax._execution.metrics import prometheus_metrics as prometheus_metrics
    from grain_jax._product.data_loader import DataLoader as DataLoader
    from grain_jax._product.data_loader import DataLoaderIterator as DataLoaderIterator
    from grain_jax._product.data_loader import load as load
    from grain_jax._product.device import DeviceIterator as DeviceIterator
    from grain_jax._product.device import prefetch_to_device as prefetch_to_device
    from grain_jax._values.options import ErrorPolicy as ErrorPolicy
    from grain_jax._values.options import MultiprocessingOptions as MultiprocessingOptions
    from grain_jax._values.options import ReadOptions as ReadOptions
    from grain_jax._values.records import Record as Record
    from grain_jax._values.records import RecordMetadata as RecordMetadata
    from grain_jax._values.settings import config as config
    from grain_jax._values.stats import Stats as Stats
    from grain_jax._values.stats import StepStats as StepStats
    from grain_jax._values.stats import WorkerStats as WorkerStats
else:
    __getattr__, __dir__, __all__ = _lazy.facade(
        __name__,
        {
            "DataLoader": "grain_jax._product.data_loader:DataLoader",
            "DataLoaderIterator": "grain_jax._product.data_loader:DataLoaderIterator",
            "DatasetIterator": "grain_jax._datasets.iterators:DatasetIterator",
            "DeviceIterator": "grain_jax._product.device:DeviceIterator",
            "Epochs": "grain_jax._datasets.epochs:Epochs",
            "ErrorPolicy": "grain_jax._values.options:ErrorPolicy",
            "IterDataset": "grain_jax._datasets.iter_dataset:IterDataset",
            "MapDataset": "grain_jax._datasets.map_dataset:MapDataset",
            "MultiprocessingOptions": "grain_jax._values.options:MultiprocessingOptions",
            "ReadOptions": "grain_jax._values.options:ReadOptions",
            "Record": "grain_jax._values.records:Record",
            "RecordMetadata": "grain_jax._values.records:RecordMetadata",
            "Stats": "grain_jax._values.stats:Stats",
            "StepStats": "grain_jax._values.stats:StepStats",
            "WorkerStats": "grain_jax._values.stats:WorkerStats",
            "config": "grain_jax._values.settings:config",
            "load": "grain_jax._product.data_loader:load",
            "prometheus_metrics": "grain_jax._execution.metrics:prometheus_metrics",
            "progress": "grain_jax._execution.bars:progress",
            "prefetch_to_device": "grain_jax._product.device:prefetch_to_device",
        },
        submodules=(
            "checkpoint",
            "constants",
            "errors",
            "experimental",
            "multiprocessing",
            "python",
            "samplers",
            "sharding",
            "sources",
            "transforms",
        ),
    )

__version__ = "0.2.0"
