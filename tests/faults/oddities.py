"""Exceptions as odd as a user's may be."""

from __future__ import annotations

from typing import Any

__all__ = ["Base", "Unpicklable", "Unspeakable"]


class Unspeakable(ValueError):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Unpicklable(RuntimeError):
    """Does not pickle."""

    def __reduce__(self) -> Any:
        raise TypeError("no pickle")


class Base(BaseException):
    """Is no Exception."""
