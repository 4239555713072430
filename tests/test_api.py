"""The public names are exactly these."""

from __future__ import annotations

import ast
import importlib
import types
from importlib.util import find_spec
from pathlib import Path

import pytest

PUBLIC = {
    "grain_jax": """
        DataLoader DataLoaderIterator DatasetIterator DeviceIterator Epochs ErrorPolicy
        IterDataset MapDataset MultiprocessingOptions
        ReadOptions Record RecordMetadata Stats StepStats WorkerStats checkpoint config constants
        errors experimental load
        multiprocessing prefetch_to_device progress prometheus_metrics
        python samplers sharding sources transforms""",
    "grain_jax.checkpoint": "CheckpointHandler CheckpointRestore CheckpointSave",
    "grain_jax.constants": "DATASET_INDEX EPOCH INDEX META_FEATURES RECORD RECORD_KEY SEED",
    "grain_jax.errors": """
        ClosedError CorruptFileError DriftError GrainError InvalidTypeError InvalidValueError
        MemoryLimitError MissingDependencyError NoElementsError OutOfRangeError StackError
        StateError TooManyErrors TransformError WorkerError""",
    "grain_jax.experimental": """
        BOSHandling BestFitPackIterDataset CacheIterDataset ConcatThenSplitIterDataset
        DatasetOptions
        ElasticIterator ExecutionTrackingMode FirstFitPackIterDataset FlatMapIterDataset
        FlatMapMapDataset FlatMapTransform InterleaveIterDataset LimitIterDataset
        MapWithIndexTransform PackAndBatchOperation ParquetIterDataset ParseExample
        PerformanceConfig RebatchIterDataset RepeatIterDataset RngPool ShapeDtypeStruct
        ShapeDtypeStructProtocol TFRecordIterDataset TextLinesIterDataset
        ThreadPrefetchDatasetIterator ThreadPrefetchIterDataset WindowShuffleIterDataset
        WindowShuffleMapDataset WithOptionsIterDataset ZipIterDataset ZipMapDataset
        apply_transformations assert_equal_output_after_checkpoint batch_and_pad device_put
        get_element_spec get_next_index index_shuffle multithread_prefetch
        pick_performance_config set_next_index""",
    "grain_jax.multiprocessing": """
        MultiprocessingOptions SharedMemoryArray SharedMemoryArrayMetadata""",
    "grain_jax.python": """
        ArrayRecordDataSource Batch BatchOperation DATASET_INDEX DataLoader DatasetIterator
        DatasetSelectionMap EPOCH
        FilterOperation FilterTransform FlatMapTransform INDEX InMemoryDataSource IndexSampler
        IterDataset META_FEATURES MapDataset MapOperation MapTransform MapWithIndexTransform
        MultiprocessingOptions NoSharding Operation PyGrainCheckpointHandler
        PyGrainCheckpointRestore PyGrainCheckpointSave PyGrainDatasetIterator RECORD RECORD_KEY
        RandomAccessDataSource RandomMapOperation RandomMapTransform RangeDataSource ReadOptions
        Record RecordMetadata SEED Sampler SequentialSampler ShardByJaxProcess ShardOptions
        SharedMemoryArray Transformation Transformations config experimental load""",
    "grain_jax.samplers": "IndexSampler Sampler SequentialSampler",
    "grain_jax.sharding": "NoSharding ShardByJaxProcess ShardBySharding ShardOptions",
    "grain_jax.sources": """
        ArrayRecordDataSource PerProcess RandomAccessDataSource RangeDataSource
        SharedMemoryDataSource""",
    "grain_jax.transforms": """
        Batch DatasetSelectionMap Filter FlatMap Map MapWithIndex RandomMap TfRandomMap
        Transformation Transformations""",
}

# Ours alone at this path; every other name is where Grain has it.
NOT_IN_GRAIN = {
    "grain_jax": {
        *("DeviceIterator", "ErrorPolicy", "Stats", "StepStats", "WorkerStats"),
        *("Epochs", "errors", "prefetch_to_device", "progress", "prometheus_metrics"),
    },
    "grain_jax.errors": set(PUBLIC["grain_jax.errors"].split()),
    "grain_jax.experimental": {"ParseExample", "TextLinesIterDataset"},
    "grain_jax.python": {"FlatMapTransform"},
    "grain_jax.sharding": {"ShardBySharding"},
    "grain_jax.sources": {"PerProcess"},
    "grain_jax.transforms": {"FlatMap"},
}


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module: str) -> None:
    facade = importlib.import_module(module)
    expected = set(PUBLIC[module].split())
    assert set(facade.__all__) == expected
    assert expected <= set(dir(facade))
    for name in expected:
        assert getattr(facade, name) is not None


@pytest.mark.parametrize("module", PUBLIC)
def test_no_public_name_is_unlisted(module: str) -> None:
    facade = importlib.import_module(module)
    extra = {
        name
        for name, value in vars(facade).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }
    assert extra - set(facade.__all__) <= {"TYPE_CHECKING", "Final"}


@pytest.mark.parametrize("module", PUBLIC)
def test_type_checkers_see_what_runs(module: str) -> None:
    """A lazy name is listed twice, for type checkers and for the import system: the same target."""
    facade = importlib.import_module(module)
    assert facade.__file__ is not None
    promised: dict[str, str] = {}
    for node in ast.walk(ast.parse(Path(facade.__file__).read_text())):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            continue
        for statement in node.body:
            assert isinstance(statement, ast.ImportFrom)
            for alias in statement.names:
                promised[alias.asname or alias.name] = f"{statement.module}:{alias.name}"
    for public, target in promised.items():
        home, _, name = target.partition(":")
        assert getattr(facade, public) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("module", PUBLIC)
def test_names_are_where_grain_has_them(module: str, reference_grain: types.ModuleType) -> None:
    ours = set(PUBLIC[module].split()) - NOT_IN_GRAIN.get(module, set())
    if not ours:
        return
    theirs = importlib.import_module(module.replace("grain_jax", reference_grain.__name__))
    missing = ours - set(dir(theirs))
    assert {name for name in missing if not find_spec(f"{theirs.__name__}.{name}")} == set()


def test_an_unknown_name_is_an_attribute_error_that_names_the_module() -> None:
    import grain_jax

    with pytest.raises(AttributeError, match="module 'grain_jax' has no attribute 'DataLoder'"):
        grain_jax.DataLoder  # noqa: B018
