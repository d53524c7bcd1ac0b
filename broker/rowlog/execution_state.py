"""The states of a message, one for each subscription, and every decision about them. Pure.

::

    open ── claim ──▶ claimed ── done ──▶ done
     ▲                  │ failed: tries + 1, not before a time ──▶ open, or after the last try: dead
     └── revive ── dead ┘ ── drop ──▶ done

A **claim** has a fresh token, and the epoch of the processor that made it. A ``process`` call has no epoch, and keeps
the one that it finds. A claimer may change a part only while its own token is in it. Each change here is written by a
compare-and-set on the bytes that it was decided from (rows.py).

If order is respected, a message that dies for a subscription is **held** for all later ones. They open again when the
dead letter is revived or dropped, or its subscription is removed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from broker.errors import Fenced
from broker.rowlog.cell_keys import MessageId
from broker.rowlog.setup import Settings, Setup, Subscription

BY_CALL: Final = b"c"
BY_PROCESSOR: Final = b"p"
"""The first byte of a claim's token."""


class Standing(enum.IntEnum):
    """The standing of a message with a subscription, as stored."""

    OPEN = 0
    DONE = 1
    DEAD = 2
    HELD = 3


@dataclass(frozen=True, slots=True)
class Part:
    """The part of a state for one subscription. Times are in ms since 1970."""

    standing: Standing = Standing.OPEN
    epoch: int = 0
    """The highest epoch that claimed the message."""
    tries: int = 0
    not_before: int = 0
    claimed_at: int = 0
    token: bytes = b""
    """The token of the claim; empty: the message is not claimed."""
    reason: str = ""
    """Why the last try failed."""

    @property
    def is_plain(self) -> bool:
        """True if the part says no more than open or done."""
        more = self.epoch or self.tries or self.not_before or self.claimed_at
        return self.standing <= Standing.DONE and not (more or self.token or self.reason)


DONE: Final = Part(Standing.DONE)


@dataclass(frozen=True, slots=True)
class State:
    """The execution state of a message: one part for each subscription that it was put for."""

    timestamp: int
    parts: Mapping[str, Part] = field(default_factory=dict)

    def with_part(self, name: str, part: Part) -> State:
        """Return the state with another part."""
        return State(self.timestamp, {**self.parts, name: part})

    @property
    def is_finished(self) -> bool:
        """True if the message is done for all subscriptions: its cells may be deleted."""
        return all(part.standing is Standing.DONE for part in self.parts.values())

    @property
    def dead(self) -> list[str]:
        """The subscriptions that gave it up, or hold it for an earlier one that did."""
        gave_up = (Standing.DEAD, Standing.HELD)
        return [name for name, part in self.parts.items() if part.standing in gave_up]

    def is_open(self, name: str) -> bool:
        """Return whether the message is open for a subscription."""
        part = self.parts.get(name)
        return part is not None and part.standing is Standing.OPEN


class Claimer(NamedTuple):
    """The claimer of a message. ``epoch`` 0: a ``process`` call claims."""

    token: bytes
    now: int
    """The claimer's time, ms since 1970."""
    epoch: int = 0


class Busy(Exception):
    """The message is claimed by another, or must wait: ``until``, ms since 1970; 0: not known."""

    def __init__(self, message: str, until: int = 0) -> None:
        """Keep both."""
        super().__init__(message)
        self.until = until


class Gone(Exception):
    """The message is not open for the subscription any more, or another has claimed it."""


def fresh(timestamp: int, names: Iterable[str]) -> State:
    """Return the state of a message that is being put."""
    return State(timestamp, dict.fromkeys(names, Part()))


