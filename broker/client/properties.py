"""Check the properties that a caller sends for a topic."""

from __future__ import annotations

from collections.abc import Mapping

from broker.errors import BadRequest
from broker.wire.topics import GENERATION, PURGED


def settable(properties: Mapping[str, str], generation: int | None = None) -> dict[str, str]:
    """Return properties without the two that only the broker sets: the generation and the moment of a purge.

    ``generation`` is the topic's present one, or None if there is no topic yet. Properties that the client read
    from the topic contain it, so that they can be sent back.

    Raises:
        BadRequest: the given generation is not the present one, or there is no present one.
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
