"""Names that Grain keeps under `grain.experimental`."""

from typing import TYPE_CHECKING

from grain_jax import _lazy

if TYPE_CHECKING:
    from grain_jax._algebra.files.examples import ParseExample as ParseExample
    from grain_jax._algebra.packs import PackAndBatchOperation as PackAndBatchOperation
    from grain_jax._algebra.pieces import batch_and_pad as batch_and_pad
    from grain_jax._datasets.files import ParquetIterDataset as ParquetIterDataset
    from grain_jax._datasets.files import TextLinesIterDataset as TextLinesIterDataset
    from grain_jax._datasets.files import TFRecordIterDataset as TFRecordIterDataset
    from grain_jax._datasets.fluent import apply_transformations as apply_transformations
    from grain_jax._datasets.operators.cache import CacheIterDataset as CacheIterDataset
    from grain_jax._datasets.operators.flat_map import FlatMapIterDataset as FlatMapIterDataset
    from grain_jax._datasets.operators.flat_map import FlatMapMapDataset as FlatMapMapDataset
    from grain_jax._datasets.operators.interleave import (
        InterleaveIterDataset as InterleaveIterDataset,
    )
    from grain_jax._datasets.operators.limit import LimitIterDataset as LimitIterDataset
    from grain_jax._datasets.operators.packing import (
        BestFitPackIterDataset as BestFitPackIterDataset,
    )
    from grain_jax._datasets.operators.packing import (
        FirstFitPackIterDataset as FirstFitPackIterDataset,
    )
    from grain_jax._datasets.operators.rebatch import RebatchIterDataset as RebatchIterDataset
    from grain_jax._datasets.operators.repeat import RepeatIterDataset as RepeatIterDataset
    from grain_jax._datasets.operators.settings import (
        WithOptionsIterDataset as WithOptionsIterDataset,
    )
    from grain_jax._datasets.operators.splitting import BOSHandling as BOSHandling
    from grain_jax._datasets.operators.splitting import (
        ConcatThenSplitIterDataset as ConcatThenSplitIterDataset,
    )
    from grain_jax._datasets.operators.threads import (
        ThreadPrefetchIterDataset as ThreadPrefetchIterDataset,
    )
    from grain_jax._datasets.operators.threads import multithread_prefetch as multithread_prefetch
    from grain_jax._datasets.operators.windows import (
        WindowShuffleIterDataset as WindowShuffleIterDataset,
    )
    from grain_jax._datasets.operators.windows import (
        WindowShuffleMapDataset as WindowShuffleMapDataset,
    )
    from grain_jax._datasets.operators.zip import ZipIterDataset as ZipIterDataset
    from grain_jax._datasets.operators.zip import ZipMapDataset as ZipMapDataset
    from grain_jax._datasets.specs import get_element_spec as get_element_spec
    from grain_jax._execution.threaded import (
        ThreadPrefetchDatasetIterator as ThreadPrefetchDatasetIterator,
    )
    from grain_jax._product.elastic import ElasticIterator as ElasticIterator
    from grain_jax._product.indices import get_next_index as get_next_index
    from grain_jax._product.indices import set_next_index as set_next_index
    from grain_jax._product.measuring import PerformanceConfig as PerformanceConfig
    from grain_jax._product.measuring import pick_performance_config as pick_performance_config
    from grain_jax._product.recovery import (
        assert_equal_output_after_checkpoint as assert_equal_output_after_checkpoint,
    )
    from grain_jax._product.transfer import device_put as device_put
    from grain_jax._values.dataset_options import DatasetOptions as DatasetOptions
    from grain_jax._values.dataset_options import ExecutionTrackingMode as ExecutionTrackingMode
    from grain_jax._values.generators import RngPool as RngPool
    from grain_jax._values.permutation import index_shuffle as index_shuffle
    from grain_jax._values.shapes import ShapeDtypeStruct as ShapeDtypeStruct
    from grain_jax._values.shapes import ShapeDtypeStructProtocol as ShapeDtypeStructProtocol