def claim(state: State, name: str, by: Claimer, seen_at: int, settings: Settings) -> State:
    """Claim a message.

    Args:
        state: the message's state.
        name: the subscription.
        by: the claimer.
        seen_at: when the claimer first saw the claim that is there, by its own clock: ``claimed_at`` is of another's.
        settings: the rowlog's settings.

    Raises:
        Gone: it is not open.
        Busy: another has claimed it.
        Fenced: a later epoch has claimed it.
    """
    part = state.parts.get(name)
    if part is None or part.standing is not Standing.OPEN:
        raise Gone
    if part.token == by.token:
        return state  # An earlier attempt made the claim, and its answer was lost.
    over_at = seen_at + settings.claim_timeout_ms
    if part.token.startswith(BY_CALL) and by.now < over_at:
        raise Busy("a process call has it in work", over_at)
    if not by.epoch:
        if part.token.startswith(BY_PROCESSOR):
            raise Busy("a processor has it in work")
    elif part.epoch > by.epoch:
        raise Fenced(f"Epoch {part.epoch} works on a message that epoch {by.epoch} wants.")
    epoch = max(by.epoch, part.epoch)
    return state.with_part(name, replace(part, epoch=epoch, token=by.token, claimed_at=by.now))


def _claimed(state: State, name: str, token: bytes) -> Part:
    part = state.parts.get(name)
    if part is None or part.standing is not Standing.OPEN or part.token != token:
        raise Gone
    return part


def done(state: State, name: str, token: bytes) -> State:
    """Mark a claimed message as done. Raises Gone: another has claimed it."""
    _claimed(state, name, token)
    return state.with_part(name, DONE)


def given_back(state: State, name: str, token: bytes) -> State:
    """End a claim without counting a try. Raises Gone."""
    return state.with_part(name, replace(_claimed(state, name, token), token=b"", claimed_at=0))


class Failure(NamedTuple):
    """A failed try: when (ms since 1970), why, and a random number of [0, 1) for the jitter."""

    now: int
    reason: str
    chance: float


def failed(state: State, name: str, token: bytes, failure: Failure, setup: Setup) -> State:
    """Count a failed try: the message waits for its back-off, or is dead after the last try. Raises Gone."""
    part = _claimed(state, name, token)
    tries = part.tries + 1
    subscription = setup.named(name) or Subscription(name)
    last = subscription.max_tries
    if last and tries >= last:
        dead = Part(Standing.DEAD, part.epoch, tries, 0, 0, b"", failure.reason)
        state = state.with_part(name, dead)
        if setup.settings.respect_order:
            for later in _later(state, subscription, setup):
                if state.is_open(later):
                    held = replace(
                        state.parts[later], standing=Standing.HELD, token=b"", claimed_at=0
                    )
                    state = state.with_part(later, held)
        return state
    wait = int(backoff_ms(subscription, tries) * (0.5 + failure.chance / 2))
    return state.with_part(
        name, Part(Standing.OPEN, part.epoch, tries, failure.now + wait, 0, b"", failure.reason)
    )


def backoff_ms(subscription: Subscription, tries: int) -> int:
    """Return how long a message waits after its ``tries``-th try at most; half of it is random."""
    doubled: int = subscription.backoff_ms_first << min(max(tries - 1, 0), 32)
    return min(doubled, subscription.backoff_ms_max)


def revived(state: State, name: str, setup: Setup) -> State:
    """Open a dead message again, with no tries counted. Raises Gone: it is not dead."""
    part = Part(epoch=_dead(state, name, setup).epoch)
    return freed(state.with_part(name, part), setup)


def dropped(state: State, name: str, setup: Setup) -> State:
    """Drop a dead message: it counts as done. Raises Gone: it is not dead."""
    _dead(state, name, setup)
    return freed(state.with_part(name, DONE), setup)


def _dead(state: State, name: str, setup: Setup) -> Part:
    gave_up = Standing.DEAD, Standing.HELD
    if not any(_stands(state, name, each) for each in gave_up) or is_held(state, name, setup):
        raise Gone
    return state.parts[name]


