"""The parts of which the table of operations is made: an operation, its parameters, and the reading of their values."""

from __future__ import annotations

import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from broker.errors import BadRequest
from broker.moments import whole_s
from broker.operations.media_types import JSON
from broker.operations.scalars import TTL_MAX_S, CursorName, StageText
from broker.operations.shapes import Schema, Shape, schema_of

JSON_TEXT_BYTES_MAX: Final = 2 * 1024 * 1024
"""The longest JSON text, and the longest message of a list. Python's parser takes up to 10 ms for it."""
SMALL_BYTES_MAX: Final = 1024 * 1024
"""The largest body without messages and without a snapshot."""
_UNKNOWN_SHOWN_MAX: Final = 80
"""How many characters of an unknown parameter an error shows."""
IN_PATH: Final[Mapping[str, Schema]] = {
    "namespace": {"type": "string", "pattern": "^[a-zA-Z0-9_]+$"},
    "topic": {"type": "string", "pattern": "^[a-zA-Z0-9_-]+$"},
    "service": {"type": "string", "pattern": "^[a-zA-Z0-9._-]+$"},
    "stage": schema_of(StageText),
    "cursor": schema_of(CursorName),
    "transaction": {"type": "string", "pattern": "^[0-9]{1,19}$"},
    "node": {
        "type": "string",
        "pattern": "^([0-9]{1,3}|https?://[^/]+/?)$",
        "description": "An instance id, or a URL, percent-encoded.",
    },
    "token": {"type": "string", "pattern": "^[0-9a-f]{16}$", "description": "A token's id."},
    "who": {
        "type": "string",
        "maxLength": 300,
        "description": "A principal, or another name for which rules are kept, percent-encoded.",
    },
}
"""The names that a path may have."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the query, or a header."""

    name: str
    text: str
    schema: Schema
    required: bool = False
    place: Literal["query", "header"] = "query"


def whole_number(text: str) -> int:
    """Return the number in a text of at most 19 decimal digits; -1 for any other text, which no bound allows.

    It refuses more digits before ``int`` spends time on them. No bound has more.
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 19 else -1


@dataclass(frozen=True)
class NumberParameter(Parameter):
    """A whole number with bounds."""

    default: int = 0

    def of(self, query: Mapping[str, str], *, most: int | None = None) -> int:
        """Return the number in a query, or the default. ``most``: the bound, if the configuration has it.

        Raises BadRequest.
        """
        text = query.get(self.name)
        if text is None:
            return self.default
        least, most = self.schema["minimum"], self.schema["maximum"] if most is None else most
        number = whole_number(text)
        if not least <= number <= most:
            raise BadRequest(
                f"{self.name} must be a whole number from {least} to {most}, not {text!r}."
            )
        return number


@dataclass(frozen=True)
class WordParameter(Parameter):
    """One of some words. The first one is the default."""

    def of(self, query: Mapping[str, str]) -> str:
        """Return the word in a query, or the default. Raises BadRequest."""
        words: list[str] = self.schema["enum"]
        text = query.get(self.name, self.schema.get("default", words[0]))
        if text not in words:
            raise BadRequest(f"{self.name} must be one of {', '.join(words)}, not {text!r:.80}.")
        return text


@dataclass(frozen=True)
class SpanParameter(Parameter):
    """A span of whole seconds, at least one."""

    def of(self, query: Mapping[str, str]) -> int | None:
        """Return the seconds in a query; None if they are absent. Raises BadRequest."""
        text = query.get(self.name)
        if text is None:
            return None
        try:
            seconds = whole_s(text)
        except ValueError as error:
            raise BadRequest(f"{self.name}: {error}") from None
        if seconds > TTL_MAX_S:
            raise BadRequest(f"{self.name} must be at most {TTL_MAX_S} seconds, not {text!a:.80}.")
        return seconds


def header(name: str, text: str, schema: Schema) -> Parameter:
    """Return a header of a request."""
    return Parameter(name, text, schema, place="header")


def whole(
    name: str, text: str, least: int, most: int | str, default: int, *, shown: bool = True
) -> NumberParameter:
    """Return a whole number. ``most`` may name a key of ``limits``. ``shown``: the document shows the default."""
    schema: Schema = {"type": "integer", "minimum": least, "maximum": most}
    if shown:
        schema["default"] = default
    return NumberParameter(name, text, schema, default=default)


def choice(name: str, text: str, *words: str, **more: Any) -> WordParameter:
    """Return one of some words, the first of which is the default."""
    return WordParameter(name, text, {**more, "enum": list(words), "default": words[0]})


class Action(enum.StrEnum):
    """The kinds of action that a grant can allow. They are as fine as the harm that they can do."""

    DESCRIBE = "describe"
    """See that a topic exists, and its properties."""
    PUBLISH = "publish"
    ROLLBACK = "rollback"
    """Roll back publishes of one's own."""
    CONSUME = "consume"
    BROWSE = "browse"
    """Look at messages without the rules of consuming: uncommitted ones, too."""
    CURSORS = "cursors"
    """Named cursors of one's own."""
    CURSORS_ALL = "cursors_all"
    """Named cursors of all callers."""
    SETTINGS = "settings"
    """Create a topic, and change its properties."""
    DELETE = "delete"
    """Delete a topic, or purge its messages."""
    TRANSACTIONS = "transactions"
    """Transactions of one's own."""
    TRANSACTIONS_ALL = "transactions_all"
    """List, abort and invalidate transactions of all callers."""
    TRANSACTIONS_RESET = "transactions_reset"
    """Make the service forget transactions: truncate, prune, reset."""
    CLUSTER_VIEW = "cluster_view"
    CLUSTER_CHANGE = "cluster_change"
    METRICS = "metrics"
    HEALTH = "health"
    """Ask whether the node works. Every caller may."""
    ACCESS = "access"
    """Tokens, grants, quotas."""


