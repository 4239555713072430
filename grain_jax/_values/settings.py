"""Settings by name, as Grain has them in flags: kept for programs that set them."""

from __future__ import annotations

from typing import Any

from grain_jax._values import errors

__all__ = ["Config", "config"]

_DEFAULTS: dict[str, Any] = {
    "enable_multiprocess_worker_profiling": False,
    "py_dataset_visualization_output_dir": None,
    "py_debug_mode": False,
    "py_relay_sigterm_to_main": False,
    "py_traceback_filtering": "auto",
    "tf_interleaved_shuffle": False,
    "tf_interleaved_shuffle_block_size": 10,
    "tf_interleaved_shuffle_parallel_blocks": 10,
    "tf_lookup_batch_size": 100,
    "tf_lookup_fast_warmup": False,
    "tf_lookup_num_parallel_calls": -1,
    "tf_optimized_sequential_read": False,
    "tf_prefetch_buffer_size": -1,
}


class Config:
    """The settings that Grain has. They are kept and given back; none changes what is done here.

    Example:
      >>> import grain_jax as grain
      >>> grain.config.update("py_debug_mode", True)
      >>> grain.config.py_debug_mode
      True
      >>> grain.config.update("py_debug_mode", False)
    """

    def __init__(self) -> None:
        self.__dict__["_values"] = dict(_DEFAULTS)

    def update(self, name: str, value: Any) -> None:
        """Sets a setting.

        Raises:
          InvalidValueError: for a name that is none.
        """
        self.get_or_default(name)
        self.__dict__["_values"][name] = value

    def get_or_default(self, name: str) -> Any:
        """Returns a setting.

        Raises:
          InvalidValueError: for a name that is none.
        """
        values: dict[str, Any] = self.__dict__["_values"]
        if name not in values:
            raise errors.InvalidValueError(
                f"{name!r} is no setting. There are {', '.join(sorted(values))}."
            )
        return values[name]

    def __getattr__(self, name: str) -> Any:
        values: dict[str, Any] = self.__dict__.get("_values", {})
        if name not in values:
            raise AttributeError(f"config has no setting {name!r}")
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise errors.InvalidValueError(f"Write config.update({name!r}, {value!r}).")

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), *self.__dict__["_values"]])


config = Config()
