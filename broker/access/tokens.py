"""Tokens: credentials that the broker makes. Pure, but for the random bytes of a new token.

A token is ``tms_<id>_<secret>``. Its id finds its record; the record has the hash of the whole token, never the token. The
secret has 256 random bits. So no slow hash is needed: there is nothing to guess.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Final, NamedTuple

ID_BYTES: Final = 8
SECRET_BYTES: Final = 32
_FORM: Final = re.compile(r"tms_([0-9a-f]{16})_[A-Za-z0-9_-]{43}")


class Token(NamedTuple):
    """The stored part of a token. ``expires_ms`` is None if it does not expire. Times are ms since 1970."""

    id: str
    principal: str
    hash: str
    created_ms: int
    expires_ms: int | None = None

    def is_valid(self, text: str, now_ms: int) -> bool:
        """Return whether a text is this token, and the token has not expired."""
        return hmac.compare_digest(self.hash, hash_of(text)) and (
            self.expires_ms is None or now_ms < self.expires_ms
        )


def new_token(principal: str, now_ms: int, life_ms: int | None = None) -> tuple[str, Token]:
    """Return the text of a new token, and its stored part."""
    identifier = secrets.token_hex(ID_BYTES)
    text = f"tms_{identifier}_{secrets.token_urlsafe(SECRET_BYTES)}"
    expires_ms = None if life_ms is None else now_ms + life_ms
    return text, Token(identifier, principal, hash_of(text), now_ms, expires_ms)


def id_of(text: str) -> str | None:
    """Return the id in the text of a token; None if it has not the form of a token."""
    match = _FORM.fullmatch(text)
    return None if match is None else match[1]


def hash_of(text: str) -> str:
    """Return the hash that is stored of a token."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()
