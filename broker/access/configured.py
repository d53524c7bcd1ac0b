"""The kinds of credentials that the configuration allows, beside the broker's tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from broker.access.certificate_names import CertificateCredentials
from broker.access.credential_kinds import CredentialKind
from broker.access.gate import RequiredGate
from broker.access.issuer_keys import IssuerKeys, fetcher
from broker.access.rules import Rules
from broker.access.user_header import UserHeader
from broker.clock import Clock
from broker.config.access_section import AccessConfig, CertificateName
from broker.errors import Unavailable, install_command


class ConfiguredCredentials(NamedTuple):
    """The kinds in the header ``Authorization``, the others, and the keys to open and close; None: there is no issuer."""

    bearers: tuple[CredentialKind, ...] = ()
    others: tuple[CredentialKind, ...] = ()
    keys: IssuerKeys | None = None


def required_gate(
    access: AccessConfig, rules: Callable[[], Rules], clock: Clock
) -> tuple[RequiredGate, IssuerKeys | None]:
    """Return the gate of the mode ``required``, and the keys of the issuer, for the caller to open."""
    found = configured_credentials(access, clock)
    return RequiredGate(rules, clock.now_ms, bearers=found.bearers, others=found.others), found.keys


def configured_credentials(access: AccessConfig, clock: Clock) -> ConfiguredCredentials:
    """Return the kinds of credentials that the configuration allows. Raises Unavailable: a package is missing."""
    others: list[CredentialKind] = []
    if access.user_header_networks or access.user_header_certificates:
        others.append(
            UserHeader(
                access.user_header_networks,
                access.user_header_certificates,
                access.user_header_prefix,
            )
        )
    if access.certificate_name is not CertificateName.NONE:
        others.append(CertificateCredentials(access.certificate_name, access.certificate_prefix))
    if access.oidc_issuer is None:
        return ConfiguredCredentials((), tuple(others))
    try:
        from broker.access.json_web_tokens import JwtCredentials  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"access.oidc_issuer needs the package {error.name!r}: {install_command('oidc')}"
        ) from error
    keys = IssuerKeys(fetcher(access), clock, access.oidc_refresh_s)
    return ConfiguredCredentials((JwtCredentials(access, keys, clock.now_ms),), tuple(others), keys)
