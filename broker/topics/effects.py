"""Ask whose effect a repetition finds, before it is answered as done (rule 9).

A key, a producer's number or a stage shows that a request was done before. The effect belongs to the write pointer
under which it was stored: it is committed or rolled back with that transaction. So a request with another write pointer
gets no success, because its transaction has no such messages. Nor does one whose messages were rolled back. Both are
refused, and the refusal names the first request.
"""

from __future__ import annotations

from typing import Final

from broker.errors import AlreadyPublished
from broker.model import LOG_KEY_MIN, LogKey
from broker.storage.hold import LogHold

POINTER_BYTES: Final = 8


def encode_pointer(pointer: int | None) -> bytes:
    """Encode the write pointer of a request for the mark that it leaves."""
    return (0 if pointer is None else pointer + 1).to_bytes(POINTER_BYTES, "big")


def decode_pointer(value: bytes) -> int | None:
    """Decode the write pointer in a mark; None: the request had none."""
    number = int.from_bytes(value, "big")
    return number - 1 if number else None


def in_transaction(pointer: int | None) -> str:
    """Return the words that name a write pointer in an error."""
    return "without a write pointer" if pointer is None else f"with write pointer {pointer}"


def refuse_other(what: str, theirs: int | None, mine: int | None, ids: str = "") -> None:
    """Refuse a repetition of ``what`` with another write pointer. Raises AlreadyPublished."""
    if theirs != mine:
        raise AlreadyPublished(
            f"{what} was published before, {in_transaction(theirs)}{ids}. This request is "
            f"{in_transaction(mine)}: it published nothing."
        )


async def refuse_rolled_back(
    hold: LogHold, what: str, pointer: int | None, first: LogKey, last: LogKey, ids: str = ""
) -> None:
    """Refuse a repetition of ``what`` if any message of ``pointer`` in ``[first, last]`` was rolled back.

    Expired messages are not checked: no consumer sees them in any case.

    Raises:
        AlreadyPublished: some were rolled back.
        Unavailable: storage does not answer.
    """
    if pointer is None:
        return  # Only a transaction's messages can be rolled back.
    for effect in await hold.effects(first, last):
        if effect.pointer == pointer and effect.is_rolled_back:
            raise rolled_back(what, pointer, ids)


def rolled_back(what: str, pointer: int | None, ids: str) -> AlreadyPublished:
    """Return the refusal of a repetition whose messages were rolled back."""
    return AlreadyPublished(
        f"{what} was published before, {in_transaction(pointer)}{ids}, and rolled back: this request published nothing."
    )


def named(first: LogKey, last: LogKey) -> str:
    """Return the words that name the messages of a request in an error."""
    return f", as messages {_hex(first)} to {_hex(last)}"


def _hex(key: LogKey) -> str:
    return (key + LOG_KEY_MIN).hex()