def is_held(state: State, name: str, setup: Setup) -> bool:
    """Return whether a message is held for a subscription, and still dead for an earlier one."""
    subscription = setup.named(name)
    return (
        subscription is not None
        and _stands(state, name, Standing.HELD)
        and _is_dead_earlier(state, subscription, setup)
    )


def _is_dead_earlier(state: State, subscription: Subscription, setup: Setup) -> bool:
    return any(
        each.order < subscription.order and _stands(state, each.id, Standing.DEAD)
        for each in setup.current
    )


def freed(state: State, setup: Setup) -> State:
    """Open the held parts for which no earlier subscription has a dead letter."""
    for each in setup.current:
        if _stands(state, each.id, Standing.HELD) and not is_held(state, each.id, setup):
            opened = replace(state.parts[each.id], standing=Standing.OPEN)
            state = state.with_part(each.id, opened)
    return state


def _stands(state: State, name: str, standing: Standing) -> bool:
    part = state.parts.get(name)
    return part is not None and part.standing is standing


def _later(state: State, subscription: Subscription, setup: Setup) -> list[str]:
    return [
        each.id
        for each in setup.current
        if each.order > subscription.order and each.id in state.parts
    ]


def unknown(state: State, setup: Setup) -> set[str]:
    """Return the subscriptions for which a message is not done, and which a setup does not have."""
    there = {each.id for each in setup.current}
    return {
        name
        for name, part in state.parts.items()
        if part.standing is not Standing.DONE and name not in there
    }


def without(state: State, names: Iterable[str]) -> State:
    """Count a message as done for removed subscriptions."""
    for name in names:
        if name in state.parts:
            state = state.with_part(name, DONE)
    return state


def added(state: State, subscription: Subscription, setup: Setup) -> State:
    """Open a message for one more subscription, or hold it. Raises Gone: it is finished, or has that subscription."""
    if state.is_finished or subscription.id in state.parts:
        raise Gone
    is_held = setup.settings.respect_order and _is_dead_earlier(state, subscription, setup)
    return state.with_part(subscription.id, Part(Standing.HELD if is_held else Standing.OPEN))


def waits_for(state: State, subscription: Subscription, setup: Setup) -> list[str]:
    """Return the earlier subscriptions for which a message must be done first."""
    if not setup.settings.respect_order:
        return []
    return [
        each.id
        for each in setup.current
        if each.order < subscription.order and state.is_open(each.id)
    ]


class NextStep(enum.Enum):
    """The next step of a subscription at a row."""

    TAKE = "take"
    """The message may be claimed."""
    WAIT = "wait"
    """The first open message must wait, and so must all behind it."""
    NOTHING = "nothing"
    """No message is open."""


class Choice(NamedTuple):
    """The next step at a row; ``until``: when to look at it again at the latest, ms since 1970."""

    step: NextStep
    message: MessageId | None = None
    until: int = 0


Seen = Callable[[MessageId, int], int]
"""Returns when this process first saw a message after so many tries, ms since 1970 by its own clock."""


def choose(
    messages: Sequence[tuple[MessageId, State]],
    subscription: Subscription,
    setup: Setup,
    now: int,
    seen: Seen,
) -> Choice:
    """Choose the next one of a row's sorted messages: the first open one, or none."""
    head = next((each for each in messages if each[1].is_open(subscription.id)), None)
    if head is None:
        return Choice(NextStep.NOTHING)
    message, state = head
    if waits_for(state, subscription, setup):
        return Choice(NextStep.WAIT, message, now + setup.settings.wakeup_timeout_ms)
    part = state.parts[subscription.id]
    seen_at = seen(message, part.tries)
    delay = setup.settings.minimal_process_delay_ms
    ripe = seen_at + delay if delay and not part.epoch else 0
    # Another process, with another clock, may have written ``not_before``.
    tried = min(part.not_before, seen_at + backoff_ms(subscription, part.tries))
    until = max(tried, ripe)
    return Choice(NextStep.WAIT, message, until) if until > now else Choice(NextStep.TAKE, message)
