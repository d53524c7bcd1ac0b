"""A JSON value as the payload of a message: its compact text in UTF-8."""

from __future__ import annotations

import json
from typing import Final

from broker.errors import BadRequest

_COMPACT: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def encode_json(value: object, where: str = "json") -> bytes:
    """Return a JSON value as compact UTF-8 text. Names keep their order.

    Raises:
        BadRequest: it has a number that JSON does not have, text that is no valid Unicode, a value of another type, or it
            is nested too deeply. The message begins with ``where``.
    """
    try:
        return _COMPACT.encode(value).encode()
    except UnicodeEncodeError:
        reason = "has text that is not valid Unicode"
    except RecursionError:
        reason = "is nested too deeply"
    except (TypeError, ValueError) as error:
        reason = f"is not a JSON value: {error}"
    raise BadRequest(f"{where}: {reason}.")