else:
    _ASSERT = "assert_equal_output_after_checkpoint"
    _THREADED = "ThreadPrefetchDatasetIterator"
    _OPERATORS = "grain_jax._datasets.operators"
    __getattr__, __dir__, __all__ = _lazy.facade(
        __name__,
        {
            "BOSHandling": f"{_OPERATORS}.splitting:BOSHandling",
            "BestFitPackIterDataset": f"{_OPERATORS}.packing:BestFitPackIterDataset",
            "CacheIterDataset": f"{_OPERATORS}.cache:CacheIterDataset",
            "ConcatThenSplitIterDataset": f"{_OPERATORS}.splitting:ConcatThenSplitIterDataset",
            "DatasetOptions": "grain_jax._values.dataset_options:DatasetOptions",
            "ElasticIterator": "grain_jax._product.elastic:ElasticIterator",
            "ExecutionTrackingMode": "grain_jax._values.dataset_options:ExecutionTrackingMode",
            "FirstFitPackIterDataset": f"{_OPERATORS}.packing:FirstFitPackIterDataset",
            "FlatMapIterDataset": f"{_OPERATORS}.flat_map:FlatMapIterDataset",
            "FlatMapMapDataset": f"{_OPERATORS}.flat_map:FlatMapMapDataset",
            "FlatMapTransform": "grain_jax._algebra.transforms:FlatMap",
            "InterleaveIterDataset": f"{_OPERATORS}.interleave:InterleaveIterDataset",
            "LimitIterDataset": f"{_OPERATORS}.limit:LimitIterDataset",
            "MapWithIndexTransform": "grain_jax._algebra.transforms:MapWithIndex",
            "PackAndBatchOperation": "grain_jax._algebra.packs:PackAndBatchOperation",
            "ParquetIterDataset": "grain_jax._datasets.files:ParquetIterDataset",
            "ParseExample": "grain_jax._algebra.files.examples:ParseExample",
            "PerformanceConfig": "grain_jax._product.measuring:PerformanceConfig",
            "RebatchIterDataset": f"{_OPERATORS}.rebatch:RebatchIterDataset",
            "RepeatIterDataset": f"{_OPERATORS}.repeat:RepeatIterDataset",
            "RngPool": "grain_jax._values.generators:RngPool",
            "ShapeDtypeStruct": "grain_jax._values.shapes:ShapeDtypeStruct",
            "ShapeDtypeStructProtocol": "grain_jax._values.shapes:ShapeDtypeStructProtocol",
            "TFRecordIterDataset": "grain_jax._datasets.files:TFRecordIterDataset",
            "TextLinesIterDataset": "grain_jax._datasets.files:TextLinesIterDataset",
            "pick_performance_config": "grain_jax._product.measuring:pick_performance_config",
            _THREADED: f"grain_jax._execution.threaded:{_THREADED}",
            "ThreadPrefetchIterDataset": f"{_OPERATORS}.threads:ThreadPrefetchIterDataset",
            "WindowShuffleIterDataset": f"{_OPERATORS}.windows:WindowShuffleIterDataset",
            "WindowShuffleMapDataset": f"{_OPERATORS}.windows:WindowShuffleMapDataset",
            "WithOptionsIterDataset": f"{_OPERATORS}.settings:WithOptionsIterDataset",
            "ZipIterDataset": f"{_OPERATORS}.zip:ZipIterDataset",
            "ZipMapDataset": f"{_OPERATORS}.zip:ZipMapDataset",
            "apply_transformations": "grain_jax._datasets.fluent:apply_transformations",
            "batch_and_pad": "grain_jax._algebra.pieces:batch_and_pad",
            "device_put": "grain_jax._product.transfer:device_put",
            "get_element_spec": "grain_jax._datasets.specs:get_element_spec",
            "get_next_index": "grain_jax._product.indices:get_next_index",
            "index_shuffle": "grain_jax._values.permutation:index_shuffle",
            "multithread_prefetch": f"{_OPERATORS}.threads:multithread_prefetch",
            "set_next_index": "grain_jax._product.indices:set_next_index",
            _ASSERT: f"grain_jax._product.recovery:{_ASSERT}",
        },
    )
