"""Samplers: which record comes at which position."""

from grain_jax._algebra.samplers import IndexSampler, Sampler, SequentialSampler

__all__ = ["IndexSampler", "Sampler", "SequentialSampler"]
