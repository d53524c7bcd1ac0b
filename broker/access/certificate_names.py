"""Mutual TLS: a name in the certificate of a client names the caller. A configured CA has signed the certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from broker.access.credential_kinds import named
from broker.config.access_section import CertificateName
from broker.errors import Unauthenticated
from broker.http.certificates import PeerCertificate
from broker.principal import Principal, Remote

_NAMES: Final[Mapping[CertificateName, Callable[[PeerCertificate], tuple[str, ...]]]] = {
    CertificateName.SUBJECT: lambda found: (found.subject,),
    CertificateName.CN: lambda found: (found.common_name,),
    CertificateName.DNS: lambda found: found.dns_names,
    CertificateName.URI: lambda found: found.uris,
    CertificateName.EMAIL: lambda found: found.emails,
}


class CertificateCredentials:
    """The certificates of clients."""

    def __init__(self, rule: CertificateName, prefix: str) -> None:
        """Take the name that ``rule`` says, after the prefix."""
        self._names = _NAMES[rule]
        self._prefix = prefix

    def principal(self, headers: Mapping[str, str], remote: Remote) -> Principal | None:
        """Return the principal of the connection's certificate; None if it has no usable name, or several."""
        del headers
        if remote.certificate is None:
            return None
        names = self._names(PeerCertificate.of(remote.certificate))
        if len(names) != 1:
            return (
                None  # Which one is meant is not for the client to choose. Nodes have several, too.
            )
        try:
            return named(self._prefix, names[0])
        except Unauthenticated:
            return None
