"""Batches with another number of rows than the rest: refused, dropped or padded."""

from __future__ import annotations

import base64
import json
from typing import Any

from grain_jax._values.errors import InvalidTypeError, InvalidValueError

__all__ = ["Rows", "with_rows", "without_rows"]

_RULES = ("error", "drop", "pad")


class Rows:
    """How many rows a batch of this process has, and what becomes of one that has another number.

    The number is that of the source's description if it has one, otherwise that of the first batch.

    Args:
      rule: "error", "drop" or "pad"; None takes every element as it is.
      mask_key: where the mask goes with "pad".
      described: rows of a full batch, and of the last one if that is short or else None; None if
        the source does not say.

    Raises:
      InvalidValueError: for another rule, and for "error" if it is known that the last is short.
    """

    def __init__(
        self, rule: str | None, mask_key: str, described: tuple[int, int | None] | None
    ) -> None:
        if rule is not None and rule not in _RULES:
            raise InvalidValueError(
                f"remainder={rule!r} is not known: use 'error', 'drop' or 'pad'."
            )
        if not isinstance(mask_key, str):
            raise InvalidTypeError(f"mask_key={mask_key!r} is no string, and it is a dict's key.")
        self.rule = rule
        self.mask_key = mask_key
        self.described = described
        self.full = described[0] if described is not None else None
        if rule == "error" and self.last_is_short:
            assert described is not None
            raise InvalidValueError(
                f"the last batch has {described[1]} rows in every leaf and the others have"
                f" {described[0]}, so that its arrays would have another global shape."
                f" {_WHAT_WORKS}"
            )

    @property
    def is_fixed(self) -> bool:
        """Whether nothing can be learnt from the first batch."""
        return self.rule is None or self.described is not None

    @property
    def last_is_short(self) -> bool | None:
        """Whether the last batch is short; None if nobody knows."""
        if self.described is None:
            return None
        full, last = self.described
        return last is not None and last != full

    def length(self, elements: int | None) -> int | None:
        """How many batches come out of a source with this many; None where nobody can know."""
        if elements is None or self.rule != "drop":
            return elements
        short = self.last_is_short
        return None if short is None else elements - short

    def judge(self, leaves: list[tuple[str, tuple[int, ...]]]) -> str:
        """What to do with a batch: "take", "drop" or "pad".

        Args:
          leaves: name and shape of each leaf that has one row for each example.

        Raises:
          InvalidValueError: if leaves differ in rows, or the rule refuses the batch.
        """
        if self.rule is None:
            return "take"
        if not leaves:
            if self.rule == "pad":
                raise InvalidValueError(
                    "remainder='pad' counts the rows of array leaves, and this element has none"
                    " with an axis. Batch the elements, or leave out remainder='pad'."
                )
            return "take"
        (name, shape), rows = leaves[0], leaves[0][1][0]
        for other, other_shape in leaves:
            if other_shape[0] != rows:
                raise InvalidValueError(
                    f"{name} has {rows} rows (shape {shape}) and {other} has {other_shape[0]}"
                    f" (shape {other_shape}) in one batch. Leaves without one row for each example"
                    " need a sharding of their own that does not name axis 0, in a tree of"
                    " shardings: PartitionSpec() for one of them."
                )
        if self.full is None:
            self.full = rows
        if rows == self.full:
            return "take"
        if self.rule == "error" or (self.rule == "pad" and rows > self.full):
            raise InvalidValueError(
                f"{name} has {rows} rows (shape {shape}) in a stream of batches with {self.full}"
                f" rows, so that its global shape would differ. {_WHAT_WORKS}"
            )
        return self.rule

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


def with_rows(state: Any, rows: int | None) -> Any:
    """A state of a source together with the rows of a full batch; bytes stay bytes, of JSON.

    >>> with_rows({"next": 3}, 8)
    {'batch_rows': 8, 'source': {'next': 3}}
    """
    if not isinstance(state, bytes):
        whole = {_ROWS: rows, "source": state}
        # The mark of a state that is equal on all processes is looked for on the outside.
        if isinstance(state, dict) and state.get("elastic") is True:
            whole["elastic"] = True
        return whole
    try:
        inner = json.loads(state)
    except ValueError:
        return json.dumps({_ROWS: rows, "base64": base64.b64encode(state).decode()}).encode()
    whole = with_rows(inner, rows)
    # As text, since the source is to get the bytes back that it gave.
    return json.dumps({**whole, "source": state.decode()}).encode()


def without_rows(state: Any) -> tuple[Any, int | None]:
    """The parts of a state from `with_rows`; any other state comes back as it is, with None."""
    whole = state
    if isinstance(state, bytes):
        try:
            whole = json.loads(state)
        except ValueError:
            return state, None
    if not isinstance(whole, dict) or not {_ROWS} < whole.keys() <= _STATE_KEYS:
        return state, None
    if "base64" in whole:
        return base64.b64decode(whole["base64"]), whole[_ROWS]
    inner: Any = whole.get("source")
    return (inner.encode() if isinstance(state, bytes) else inner), whole[_ROWS]


_ROWS = "batch_rows"
_STATE_KEYS = {_ROWS, "source", "base64", "elastic"}
