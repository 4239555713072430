"""The same things under the names that code written for `grain.python` uses."""

import sys
from typing import TYPE_CHECKING

from grain_jax import _lazy
from grain_jax import experimental as experimental
from grain_jax._algebra.array_records import ArrayRecordDataSource
from grain_jax._algebra.operations import (
    BatchOperation,
    FilterOperation,
    MapOperation,
    Operation,
    RandomMapOperation,
)
from grain_jax._algebra.samplers import IndexSampler, Sampler, SequentialSampler
from grain_jax._algebra.shared_memory import SharedMemoryDataSource as InMemoryDataSource
from grain_jax._algebra.sources import RandomAccessDataSource, RangeDataSource
from grain_jax._algebra.transforms import (
    Batch,
    DatasetSelectionMap,
    Transformation,
    Transformations,
)
from grain_jax._algebra.transforms import Filter as FilterTransform
from grain_jax._algebra.transforms import FlatMap as FlatMapTransform
from grain_jax._algebra.transforms import Map as MapTransform
from grain_jax._algebra.transforms import MapWithIndex as MapWithIndexTransform
from grain_jax._algebra.transforms import RandomMap as RandomMapTransform
from grain_jax._values.options import MultiprocessingOptions, ReadOptions
from grain_jax._values.records import Record, RecordMetadata
from grain_jax._values.settings import config
from grain_jax._values.sharding import NoSharding, ShardByJaxProcess, ShardOptions
from grain_jax.constants import (
    DATASET_INDEX,
    EPOCH,
    INDEX,
    META_FEATURES,
    RECORD,
    RECORD_KEY,
    SEED,
)

if TYPE_CHECKING:
    from grain_jax._algebra.shared_arrays import SharedMemoryArray as SharedMemoryArray
    from grain_jax._datasets.iter_dataset import IterDataset as IterDataset
    from grain_jax._datasets.iterators import DatasetIterator as DatasetIterator
    from grain_jax._datasets.map_dataset import MapDataset as MapDataset
    from grain_jax._product.data_loader import DataLoader as DataLoader
    from grain_jax._product.data_loader import DataLoaderIterator as PyGrainDatasetIterator
    from grain_jax._product.data_loader import load as load
    from grain_jax.checkpoint import CheckpointHandler as PyGrainCheckpointHandler
    from grain_jax.checkpoint import CheckpointRestore as PyGrainCheckpointRestore
    from grain_jax.checkpoint import CheckpointSave as PyGrainCheckpointSave
else:
    __getattr__, __dir__, _ = _lazy.facade(
        __name__,
        {
            "DataLoader": "grain_jax._product.data_loader:DataLoader",
            "DatasetIterator": "grain_jax._datasets.iterators:DatasetIterator",
            "IterDataset": "grain_jax._datasets.iter_dataset:IterDataset",
            "MapDataset": "grain_jax._datasets.map_dataset:MapDataset",
            "PyGrainCheckpointHandler": "grain_jax.checkpoint:CheckpointHandler",
            "PyGrainCheckpointRestore": "grain_jax.checkpoint:CheckpointRestore",
            "PyGrainCheckpointSave": "grain_jax.checkpoint:CheckpointSave",
            "PyGrainDatasetIterator": "grain_jax._product.data_loader:DataLoaderIterator",
            "SharedMemoryArray": "grain_jax._algebra.shared_arrays:SharedMemoryArray",
            "load": "grain_jax._product.data_loader:load",
        },
    )

# Grain has it as a module here, too: `import grain_jax.python.experimental`.
sys.modules[f"{__name__}.experimental"] = experimental

__all__ = [
    "DATASET_INDEX",
    "EPOCH",
    "INDEX",
    "META_FEATURES",
    "RECORD",
    "RECORD_KEY",
    "SEED",
    "ArrayRecordDataSource",
    "Batch",
    "BatchOperation",
    "DataLoader",
    "DatasetIterator",
    "DatasetSelectionMap",
    "FilterOperation",
    "FilterTransform",
    "FlatMapTransform",
    "InMemoryDataSource",
    "IndexSampler",
    "IterDataset",
    "MapDataset",
    "MapOperation",
    "MapTransform",
    "MapWithIndexTransform",
    "MultiprocessingOptions",
    "NoSharding",
    "Operation",
    "PyGrainCheckpointHandler",
    "PyGrainCheckpointRestore",
    "PyGrainCheckpointSave",
    "PyGrainDatasetIterator",
    "RandomAccessDataSource",
    "RandomMapOperation",
    "RandomMapTransform",
    "RangeDataSource",
    "ReadOptions",
    "Record",
    "RecordMetadata",
    "Sampler",
    "SequentialSampler",
    "ShardByJaxProcess",
    "ShardOptions",
    "SharedMemoryArray",
    "Transformation",
    "Transformations",
    "config",
    "experimental",
    "load",
]
