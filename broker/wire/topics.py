"""A topic's properties and the listing of topics, as JSON.

::

    request   {"ttl": 3600, "owner": "me"}                       or an empty body
    answer    {"generation":"1","owner":"me","ttl":"3600"}       every value a string, names sorted
    listing   ["a-b","a1","a","aa"]                              in the order of "name:"

A request replaces all properties: a missing one gets its default. Numbers and booleans become strings, as they were
written. A ``ttl`` with a unit, such as ``1d``, becomes seconds. All properties together may have 64 KiB, because nodes keep them in memory for every topic. The broker keeps
and returns properties that it does not know. ``generation`` belongs to the broker: in a request it must be a number, and
is ignored. So is ``purged_ms``. The answer has it after a purge: no message from before this moment is left.
An update that leaves ``chain`` out keeps it: evidence can't be switched off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Final

from broker.errors import BadRequest, BodyTooLarge
from broker.model import CHAIN, Topic, TopicId, TransactionUse
from broker.moments import whole_s
from broker.wire.jsontext import parse

TTL = "ttl"
GENERATION = "generation"
PURGED = "purged_ms"
TRANSACTIONS = "transactions"
CHAIN_ALGORITHM = "sha256"
PROPERTIES_BYTES_MAX: Final = 64 * 1024
"""The maximum size of the names and values of a topic's properties together, in UTF-8."""
BODY_BYTES_MAX: Final = 8 * PROPERTIES_BYTES_MAX
"""The longest body with properties: JSON may write a byte with six (``\\u0041``), and has quotes and commas."""

VALUES_MAX: Final = 10_000
"""The maximum number of JSON values in a body."""

_INVALID = "Invalid topic properties. It must be JSON object with string values."
_INTEGER = re.compile(r"[+-]?[0-9]{1,11}")
_MOMENT_MS = re.compile(r"[0-9]{1,19}")
_INT32 = range(-(1 << 31), 1 << 31)


def decode_properties(body: bytes, defaults: Mapping[str, str], topic: TopicId) -> dict[str, str]:
    """Read the body of a create or an update, over the defaults, without ``generation``.

    Errors have the texts of the original, which name the topic. An error may add a sentence to them.

    Raises:
        BadRequest: it is neither empty nor an object of plain values; or a property that the broker
            knows has a wrong value; or there is no ttl, not even by default.
        BodyTooLarge: the properties, with the defaults, have more than ``PROPERTIES_BYTES_MAX`` bytes.
    """
    properties = {**defaults, **(_sent(body) if body else {})}
    size = sum(len(name.encode()) + len(value.encode()) for name, value in properties.items())
    if size > PROPERTIES_BYTES_MAX:
        raise BodyTooLarge(
            f"The properties of a topic may have {PROPERTIES_BYTES_MAX} bytes, names and values together; these have "
            f"{size}. Store long values elsewhere, and their address here."
        )
    _check_generation(properties.pop(GENERATION, "1"), topic)
    _check_purged(properties.pop(PURGED, "0"), topic)
    _check_ttl(properties, topic)
    _check_transactions(properties)
    if properties.get(CHAIN, CHAIN_ALGORITHM) != CHAIN_ALGORITHM:
        raise BadRequest(f"{CHAIN}: must be {CHAIN_ALGORITHM}, or be left out.")
    return properties


def encode_properties(topic: Topic) -> bytes:
    """Return all properties, with ``generation``, in the form of the interface."""
    properties = {**topic.properties, GENERATION: str(topic.generation)}
    if topic.purged_ms:
        properties[PURGED] = str(topic.purged_ms)
    return json.dumps(properties, sort_keys=True, separators=(",", ":")).encode("ascii")


def encode_names(names: Iterable[str]) -> bytes:
    """Return the listing of a namespace, sorted as the names with a trailing colon."""
    ordered = sorted(names, key=lambda name: f"{name}:")
    return json.dumps(ordered, separators=(",", ":")).encode("ascii")


def _check_ttl(properties: dict[str, str], topic: TopicId) -> None:
    if TTL not in properties:
        raise BadRequest(f"The {TTL} property is missing for topic {topic.entity}")
    properties[TTL] = _seconds(properties[TTL])
    ttl_s = int32(properties[TTL])
    if ttl_s is None:
        raise BadRequest(
            f"The {TTL} property must be a number greater than zero for topic {topic.entity}"
        )
    if ttl_s <= 0:
        raise BadRequest(f"The {TTL} property must be greater than zero for topic {topic.entity}")


def _seconds(text: str) -> str:
    """Return the seconds of a span with a unit (``1d``) as text; any other text as it is."""
    if text[-1:].isdecimal():
        return text
    try:
        return str(whole_s(text))
    except ValueError:
        return text  # The check of the number refuses it, in the words of the original.


def _check_generation(text: str, topic: TopicId) -> None:
    generation = int32(text)
    if generation is None:
        raise BadRequest(
            f"The {GENERATION} property must be a number other than zero for topic {topic.entity}"
        )
    if generation == 0:
        raise BadRequest(f"The {GENERATION} property must not be zero for topic {topic.entity}")


def _check_purged(text: str, topic: TopicId) -> None:
    if not _MOMENT_MS.fullmatch(text):
        raise BadRequest(
            f"The {PURGED} property belongs to the broker. Leave it out. To remove the messages published before a "
            f"moment, purge topic {topic.entity}"
        )


def _check_transactions(properties: Mapping[str, str]) -> None:
    if properties.get(TRANSACTIONS, TransactionUse.OPTIONAL.value) not in list(TransactionUse):
        raise BadRequest(f"{TRANSACTIONS}: must be one of {', '.join(TransactionUse)}.")


def int32(text: str) -> int | None:
    """Return the 32-bit whole number in the text of a property, or None if it is not one."""
    if not _INTEGER.fullmatch(text) or int(text) not in _INT32:
        return None
    return int(text)


def _sent(body: bytes) -> dict[str, str]:
    try:
        return _strings(parse(body, bytes_max=BODY_BYTES_MAX, values_max=VALUES_MAX, number=str))
    except BadRequest as error:
        raise BadRequest(f"{_INVALID} {error.message}") from error


def _strings(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise BadRequest("The body is not an object.")
    for name, one in value.items():
        _check_text(name, name)
        if not isinstance(one, str | bool):
            raise BadRequest(f"{name}: a property is a string, a number or a boolean.")
    return {name: _string(name, one) for name, one in value.items()}


def _string(name: str, value: str | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    _check_text(name, value)
    return value


def _check_text(name: str, text: str) -> None:
    """Refuse text that UTF-8 can't encode: half of a surrogate pair."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequest(f"{name!a:.80}: is not valid Unicode text.") from None
