"""Names of the features that describe a record rather than belong to it."""

from typing import Final

__all__ = ["DATASET_INDEX", "EPOCH", "INDEX", "META_FEATURES", "RECORD", "RECORD_KEY", "SEED"]

DATASET_INDEX: Final = "_dataset_index"
EPOCH: Final = "_epoch"
INDEX: Final = "_index"
RECORD: Final = "_record"
RECORD_KEY: Final = "_record_key"
SEED: Final = "_seed"
META_FEATURES: Final = frozenset({DATASET_INDEX, EPOCH, INDEX, RECORD, RECORD_KEY, SEED})
