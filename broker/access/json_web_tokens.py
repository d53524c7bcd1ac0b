"""JWT of an OIDC issuer. PyJWT checks them; this module pins what is allowed, and keeps what was found.

A checked token is kept, by its hash, until it expires or the issuer's keys change. So a request costs one hash. The
algorithm must be a configured one, all of which are asymmetric, and fit its key: ``none``, and a public key taken as a
shared secret, are refused before any key is looked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import jwt

from broker.access.credential_kinds import INVALID, named, secret_of
from broker.access.issuer_keys import IssuerKeys, Jwk
from broker.config.access_section import AccessConfig
from broker.errors import Unauthenticated
from broker.principal import Principal, Remote

LEEWAY_S: Final = 30
"""How much the clocks of issuer and broker may differ."""
KNOWN_MAX: Final = 10_000
GROUPS_MAX: Final = 256
KID_CHARACTERS_MAX: Final = 256
RSA_BITS: Final = range(2048, 8193)
_ODD: Final = (jwt.PyJWTError, ValueError, TypeError, ArithmeticError, RecursionError)
"""The errors that PyJWT raises for malformed tokens and keys. Some JSON texts cause errors of Python itself."""


class _Known(NamedTuple):
    principal: Principal
    until_ms: float


class JwtCredentials:
    """The tokens of one issuer."""

    def __init__(self, access: AccessConfig, keys: IssuerKeys, now_ms: Callable[[], int]) -> None:
        """Check tokens as the configuration says."""
        self._access = access
        self._keys = keys
        self._now_ms = now_ms
        self._known: dict[bytes, _Known] = {}
        self._known_by = keys.keys

    def principal(self, headers: Mapping[str, str], remote: Remote) -> Principal | None:
        """Return the principal that a claim of the token names."""
        del remote
        text = secret_of(headers)
        if text is None or text.count(".") != 2:
            return None
        if self._known_by is not self._keys.keys or len(self._known) >= KNOWN_MAX:
            self._known, self._known_by = {}, self._keys.keys
        digest = hashlib.sha256(text.encode("utf-8", "replace")).digest()
        known = self._known.get(digest)
        if known is None:
            known = self._known[digest] = self._checked(text)
        if self._now_ms() >= known.until_ms:
            raise Unauthenticated(INVALID)
        return known.principal

    def _checked(self, text: str) -> _Known:
        access = self._access
        try:
            head = jwt.get_unverified_header(text)
        except _ODD:
            raise Unauthenticated(INVALID) from None
        algorithm, kid = head.get("alg"), head.get("kid")
        if algorithm not in access.oidc_algorithms:
            raise Unauthenticated("The algorithm of the token is not allowed here.")
        if kid is not None and not (isinstance(kid, str) and len(kid) <= KID_CHARACTERS_MAX):
            raise Unauthenticated(INVALID)
        jwk = self._keys.find(kid)
        if jwk is None:
            raise Unauthenticated("The issuer has no key with which the token is signed.")
        try:
            claims = jwt.decode(
                text,
                key=_key(jwk, algorithm),
                algorithms=[algorithm],
                audience=list(access.oidc_audience),
                issuer=access.oidc_issuer,
                leeway=LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
            until_ms = (int(claims["exp"]) + LEEWAY_S) * 1000
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("The token has expired.") from None
        except jwt.InvalidAudienceError:
            raise Unauthenticated("The token is for another audience.") from None
        except jwt.InvalidIssuerError:
            raise Unauthenticated("The token is of another issuer.") from None
        except _ODD:
            raise Unauthenticated(INVALID) from None
        return _Known(self._principal(claims), until_ms)

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        access = self._access
        name, groups = claims.get(access.oidc_name_claim), claims.get(access.oidc_groups_claim, [])
        if not isinstance(name, str):
            raise Unauthenticated(f"The token has no claim {access.oidc_name_claim} with a text.")
        if isinstance(groups, str):
            groups = groups.split()
        if not isinstance(groups, list) or not all(isinstance(each, str) for each in groups):
            raise Unauthenticated(f"The claim {access.oidc_groups_claim} is not a list of texts.")
        if len(groups) > GROUPS_MAX:
            raise Unauthenticated(f"The token has more than {GROUPS_MAX} groups.")
        return named(access.oidc_prefix, name, groups)


def _key(jwk: Jwk, algorithm: str) -> jwt.PyJWK:
    """Return a key for an algorithm. Raises one of ``_ODD`` if it is not meant for it, or too weak."""
    if jwk.get("kty") == "oct" or jwk.get("alg", algorithm) != algorithm:
        raise ValueError("the key is not for this algorithm")
    key = jwt.PyJWK(dict(jwk), algorithm)
    if jwk.get("kty") == "RSA" and key.key.key_size not in RSA_BITS:
        raise ValueError("the key is too small or too large")
    return key
