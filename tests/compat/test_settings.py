"""Settings have Grain's names and defaults."""

from __future__ import annotations

from types import ModuleType

import pytest

import grain_jax


def test_names_and_defaults_are_those_of_grain(reference_grain: ModuleType) -> None:
    from absl import flags

    theirs = {
        flag.name.removeprefix("grain_"): flag.default
        for module, found in flags.FLAGS.flags_by_module_dict().items()
        if reference_grain.__name__ in module
        for flag in found
    }
    assert theirs
    assert {name: grain_jax.config.get_or_default(name) for name in theirs} == theirs
    assert set(theirs) <= set(dir(grain_jax.config))
    with pytest.raises(ValueError, match="nope"):
        grain_jax.config.get_or_default("nope")


def test_a_setting_is_kept(reference_grain: ModuleType) -> None:
    config = grain_jax.config
    assert grain_jax.python.config is config
    try:
        config.update("py_debug_mode", True)
        assert config.py_debug_mode is True
        assert config.get_or_default("py_debug_mode") is True
    finally:
        config.update("py_debug_mode", False)
    for one in (config, reference_grain.config):
        with pytest.raises(ValueError, match="nope"):
            one.update("nope", 1)
        with pytest.raises(ValueError, match="update"):
            one.py_debug_mode = True
    assert not hasattr(config, "nope")
    with pytest.raises(ValueError, match=r"'nope' is no setting\. There are .*py_debug_mode"):
        config.update("nope", 1)
