"""The properties of a topic that a caller may send."""

from __future__ import annotations

from collections.abc import Mapping

from broker.errors import BadRequest
from broker.wire.topics import GENERATION, PURGED


def settable(properties: Mapping[str, str], generation: int | None = None) -> dict[str, str]:
    """Return properties without the generation and the moment of a purge, which are the broker's.

    ``generation`` is the topic's present one: properties that were read have it, and may be sent back.

    Raises:
        BadRequest: they have another, or any where there is no topic yet.
    """
    kept = dict(properties)
    sent, purged = kept.pop(GENERATION, None), kept.pop(PURGED, None)
    if sent is not None and generation is not None and str(sent) == str(generation):
        return kept
    if sent is None and purged is None:
        return kept
    if sent is None:
        raise BadRequest(f"{PURGED} = {purged} can't be set: a purge does that. Leave it out.")
    present = "" if generation is None else f", and is {generation} now"
    raise BadRequest(
        f"{GENERATION} = {sent} can't be set: the broker counts the generations of a name{present}. "
        "Leave it out."
    )
