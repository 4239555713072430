"""What an iterator that reads another one ahead says in its place."""

from __future__ import annotations

from typing import Any

from grain_jax._execution.meter import Meter

__all__ = ["Relay"]


class Relay:
    """Hands on what a source says of itself, whatever has been read ahead of its user."""

    _iterator: Any

    def _encode(self, state: Any) -> Any:
        """The state to hand out for a state of the source."""
        return state

    def _decode(self, state: Any) -> Any:
        """The state of the source in a state that was handed out."""
        return state

    @property
    def skipped(self) -> tuple[str, ...]:
        """What the source says that its `ErrorPolicy` left out, in what was read ahead, too."""
        return getattr(self._iterator, "skipped", ())

    @property
    def skipped_count(self) -> int:
        """How many records that were, as the source says."""
        return getattr(self._iterator, "skipped_count", 0)

    @property
    def mixture_counts(self) -> dict[str, dict[str, int]]:
        """What the source says of the parts of its mixture, as of the last element received."""
        return getattr(self._iterator, "mixture_counts", {})

    def _declared(self) -> Any:
        """What the source declares of its stream; see `Positioned`."""
        say = getattr(self._iterator, "_declared", None)
        return None if say is None else say()

    def _standing(self, state: Any) -> dict[str, int]:
        """How far a state is, as the source counts; see `Positioned`."""
        say = getattr(self._iterator, "_standing", None)
        return {} if say is None else say(self._decode(state))

    def _measure_stages(self) -> None:
        """Has the pipeline measured, for who reads this one ahead."""
        begin = getattr(self._iterator, "_measure_stages", None)
        if begin is not None:
            begin()

    def _stage_meter(self) -> Meter | None:
        """Returns what sums up the pipeline's costs; None where nobody does."""
        say = getattr(self._iterator, "_stage_meter", None)
        meter: Meter | None = None if say is None else say()
        return meter
