"""Mixtures in cursors: parts that have other weights than in a state, that are more, or fewer.

A state of a pipeline with parts by name says which these were, nested as its cursor is. Where they
differ, each part goes on from its own cursor and new ones begin; what mixes them begins anew. A
stream behind them that has made outputs since its restart point cannot make these again.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from grain_jax._datasets.plan import Grouped, Plan
from grain_jax._execution import forms
from grain_jax._execution.runs import Cursor
from grain_jax._values import errors

__all__ = ["counts", "described", "fitted", "has_names"]


def _as_lists(cursor: Cursor) -> list[Any]:
    """Returns the cursor of a start as a JSON value."""
    place, since = cursor
    if isinstance(place, int):
        return [place, since]
    cursors, kept, groups = place
    return [[list(map(_as_lists, cursors)), list(kept), groups], since]


def has_names(plan: Plan) -> bool:
    """Whether a pipeline has parts by name; quick, as states are asked for with every element."""
    root = plan.root
    if not isinstance(root, Grouped):
        return False
    return getattr(root.grouping, "names", None) is not None or any(map(has_names, root.parents))


def described(form: forms.Form) -> Any:
    """Returns the names and weights of all parts that have names, as a JSON value; None without."""
    if isinstance(form, forms.Leaf):
        return None
    inner = [described(parent) for parent in form.parents]
    if _names(form) is not None:
        weights = form.grouping.weights  # type: ignore[union-attr]
        return {"names": list(_names(form) or ()), "weights": list(weights), "parts": inner}
    if not any(inner):
        return None
    return {"parts": inner[:1] if all(one == inner[0] for one in inner) else inner}


def fitted(given: Any, form: forms.Form, saved: Any) -> Any:
    """Returns the cursor of a state for the parts that there are now.

    Args:
      given: the cursor in the state.
      form: that of this pipeline's.
      saved: what `described` returned for the pipeline of the state.

    Raises:
      StateError: if the state has none of the parts.
    """
    fitting = _Fitting()
    found = fitting.fit(given, form, saved)
    for text in dict.fromkeys(fitting.changes):  # shards that are joined say the same
        warnings.warn(text, stacklevel=4)
    return found


class _Fitting:
    """Fits cursors to other parts.

    Attributes:
      changes: what differs, in words.
    """

    def __init__(self) -> None:
        self.changes: list[str] = []

    def fit(self, given: Any, form: forms.Form, saved: Any) -> Any:
        if isinstance(form, forms.Leaf) or not isinstance(saved, dict) or not _is_place(given):
            return given  # what is wrong with it is found when it is read
        (cursors, kept, groups), since = given
        inner = saved.get("parts")
        if not isinstance(inner, list) or not inner:
            return given
        before = len(self.changes)
        names = _names(form)
        if names is None:
            pairs = zip(cursors, form.parents, strict=False)
            cursors = [
                self.fit(cursor, parent, inner[min(number, len(inner) - 1)])
                for number, (cursor, parent) in enumerate(pairs)
            ]
        else:
            old = saved.get("names")
            if not isinstance(old, list) or not len(old) == len(cursors) == len(inner):
                return given
            known = dict(zip(map(str, old), zip(cursors, inner, strict=True), strict=True))
            cursors = self._by_name(form, names, known)
            if self._differs(form, names, saved, known):
                kept = list(form.first)
        if len(self.changes) > before and (groups or since):
            self.changes.append(
                f"{groups or since} outputs behind the mixture were made since its last restart "
                "point. They cannot be made again of other parts: their elements come once more."
            )
            groups = since = 0
        return [[cursors, kept, groups], since]

    def _by_name(
        self, form: forms.Over, names: tuple[str, ...], known: dict[str, Any]
    ) -> list[Any]:
        if not known.keys() & {*names}:
            raise errors.StateError(
                f"the state has the parts {list(known)} of a mixture, and this pipeline has "
                f"{list(names)}: none is the same. Give at least one of them its name of then."
            )
        return [
            self.fit(known[name][0], parent, known[name][1])
            if name in known
            else _as_lists(parent.start)
            for name, parent in zip(names, form.parents, strict=True)
        ]

    def _differs(
        self, form: forms.Over, names: tuple[str, ...], saved: dict[str, Any], known: dict[str, Any]
    ) -> bool:
        now = list(form.grouping.weights)  # type: ignore[union-attr]
        if list(known) == list(names) and saved.get("weights") == now:
            return False
        text = [f"{name!r} begins" for name in names if name not in known]
        text += [f"{name!r} is left out" for name in known if name not in names]
        text.append(f"the weights were {saved.get('weights')}, and are {now}")
        self.changes.append(
            f"the parts of a mixture differ from those of the state: {'; '.join(text)}. Each goes "
            "on where it was, and shares count from here on."
        )
        return True


def counts(form: forms.Form, cursor: Cursor) -> dict[str, dict[str, int]]:
    """Returns for each part of a mixture how many elements there have been, and what they weigh.

    Names of parts of parts come behind those of these and a slash.
    """
    found: dict[str, dict[str, int]] = {}
    for name, elements, weight in _counts(form, cursor):
        one = found.setdefault(name, {"elements": 0, "weight": 0})  # of lanes, the sum
        one["elements"] += elements
        one["weight"] += weight
    return found


def _counts(form: forms.Form, cursor: Cursor) -> Iterator[tuple[str, int, int]]:
    if isinstance(form, forms.Leaf):
        return
    cursors, kept, _ = cursor[0]
    taken = getattr(form.grouping, "taken", None)
    labels = [""] * len(cursors)
    if taken is not None:
        labels = list(_names(form) or map(str, range(len(cursors))))
        for label, (elements, weight) in zip(labels, taken(kept), strict=True):
            yield label, elements, weight
    for label, parent, one in zip(labels, form.parents, cursors, strict=True):
        for name, elements, weight in _counts(parent, one):
            yield f"{label}/{name}" if label else name, elements, weight


def _names(form: forms.Over) -> tuple[str, ...] | None:
    """Returns the names of the parts of a mixture; None where they have none."""
    names: tuple[str, ...] | None = getattr(form.grouping, "names", None)
    return names


def _is_place(given: Any) -> bool:
    """Whether it is the cursor of a stream made of others."""
    return (
        isinstance(given, list)
        and len(given) == 2
        and isinstance(given[0], list)
        and len(given[0]) == 3
        and isinstance(given[0][0], list)
        and isinstance(given[0][1], list)
    )
