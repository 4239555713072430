"""Batches with another number of rows than the rest: refused, dropped or padded."""

from __future__ import annotations

from math import prod
from typing import Any

from grain_jax._product.row_states import Shape
from grain_jax._values.errors import InvalidTypeError, InvalidValueError

__all__ = ["Described", "Rows"]

Described = tuple[Shape, int | None]

_RULES = ("error", "drop", "pad")


class Rows:
    """How many rows a batch of this process has, and what becomes of one that has another number.

    Rows are counted along the batch's axis, and along those before it, if any: `lead` is the shape
    of these axes. The number is that of the source's description if it has one, otherwise that of
    the first batch.

    Args:
      rule: "error", "drop" or "pad"; None takes every element as it is.
      mask_key: where the mask goes with "pad".
      described: rows of a full batch, a number for each of the batches that are stacked in one
        another, and records in the last one here if it is known that that is not full on every
        process, 0 if it is missing here, or else None; None if the source does not say.
      axis: the batch's axis.

    Raises:
      InvalidValueError: for another rule, and for "error" if it is known that the last is short.
    """

    def __init__(
        self,
        rule: str | None,
        mask_key: str,
        described: Described | None,
        axis: int = 0,
    ) -> None:
        if rule is not None and rule not in _RULES:
            raise InvalidValueError(
                f"remainder={rule!r} is not known: use 'error', 'drop' or 'pad'."
            )
        if not isinstance(mask_key, str):
            raise InvalidTypeError(f"mask_key={mask_key!r} is no string, and it is a dict's key.")
        self.rule = rule
        self.mask_key = mask_key
        self.axis = axis
        self.full: Shape | None = None
        self.described: Described | None = None
        self.describe(described)
        if rule == "error" and self.described is not None and self.described[1] is not None:
            lead, last = self.described
            there = " here, and is not full on all processes," if last in (0, prod(lead)) else ""
            raise InvalidValueError(
                f"the last batch has {last} rows in every leaf{there} and the others have"
                f" {self.text(lead)}, so that its arrays would have another global shape."
                f" {_WHAT_WORKS}"
            )

    def describe(self, described: Described | None) -> None:
        """Takes over what the source says of its rows from where it stands now."""
        # Sources count along the first axes.
        is_here = described is not None and self.axis < len(described[0])
        self.described = described if is_here else None
        if self.described is not None:
            self.full = self.described[0]

    @property
    def axes(self) -> int:
        """How many leading axes number the rows: those of stacked batches, or up to the batch's."""
        return self.axis + 1 if self.described is None else len(self.described[0])

    @property
    def is_fixed(self) -> bool:
        """Whether nothing can be learnt from the first batch."""
        return self.rule is None or self.described is not None

    def arguments(self) -> dict[str, Any]:
        """What was asked for, by the names of the arguments."""
        if self.rule is None:
            return {}
        mask = {"mask_key": self.mask_key} if self.rule == "pad" else {}
        return {"remainder": self.rule, "axis": self.axis, **mask}

    def length(self, elements: int | None) -> int | None:
        """How many batches come out of a source with this many; None where nobody can know."""
        if elements is None or self.rule in (None, "error"):
            return elements
        if self.described is None:
            return elements if self.rule == "pad" else None
        last = self.described[1]
        if self.rule == "pad":
            return elements + (last == 0)
        return elements - bool(last)

    def judge(self, leaves: list[tuple[str, Shape]], uneven: bool = False) -> str:
        """What to do with a batch: "take", "drop" or "pad".

        Args:
          leaves: name and shape of each leaf that has one row for each example.
          uneven: whether it is known that the batch is not full on every process.

        Raises:
          InvalidValueError: if leaves differ in rows, or the rule refuses the batch.
        """
        if self.rule is None:
            return "take"
        if not leaves:
            if self.rule == "pad":
                raise InvalidValueError(
                    "remainder='pad' counts the rows of array leaves, and this element has none"
                    f" with an axis{f' {self.axis}' if self.axis else ''}. Batch the elements, or"
                    " leave out remainder='pad'."
                )
            return "take"
        lead = self._common(leaves)
        if self.full is None:
            self.full = lead
        if uneven and self.rule == "drop":
            return "drop"
        if lead == self.full and not (uneven and self.rule == "error"):
            return "take"
        too_large = any(size > most for size, most in zip(lead, self.full, strict=True))
        if self.rule == "error" or (self.rule == "pad" and too_large):
            name, shape = leaves[0]
            where = "" if lead != self.full else ", and fewer on other processes,"
            raise InvalidValueError(
                f"{name} has {self.text(lead)} rows (shape {shape}){where} in a stream of batches"
                f" with {self.text(self.full)} rows, so that its global shape would differ."
                f" {_WHAT_WORKS}"
            )
        return self.rule

    def _common(self, leaves: list[tuple[str, Shape]]) -> Shape:
        axes = self.axes
        (name, shape), lead = leaves[0], leaves[0][1][:axes]
        for other, other_shape in leaves:
            if other_shape[:axes] != lead:
                raise InvalidValueError(
                    f"{name} has {self.text(lead)} rows (shape {shape}) and {other} has"
                    f" {self.text(other_shape[:axes])} (shape {other_shape}) in one batch. Leaves"
                    " without one row for each example need a sharding of their own that does not"
                    f" name axis {self.axis}, in a tree of shardings: PartitionSpec() for one of"
                    " them."
                )
        return lead

    @staticmethod
    def text(lead: Shape) -> str:
        """The number of rows in words: `8`, or `2 x 8` with another axis before the rows."""
        return " x ".join(map(str, lead))

    def check_maskable(self, batch: Any) -> None:
        """Raises if there is no place for the mask.

        Raises:
          InvalidTypeError: if the batch is no dict.
          InvalidValueError: if it has the key already.
        """
        if not isinstance(batch, dict):
            raise InvalidTypeError(
                f"remainder='pad' adds the mask to the batch under {self.mask_key!r}, and a"
                f" {type(batch).__name__} has no keys. Map the batch to a dict, or use"
                " remainder='drop'."
            )
        if self.mask_key in batch:
            raise InvalidValueError(
                f"remainder='pad' adds the mask to the batch under {self.mask_key!r}, and the batch"
                " has a leaf of that name. Give another mask_key."
            )


_WHAT_WORKS = (
    "Use remainder='drop', or remainder='pad' for zeros and a mask; or"
    " Batch(..., drop_remainder=True) in the loader."
)