RIGHTS: Final = ["reader", "writer", "owner", "operator", "admin", *Action]
"""The rights that a grant can give: roles, which are named sets of actions (``broker.access.grants``), and actions."""


class RepeatEffect(enum.Enum):
    """The effect of repeating a request."""

    READING = "reading"
    """If no leader answers, any node can do it from storage."""
    LED_READING = "led_reading"
    """A read of the leader's memory. No other node can do it."""
    POLL = "poll"
    """A read that may wait. Any node can do it, too."""
    KEYED = "keyed"
    """Has only one effect under its key: publish and store."""
    IDEMPOTENT = "idempotent"
    """Has the same effect when done twice: rollback."""
    ONCE = "once"
    """Must not be sent again once it may have been done: create, update, delete."""

    @property
    def is_reading(self) -> bool:
        """Return whether it has no effect."""
        return self.is_for_any_node or self is RepeatEffect.LED_READING

    @property
    def is_for_any_node(self) -> bool:
        """Return whether any node can answer it from storage."""
        return self in (RepeatEffect.READING, RepeatEffect.POLL)

    @property
    def is_in_a_lane(self) -> bool:
        """Return whether its order among other requests of the client counts."""
        return self in (RepeatEffect.KEYED, RepeatEffect.IDEMPOTENT)

    @property
    def is_repeatable(self) -> bool:
        """Return whether it may be sent again although it may have been done."""
        return self is not RepeatEffect.ONCE


class Answerer(enum.Enum):
    """The node that answers."""

    LEADER = "leader"
    """The leader of the topic in the path, or of the transaction service."""
    ANY = "any"
    """Any node, from storage or with the help of others."""
    NODE = "node"
    """This node, about itself."""


Contents = tuple[tuple[str, Shape], ...]
"""The media types that a body may have, each with its shape."""


class DeclaredOperation(NamedTuple):
    """One operation of the interface.

    Attributes:
        name: its id in the OpenAPI document, the name of its handler, and its label in the metrics.
        template: its path, with names in braces.
        effect: what a repetition does.
        takes: the body of the request; ``needs_body``: it must be there.
        told: what a reply says; ``gives``: its body; ``reply_headers``: its own headers, with their schemas.
        errors: the statuses of refusals, beside those that any operation may have.
        body_bytes_max: the largest body, both as sent and as inflated. None: the configured maximum.
        role: the role that serves it. Empty: every node does.
        has_own_deadline: its handler ends at the deadline of a request by itself, or never waits.
        keeps_body: nodes keep its body in memory, so it can't be compressed.
        unhides: what it does if it shows hidden messages, so that the configuration must allow it.
        notes: the field of its reply that says what it changed of other callers. The node logs it.
        is_for_probes: a browser may send it to any name of the node, as probes do.
    """

    name: str
    method: str
    template: str
    action: Action
    summary: str
    effect: RepeatEffect
    by: Answerer
    role: Literal["topics", "transactions", ""] = ""
    parameters: tuple[Parameter, ...] = ()
    takes: Contents = ()
    needs_body: bool = True
    told: str = "Done."
    gives: Contents = ()
    reply_headers: Mapping[str, Schema] = {}
    errors: tuple[str, ...] = ()
    body_bytes_max: int | None = SMALL_BYTES_MAX
    has_own_deadline: bool = False
    keeps_body: bool = False
    unhides: str = ""
    notes: str = ""
    is_for_probes: bool = False

    @property
    def answer(self) -> Shape:
        """The shape of its JSON reply; ``object`` if it has none."""
        return dict(self.gives).get(JSON, object)

    @property
    def query(self) -> tuple[str, ...]:
        """The names of the parameters that its query takes."""
        return tuple([each.name for each in self.parameters if each.place == "query"])

    def check_query(self, given: Iterable[str]) -> None:
        """Raise BadRequest, with the nearest name, for a parameter that this operation would ignore."""
        for name in given:
            if name not in self.query:
                raise BadRequest(self._unknown(name))

    def _unknown(self, name: str) -> str:
        shown, query = name[:_UNKNOWN_SHOWN_MAX], self.query
        near = difflib.get_close_matches(shown, query, n=1)
        meant = f"; did you mean {near[0]}?" if near else "."
        takes = ", ".join(query) or "none"
        return (
            f"{shown}: there is no such parameter{meant} "
            f"{self.method} {self.template} takes {takes}."
        )
