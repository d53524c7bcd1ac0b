"""The setup of a rowlog: settings, subscriptions, shards. Pure.

The setup is one JSON document in the index table, changed by compare-and-set. Each process reads it again every few
seconds, so all processes have the same one soon. ``version`` rises with each change. A document of a later format is
refused.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, TypeVar

from broker.errors import BadRequest, NotFound, StorageCorrupt
from broker.rowlog.cell_keys import SHARDS_MAX, check_id

FORMAT: Final = 1
Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class Filter:
    """The messages that a subscription takes: all given conditions hold. A put evaluates the filter."""

    row_prefix: bytes = b""
    data_prefix: bytes = b""
    data_contains: bytes = b""

    def takes(self, row: bytes, data: bytes) -> bool:
        """Return whether the subscription takes a message."""
        return (
            row.startswith(self.row_prefix)
            and data.startswith(self.data_prefix)
            and self.data_contains in data
        )


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription: its place in the order, the messages that it takes, and how often they are tried."""

    id: str
    order: int = 0
    """With ``respect_order``, a message goes to subscriptions with a lower number first."""
    filter: Filter = field(default_factory=Filter)
    max_tries: int = 10
    """A message is dead after so many failed tries; 0: it is tried for ever."""
    backoff_ms_first: int = 500
    backoff_ms_max: int = 60_000
    parallel: int = 10
    """How many rows one processor has in work at once."""
    paused: bool = False
    removing: bool = False
    """True while its messages are removed. No put is for it any more."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a rowlog. Names are Lily's where it has them."""

    respect_order: bool = False
    enable_notify: bool = True
    notify_delay_ms: int = 20
    """For how long after a wake-up further puts are batched into one more wake-up."""
    minimal_process_delay_ms: int = 0
    """How long a processor must have seen a message to take it. In a WAL, the writer processes it first."""
    wakeup_timeout_ms: int = 5_000
    """How often a processor scans without a wake-up."""
    orphaned_message_delay_ms: int = 120_000
    """How long a process must have seen an index entry without a message to remove it: longer than any put takes."""
    scan_margin_ms: int = 120_000
    """How far writers' clocks may differ, and puts may be late, so that a poll still finds the message."""
    full_scan_ms: int = 600_000
    """How often the whole index is scanned. Such a scan also finds messages beyond the margin."""
    sweep_ms: int = 3_600_000
    """How often the user's table is swept for messages without an index entry; 0: never."""
    claim_timeout_ms: int = 30_000
    """How long a processor must have seen a ``process`` call's claim to take the message over."""
    listener_timeout_s: float = 60.0
    work_off_first: bool = False
    """For a WAL: open messages of a row are processed before its next change, or the change is refused."""
    row_locks: bool = False
    """Each put holds a lock on its row, so messages of several processes appear in the order of their numbers."""
    lock_timeout_ms: int = 10_000
    spread: bool = False
    """Each subscription has a processor of its own, spread over the nodes, instead of one for all."""
    delete_buffer: int = 100
    payload_bytes_max: int = 8 << 20


@dataclass(frozen=True, slots=True)
class Shard:
    """A part of the index. A draining one takes no new entries."""

    id: int
    draining: bool = False


