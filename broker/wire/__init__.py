"""Bytes to values and back: Avro, JSON, transactions, topic properties. No I/O.

The bytes that this package reads may come from anyone, and may be wrong or hostile. So every reader keeps these rules:

* for a malformed body it raises BadRequest, which names the wrong field, and no other error;
* its time and memory are linear in the body's length, even if the body claims larger counts and lengths;
* it ignores bytes after the end of a datum, as the decoders of the original protocol do.

Nothing in this package imports a third-party module, so that a client loads fast. A large body is decoded in a thread
(``broker.long_work``). Python can't switch to the loop's thread within one call of C code, so no such call takes more
than some ms.
"""

from __future__ import annotations

from collections.abc import Callable

Take = Callable[[int], object]
"""Called with a number of items before they are read. It raises an error to refuse them."""


def free(_: int) -> None:
    """Refuse nothing; for callers that do not count items."""
