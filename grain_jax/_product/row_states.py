"""Row states: the state of a source together with the rows of a full batch.

A device stage has to know a short batch for one after a restore too, where it may be the first to
come. Where the source does not say how many rows its batches have, their number is kept with its
state, beside the sizes that its `Batch` steps had then: another size scales it.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

from grain_jax._values.errors import StateError
from grain_jax._values.files import JOINT, is_joint

__all__ = ["Saved", "Shape", "with_rows", "without_rows"]

Shape = tuple[int, ...]

_ROWS = "batch_rows"
_SIZES = "batch_sizes"
_STEPS = "steps"
_MOST_ROWS = 1 << 50
# What says how states of several processes belong together is looked for on the outside.
_MARKS = ("elastic", "joined", "shard", "sampler_shard")
_STATE_KEYS = {_ROWS, _SIZES, _STEPS, "source", "base64", *_MARKS}


@dataclasses.dataclass(frozen=True)
class Saved:
    """What the run that saved a state knew and its source does not say.

    Attributes:
      lead: lengths of the batch's axis and of those before it; None before the first batch.
      sizes: of the source's `Batch` steps, innermost first; None if it has none, or does not say.
      steps: how many batches all processes of the stage had had; None where nobody compares.
    """

    lead: Shape | None = None
    sizes: Shape | None = None
    steps: int | None = None

    def scaled(self, sizes: Shape | None) -> Shape | None:
        """Returns the lengths with other sizes of batches; None where they do not tell.

        >>> Saved((3, 8), (8, 3)).scaled((4, 3))
        (3, 4)
        """
        if self.lead is None or sizes == self.sizes:
            return self.lead
        if self.sizes is None or sizes is None or len(sizes) != len(self.sizes):
            return None
        lead = list(self.lead)
        # The innermost batch is along the batch's axis, or the outermost along the first.
        surplus = max(0, len(sizes) - len(lead))
        pairs = zip(self.sizes[surplus:], sizes[surplus:], strict=True)
        for place, (before, now) in enumerate(pairs, 1):
            lead[-place], rest = divmod(lead[-place] * now, before)
            if rest:
                return None
        return tuple(lead)


def with_rows(state: Any, saved: Saved) -> Any:
    """A state of a source together with the rows of a full batch; bytes stay bytes, of JSON.

    >>> with_rows({"next": 3}, Saved((8,)))
    {'batch_rows': 8, 'source': {'next': 3}}
    """
    lead = saved.lead
    rows = lead[0] if lead is not None and len(lead) == 1 else lead and list(lead)
    about = {_ROWS: rows} | ({_SIZES: list(saved.sizes)} if saved.sizes else {})
    about |= {} if saved.steps is None else {_STEPS: saved.steps}
    if not isinstance(state, bytes):
        whole = {**about, "source": state}
        if isinstance(state, dict):
            whole.update({key: state[key] for key in _MARKS if state.get(key)})
        return whole
    try:
        inner = json.loads(state)
    except ValueError:
        return json.dumps({**about, "base64": base64.b64encode(state).decode()}).encode()
    whole = with_rows(inner, saved)
    # As text, since the source is to get the bytes back that it gave.
    return json.dumps({**whole, "source": state.decode()}).encode()


def without_rows(state: Any, axes: int) -> tuple[Any, Saved]:
    """The parts of a state from `with_rows`; any other state comes back as it is.

    The states of all processes together are taken apart one by one.

    Raises:
      StateError: for a state that was damaged, or whose rows were not counted along so many axes.
    """
    whole = state
    if isinstance(state, bytes):
        try:
            whole = json.loads(state)
        except (ValueError, RecursionError):
            return state, Saved()
    if is_joint(whole):
        return _without_rows_each(whole[JOINT], axes, isinstance(state, bytes))
    if not isinstance(whole, dict) or not {_ROWS} < whole.keys() <= _STATE_KEYS:
        return state, Saved()
    saved = Saved(_lead(whole[_ROWS], axes), _sizes(whole.get(_SIZES)), _steps(whole.get(_STEPS)))
    try:
        if "base64" in whole:
            return base64.b64decode(whole["base64"], validate=True), saved
        inner: Any = whole["source"]
        return (inner.encode() if isinstance(state, bytes) else inner), saved
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise StateError(
            f"the state of a device stage has no state of its source in it ({error})"
        ) from None


def _without_rows_each(states: Any, axes: int, as_bytes: bool) -> tuple[Any, Saved]:
    if not isinstance(states, list):
        raise StateError(f"field {JOINT!r} of the state is no list of states")
    parts = [without_rows(json.dumps(s).encode() if as_bytes else s, axes) for s in states]
    # All processes have batches of the same shape, but one may not have had any.
    saved = next((saved for _, saved in parts if saved.lead is not None), Saved())
    inner = [part for part, _ in parts]
    if not as_bytes:
        return {JOINT: inner}, saved
    try:
        return json.dumps({JOINT: list(map(json.loads, inner))}).encode(), saved
    except ValueError as error:
        raise StateError(
            f"the states of all processes have no JSON of their source in them ({error})"
        ) from None


def _lead(rows: Any, axes: int) -> Shape | None:
    if rows is None:
        return None
    lead = tuple(rows) if isinstance(rows, list) else (rows,)
    if len(lead) != axes or not all(_is_size(n, 0) for n in lead):
        raise StateError(
            f"field {_ROWS!r} of the state is {str(rows)[:80]}, expected "
            + ("a number of rows" if axes == 1 else f"the lengths of {axes} axes")
        )
    return lead


def _sizes(sizes: Any) -> Shape | None:
    if sizes is None:
        return None
    if not isinstance(sizes, list) or not all(_is_size(n, 1) for n in sizes):
        raise StateError(
            f"field {_SIZES!r} of the state is {str(sizes)[:80]}, expected sizes of batches"
        )
    return tuple(sizes)


def _steps(steps: Any) -> int | None:
    if steps is not None and not _is_size(steps, 0):
        raise StateError(
            f"field {_STEPS!r} of the state is {str(steps)[:80]}, expected a number of batches"
        )
    return steps  # type: ignore[no-any-return]


def _is_size(number: Any, least: int) -> bool:
    return type(number) is int and least <= number < _MOST_ROWS
