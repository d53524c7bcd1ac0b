"""The section ``access``: whether callers need credentials, and which credentials other parties may give them."""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from broker.config.declaration import key
from broker.config.text_forms import NETWORK, URL, is_loopback

ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA"),
)
"""The algorithms of signatures that may be allowed: those with a public key."""


class AccessMode(enum.StrEnum):
    """Whether callers need credentials."""

    OPEN = "open"
    REQUIRED = "required"


class CertificateName(enum.StrEnum):
    """The name in a client's certificate that names the caller."""

    NONE = "none"
    SUBJECT = "subject"
    CN = "cn"
    DNS = "dns"
    URI = "uri"
    EMAIL = "email"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessConfig:
    """The callers and their rights. A node reads all keys but `access_mode` only in the mode `required`."""

    access_mode: AccessMode | None = key(
        None,
        "open: clients may do everything. required: they need credentials. None is open, on loopback only.",
    )
    oidc_issuer: str | None = key(
        None, "URL of an OIDC issuer. Its JWT are credentials; none: they are not.", form=URL
    )
    oidc_audience: tuple[str, ...] = key(
        (), "Audiences. A JWT must be for one of them. An issuer needs at least one."
    )
    oidc_algorithms: tuple[str, ...] = key(
        ("RS256", "ES256"),
        "Algorithms with which a JWT may be signed. Those without a public key are refused.",
    )
    oidc_jwks_url: str | None = key(
        None, "URL of the issuer's keys; none: the issuer's discovery document has it.", form=URL
    )
    oidc_ca: Path | None = key(
        None, "PEM file with the CAs of the issuer's server; none: those of the system."
    )
    oidc_name_claim: str = key("sub", "Claim of a JWT that names the caller.")
    oidc_groups_claim: str = key("groups", "Claim of a JWT with the groups of the caller.")
    oidc_prefix: str = key(
        "oidc:", "Begins the name of each caller with a JWT, so that it is not that of a token."
    )
    oidc_timeout_s: float = key(
        5.0, "How long the issuer may take for each of its documents.", least=0.1
    )
    oidc_refresh_s: float = key(
        300.0,
        "How often a node reads the issuer's keys. An unknown key is asked for at once.",
        least=1,
    )
    certificate_name: CertificateName = key(
        CertificateName.NONE,
        "Name in a client's certificate that names the caller: none, subject, cn, dns, uri or email.",
    )
    certificate_prefix: str = key("cert:", "Begins the name of each caller with a certificate.")
    user_header_networks: tuple[str, ...] = key(
        (),
        "Networks (10.1.2.0/24,...) of gateways whose X-CDAP-UserId names the caller.",
        form=NETWORK,
    )
    user_header_certificates: tuple[str, ...] = key(
        (), "Common or DNS names in the client certificates of such gateways."
    )
    user_header_prefix: str = key("user:", "Begins the name of each caller that a gateway names.")


def is_safe_url(url: str) -> bool:
    """Return whether an answer from a URL can be believed: it is of https, or of this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def access_problems(access: AccessConfig) -> Iterator[str]:
    """Yield contradictions between keys of the section."""
    for name in ("oidc_issuer", "oidc_jwks_url"):
        url = getattr(access, name)
        if url is not None and not is_safe_url(url):
            yield f"access.{name} = {url} must begin with https: its keys decide who callers are"
    if access.oidc_issuer is not None and not access.oidc_audience:
        yield "access.oidc_issuer needs access.oidc_audience: else the JWT of any service count"
    for name in access.oidc_algorithms:
        if name not in ALGORITHMS:
            yield f"access.oidc_algorithms: {name!r} is not one of {', '.join(ALGORITHMS)}"
    for network in access.user_header_networks:
        if NETWORK.fits(network) and ipaddress.ip_network(network).prefixlen == 0:
            yield f"access.user_header_networks: {network} is every address"
