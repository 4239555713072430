"""How records are divided over the processes of a training job."""

from grain_jax._values.sharding import NoSharding, ShardByJaxProcess, ShardBySharding, ShardOptions

__all__ = ["NoSharding", "ShardByJaxProcess", "ShardBySharding", "ShardOptions"]