@dataclass(frozen=True, slots=True)
class Setup:
    """The whole setup of a rowlog."""

    id: str
    table: str
    family: str
    log_byte: int
    settings: Settings = field(default_factory=Settings)
    shards: tuple[Shard, ...] = (Shard(0),)
    subscriptions: tuple[Subscription, ...] = ()
    version: int = 0
    settled: bool = True
    """False after a change until every process knows it."""

    def named(self, name: str) -> Subscription | None:
        """Return a subscription, also one that is being removed; None: there is none of that id."""
        return next((each for each in self.subscriptions if each.id == name), None)

    @property
    def current(self) -> tuple[Subscription, ...]:
        """The subscriptions that puts are for, in their order."""
        there = [each for each in self.subscriptions if not each.removing]
        return tuple(sorted(there, key=lambda each: (each.order, each.id)))

    @property
    def writable(self) -> list[int]:
        """The shards that take new entries."""
        return [shard.id for shard in self.shards if not shard.draining]

    def wanted(self, row: bytes, data: bytes, only: Iterable[str] | None) -> list[Subscription]:
        """Return the subscriptions that a message is for.

        ``only``: their ids; None: all whose filter takes the message. Raises NotFound.
        """
        if only is None:
            return [each for each in self.current if each.filter.takes(row, data)]
        names = set(only)
        unknown = names - {each.id for each in self.current}
        if unknown:
            raise NotFound(f"Rowlog '{self.id}' has no subscription {', '.join(sorted(unknown))}.")
        return [each for each in self.current if each.id in names]

    # Changes: each returns another setup.

    def with_subscription(self, subscription: Subscription) -> Setup:
        """Add a subscription, or replace the one of its id. Raises BadName, BadRequest."""
        check_id(subscription.id)
        if subscription.max_tries < 0 or subscription.parallel < 1:
            raise BadRequest("max_tries is 0 or more, parallel 1 or more.")
        if not 0 < subscription.backoff_ms_first <= subscription.backoff_ms_max:
            raise BadRequest("backoff_ms_first is above 0 and at most backoff_ms_max.")
        there = self.named(subscription.id)
        if there is not None and there.removing and not subscription.removing:
            raise BadRequest(f"Subscription '{subscription.id}' is still being removed.")
        others = [each for each in self.subscriptions if each.id != subscription.id]
        return replace(self, subscriptions=(*others, subscription))

    def without_subscription(self, name: str) -> Setup:
        """Remove a subscription from the setup."""
        return replace(
            self, subscriptions=tuple(each for each in self.subscriptions if each.id != name)
        )

    def with_shards(self, count: int) -> Setup:
        """Have ``count`` shards that take entries. Those with higher numbers drain. Raises BadRequest."""
        if not 1 <= count <= SHARDS_MAX:
            raise BadRequest(f"A rowlog has 1 to {SHARDS_MAX} shards.")
        known = {shard.id for shard in self.shards} | set(range(count))
        return replace(self, shards=tuple(Shard(each, each >= count) for each in sorted(known)))

    def without_shard(self, shard: int) -> Setup:
        """Remove a drained shard from the setup."""
        return replace(self, shards=tuple(each for each in self.shards if each.id != shard))


def encode(setup: Setup) -> bytes:
    """Write a setup."""
    document = {"format": FORMAT, **_plain(asdict(setup))}
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def decode(data: bytes) -> Setup:
    """Read a setup. Unknown fields, of later releases, are ignored. Raises StorageCorrupt."""
    try:
        found = json.loads(data)
        if found["format"] != FORMAT:
            raise StorageCorrupt(
                f"The rowlog's setup has format {found['format']}; this release reads {FORMAT}."
            )
        shards = tuple(_made(Shard, each) for each in found["shards"])
        subscriptions = tuple(
            replace(_made(Subscription, each), filter=_filter(each["filter"]))
            for each in found["subscriptions"]
        )
        settings = _made(Settings, found["settings"])
        made = _made(Setup, found)
        return replace(made, settings=settings, shards=shards, subscriptions=subscriptions)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageCorrupt("The rowlog's setup can't be read.") from error


def _made(kind: type[Kind], found: Mapping[str, Any]) -> Kind:
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]  # All are dataclasses.
    return kind(**{name: value for name, value in found.items() if name in names})


def _filter(found: Mapping[str, str]) -> Filter:
    return Filter(**{name: value.encode("latin-1") for name, value in found.items()})


def changed_settings(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """Return settings with some replaced. Raises BadRequest: a name is unknown, or a value has the wrong type."""
    known = {each.name: type(getattr(settings, each.name)) for each in fields(settings)}
    for name, value in changes.items():
        if name not in known:
            raise BadRequest(f"There is no setting '{name}'; there are {', '.join(known)}.")
        kind = known[name]
        is_number = kind is not bool
        accepted = int | float if kind is float else kind
        if isinstance(value, bool) == is_number or not isinstance(value, accepted):
            raise BadRequest(f"The setting '{name}' is of type {kind.__name__}.")
        if is_number and not 0 <= value < math.inf:
            raise BadRequest(f"The setting '{name}' is not negative, and finite.")
    made = {name: known[name](value) for name, value in changes.items()}
    return replace(settings, **made)
