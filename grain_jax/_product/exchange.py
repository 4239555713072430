"""Messages between the processes that hold the devices of a sharding.

A `Channel` is used by all of them, in the same order, like a collective. What is heard is what all
have said to one name; saying or hearing the same once more changes nothing, so that a wait can be
interrupted and done again. It goes through the key-value store of the coordination service that
`jax.distributed` starts, so that it neither waits for devices nor meets collectives there.
Where there is no such service, it is a collective.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import time
from typing import Any

import jax

from grain_jax._product import collective
from grain_jax._product.looks import LOOKS, LOOKS_AT_FIRST, TRIES, Elsewhere, Seen, failures
from grain_jax._values import notices
from grain_jax._values.errors import ClosedError, InvalidValueError

__all__ = ["Channel"]

Said = tuple[int, int]
"""Name of one exchange: how often the position was set before, and a number since then.

Or -1, and a number, for what is not about batches.
"""

# A wait inside the service cannot be interrupted: so long, and so often. Later ones are polled.
_INSIDE_MS, _QUICK_SECONDS = 250, 1.0
_LOOK_SECONDS = 1.0  # between looks for notices
_LONGEST_SLEEP = 0.2
# Of thousands of processes that one waits for, it looks at so many.
_LOOKED_AT = 8

_LEFT = "left"
_KEEPS = ". (This process keeps its own batch, and next() waits for the others again.)"

# Channels that have been used, of each set of processes, in the order of their first use: that is
# how those of several processes belong together.
_opened: collections.defaultdict[tuple[int, ...], list[Channel | None]]
_opened = collections.defaultdict(list)

# Of each process the number of the failure that was raised here last, and by which channel.
_raised: dict[int, tuple[int, Channel]] = {}


class Channel:
    """Messages of one iterator.

    Args:
      devices: of the processes that take part, the same list on each.

    Attributes:
      digest: stands for the set of these processes.
    """

    def __init__(self, devices: list[Any]) -> None:
        notices.announce_end()
        self._processes = tuple(sorted({device.process_index for device in devices}))
        names = ",".join(map(str, self._processes)).encode()
        self.digest = hashlib.sha256(names).hexdigest()[:16]
        self._devices = devices
        self._place: int | None = None
        self._last: Said = (0, -1)
        self._message: tuple[Said, bytes] | None = None
        self._keys: list[str] = []
        self._is_new = True
        self._has_left = False

    @property
    def name(self) -> str | None:
        """What stands for this channel on all processes, once it has been used."""
        return None if self._place is None else f"{self.digest}/{self._place}"

    def say(self, name: Said, message: bytes) -> bool:
        """Says something without a wait for the others; what was said before stands.

        Returns:
          False where only an exchange can do that, since there is no service.
        """
        store = notices.client()
        if store is None:
            return len(self._processes) == 1
        # Said again, it may have been heard already: it has to be the same.
        if self._message is None or self._message[0] != name:
            self._message = name, message
        key = self._key(name)
        if key not in self._keys:
            self._keys.append(key)
        _put(store, key, self._message[1])
        self._last = max(self._last, name)
        return True

    def has_said(self, name: Said) -> bool:
        """Whether this process has said something to this name or a later one."""
        return self._last >= name

    def exchange(self, name: Said, message: bytes) -> dict[int, bytes]:
        """Returns the message of each process, by process index; waits until all are there.

        Raises:
          InvalidValueError: if another process will not come, by what it has put up; nothing has
            changed then, and the same call goes on waiting.
        """
        if len(self._processes) == 1:
            return {self._processes[0]: message}
        if notices.client() is None:
            return collective.exchange(self._devices, message)
        found = None
        while found is None:
            self.say(name, message)
            try:
                found = self._await(name)
            except _NewPlaceError as place:
                self._withdraw(name)
                self._take_place(place.args[0])
            except (InvalidValueError, ClosedError):
                # Whatever comes to have this name must not take it for its own.
                self._withdraw(name)
                raise
        for key in self._keys[:-1]:
            # Whoever has said something here has heard everything before.
            notices.client().key_value_delete(key)
            self._keys.remove(key)
        self._is_new = False
        return {process: found[process] for process in self._processes}

    def leave(self) -> None:
        """Lets those know who wait here that this process will not come again.

        What the last to leave finds of this channel in the store, it removes.
        """
        self._has_left = True
        store = notices.client()
        if self._place is None or store is None:
            return
        with contextlib.suppress(Exception):  # a service that has ended; JAX says so itself
            _put(store, f"{self._root()}/{_LEFT}/{jax.process_index()}/said", b"")
            if self.left() == set(self._processes):
                store.key_value_delete(self._root())

    def left(self) -> set[int]:
        """Returns the processes that will not come again."""
        listed = notices.client().key_value_dir_get_bytes(f"{self._root()}/{_LEFT}/")
        return {_process(key) for key, _ in listed}

    def _withdraw(self, name: Said) -> None:
        key = self._key(name)
        notices.client().key_value_delete(key)
        self._keys.remove(key)
        if self._last == name:
            self._last = name[0], name[1] - 1

    def _await(self, name: Said) -> dict[int, bytes]:
        store, folder = notices.client(), self._folder(name)
        began = time.monotonic()
        watch = _Watch(self, name)
        try:
            while True:
                self._check_open()
                listed = store.key_value_dir_get_bytes(folder)
                found = {_process(key): value for key, value in listed}
                missing = [process for process in self._processes if process not in found]
                if not missing:
                    return found
                key = f"{folder}{missing[0]}/"
                # Whoever is there is not listed again and again while another is waited for.
                while (waited := time.monotonic() - began) >= _QUICK_SECONDS:
                    if store.key_value_dir_get_bytes(key):
                        break
                    self._check_open()
                    watch.look(missing)
                    time.sleep(min(_LONGEST_SLEEP, waited / 20))
                else:
                    last = _wait_inside(store, f"{key}said")
                    if last is not None and len(missing) == 1:
                        return {**found, missing[0]: last}
        finally:
            watch.end()

    def _check_open(self) -> None:
        if self._has_left:  # `close` may come from another thread while this one waits
            raise ClosedError("this iterator was closed while it waited for other processes")

    def _root(self) -> str:
        return f"grain_jax/{self.digest}/{self._number()}"

    def _folder(self, name: Said) -> str:
        return f"{self._root()}/{name[0]}.{name[1]}/"

    def _key(self, name: Said) -> str:
        return f"{self._folder(name)}{jax.process_index()}/said"

    def _number(self) -> int:
        if self._place is None:
            opened = _opened[self._processes]
            if self not in opened:
                opened.append(self)
            self._place = opened.index(self)
        return self._place

    def _take_place(self, number: int) -> None:
        """Goes on as the channel of another number, which no other has here."""
        opened = _opened[self._processes]
        opened.extend([None] * (number + 1 - len(opened)))
        opened[:] = [None if channel is self else channel for channel in opened]
        opened[number] = self
        self._place = number


class _NewPlaceError(Exception):
    """Others have used more iterators, and this one is the next for all of them: its number."""


class _Watch:
    """Looks for the notices of those who are waited for, and puts one up of the wait itself."""

    def __init__(self, channel: Channel, name: Said) -> None:
        self._channel, self._name = channel, name
        self._at = [channel._number(), *name]
        self._next = 0.0
        self._seen: dict[int, Seen] = {}

    def look(self, missing: list[int]) -> None:
        """Raises if one of those who are missing will not come."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK_SECONDS
        if not notices.is_up(notices.WAITS):
            more = {"of": self._channel.digest, "new": self._channel._is_new}
            notices.put_up(notices.WAITS, "", at=self._at, **more)
        left, before = self._channel.left(), self._seen
        self._seen = {
            process: self._after(before.get(process, Seen()), process, process in left)
            for process in missing[:_LOOKED_AT]
        }
        for process, seen in self._seen.items():
            self._judge(process, seen)

    def end(self) -> None:
        """Takes down the notice of the wait."""
        if notices.is_up(notices.WAITS):
            notices.take_down()

    def _after(self, before: Seen, process: int, has_left: bool) -> Seen:
        """What is known of a process after one look more."""
        notice = notices.read(process)
        elsewhere = self._elsewhere(process, notice)
        return Seen(
            notice=notice,
            looks=before.looks + 1 if notice == before.notice else 1,
            left=before.left + has_left,
            elsewhere=elsewhere,
            apart=before.apart + (elsewhere is not None),
            tries=before.tries + (failures(notice) > failures(before.notice) > 0),
        )

    def _judge(self, process: int, seen: Seen) -> None:
        notice, is_new = seen.notice, self._channel._is_new
        problem = ""
        if notice is not None and seen.looks >= LOOKS:
            if notice["kind"] == notices.FAILED and self._concerns(process, notice):
                problem = f"process {process} failed {notice['text'].partition(_KEEPS)[0]}"
            elif notice["kind"] == notices.ENDED:
                problem = f"process {process} has ended, {notice['text']}"
        fails = notice is not None and seen.tries >= TRIES and self._concerns(process, notice)
        if notice is not None and fails and not problem:
            text = notice["text"].partition(_KEEPS)[0]
            problem = f"process {process} has failed {failures(notice)} times, at last {text}"
        patience = LOOKS_AT_FIRST if is_new else LOOKS
        if not problem and seen.left >= patience and not (is_new and seen.elsewhere):
            problem = f"process {process} will not ask for it: it closed its iterator"
        if not problem and seen.elsewhere and seen.apart >= seen.elsewhere.looks:
            if seen.elsewhere.place is not None:
                raise _NewPlaceError(seen.elsewhere.place)
            problem = seen.elsewhere.problem
        if problem:
            raise InvalidValueError(f"{problem.removesuffix('.')}{_KEEPS}")

    def _concerns(self, process: int, notice: dict[str, Any]) -> bool:
        """Whether a failure is one that this iterator has to do with.

        It is not if it was raised here by another one, or its process has left the one it came of.
        """
        number, where = notice["number"], notice.get("where")
        raised = _raised.get(process)
        if raised is not None and raised[0] == number and raised[1] is not self._channel:
            return False
        if where not in (None, self._channel.name):
            listed = notices.client().key_value_dir_get_bytes(f"grain_jax/{where}/")
            # Of one that all have left there is nothing.
            if not listed or any(key.endswith(f"/{_LEFT}/{process}/said") for key, _ in listed):
                return False
        _raised[process] = number, self._channel
        return True

    def _elsewhere(self, process: int, notice: dict[str, Any] | None) -> Elsewhere | None:
        """Says what is wrong if a process waits for this one at a place where it is not."""
        if notice is None or notice.get("of") != self._channel.digest:
            return None
        is_new = notice["new"] and self._channel._is_new
        number, *name = notice["at"]
        if (name[0] < 0) != (self._name[0] < 0):
            doing = ["asks for a batch", "restores a position"]
            return Elsewhere(
                f"process {process} {doing[name[0] < 0]}, and this one {doing[self._name[0] < 0]}:"
                " restore on all processes, or on none"
            )
        opened = _opened[self._channel._processes]
        other = opened[number] if number < len(opened) else None
        if notice["at"] == self._at or (other is not None and other.has_said(tuple(name))):
            return None
        if is_new and name == list(self._name):
            # One of them has had an iterator that another did not come to use.
            if number > self._at[0] and other is None:
                return Elsewhere(place=number)
            return None
        if number == self._at[0] or is_new:
            return Elsewhere(
                f"process {process} has set another position (set_state) {name[0]} times and this"
                f" one {self._name[0]} times: set one on all processes, or on none, so that they"
                " stay at the same step"
            )
        has_left = other is not None and other._has_left
        has_gone_on = has_left or (self._channel._is_new and number < self._at[0])
        closed = ", which this process has closed" if has_left else ""
        return Elsewhere(
            f"process {process} waits for a batch of another iterator, the one that was used as"
            f" number {number + 1} there{closed}, and this is number {self._at[0] + 1} here: ask"
            " the iterators in the same order on all processes",
            looks=LOOKS_AT_FIRST if has_gone_on else LOOKS,
        )


def _process(key: str) -> int:
    """The process that has said something, from the key that it said it to."""
    return int(key.split("/")[-2])


def _put(store: Any, key: str, message: bytes) -> None:
    try:
        store.key_value_set_bytes(key, message)
    except Exception as error:
        if "ALREADY_EXISTS" not in str(error):
            raise


def _wait_inside(store: Any, key: str) -> bytes | None:
    """Waits for a key in the service, for a short time; None if it does not come."""
    try:
        value: bytes = store.blocking_key_value_get_bytes(key, _INSIDE_MS)
    except Exception as error:
        if "DEADLINE_EXCEEDED" not in str(error):
            raise
        return None
    return value
