"""Kinds of credentials. The gate asks one kind after the other for the caller of a request.

::

    kind                  where a request has it                               its name
    token of the broker   Authorization: Bearer TOKEN, or Basic with it        as it was made
    JWT of an issuer      the same                                             oidc: and a claim
    user of a gateway     X-CDAP-UserId, from configured peers alone           user: and the header
    certificate           TLS                                                  cert: and a name in it

The prefixes are configured. They keep a name that another party gives apart from the names of tokens.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from broker.access.grants import GROUP, check_who
from broker.access.rules import Rules
from broker.access.tokens import id_of
from broker.errors import BadRequest, Unauthenticated
from broker.principal import Principal, Remote

AUTHORIZATION: Final = "Authorization"
INVALID: Final = "The credentials are not valid, or not valid any more."


class CredentialKind(Protocol):
    """One kind of credentials."""

    def principal(self, headers: Mapping[str, str], remote: Remote) -> Principal | None:
        """Return the caller that they name; None: the request has none of this kind.

        Raises:
            Unauthenticated: they are not valid.
            Unavailable: this node can't check them now.
            CallerPending: this node is fetching what it needs to check them.
        """


def secret_of(headers: Mapping[str, str]) -> str | None:
    """Return the token in a request: of ``Bearer``, or the password of ``Basic``. None: it has no such header.

    Raises Unauthenticated for another scheme.
    """
    given = headers.get(AUTHORIZATION)
    if given is None:
        return None
    scheme, _, text = given.partition(" ")
    scheme, text = scheme.lower(), text.strip()
    if scheme == "bearer":
        return text
    if scheme != "basic":
        raise Unauthenticated("Authorization must be Bearer TOKEN, or Basic with it as password.")
    try:
        _, colon, password = base64.b64decode(text, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        colon = password = ""
    if not colon:
        raise Unauthenticated(INVALID)
    return password


def named(prefix: str, name: str, groups: Iterable[str] = ()) -> Principal:
    """Return the principal of a name that another party gives. Raises Unauthenticated if no grant could name it."""
    whole = prefix + name
    try:
        check_who(whole)
    except BadRequest as error:
        raise Unauthenticated(f"The caller has no usable name: {error.message}") from None
    if whole.startswith(GROUP) or not name:
        # It would get the grants of a group.
        raise Unauthenticated(f"{whole!a:.80} is not the name of a caller.")
    return Principal(whole, frozenset(groups))


class TokenCredentials:
    """Tokens that the broker made."""

    def __init__(self, rules: Callable[[], Rules], now_ms: Callable[[], int]) -> None:
        """Know the tokens of ``rules()``, which may raise Unavailable if they are too old."""
        self._rules = rules
        self._now_ms = now_ms

    def principal(self, headers: Mapping[str, str], remote: Remote) -> Principal | None:
        """Return the principal for whom a token was made."""
        del remote
        text = secret_of(headers)
        if text is None or id_of(text) is None:
            return None
        token = self._rules().token(text, self._now_ms())
        if token is None:
            raise Unauthenticated(INVALID)
        return Principal(token.principal)
