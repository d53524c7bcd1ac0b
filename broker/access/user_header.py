"""X-CDAP-UserId: a gateway before the broker has checked its user, and says who it is.

Any client can write this header, so only that of a configured peer counts: from one of the configured networks, or with a
client certificate of a configured name. Every other one is ignored, as if the request had none.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache
from typing import Final

from broker.access.credential_kinds import named
from broker.http.certificates import PeerCertificate
from broker.principal import Principal, Remote

USER: Final = "X-CDAP-UserId"


class UserHeader:
    """The users of gateways."""

    def __init__(self, networks: Iterable[str], certificates: Collection[str], prefix: str) -> None:
        """Believe peers in these networks, and those whose certificate has one of these common or DNS names."""
        self._networks = [ipaddress.ip_network(each) for each in networks]
        self._certificates = frozenset(certificates)
        self._prefix = prefix
        self._is_inside = lru_cache(1024)(self._has_address)

    def principal(self, headers: Mapping[str, str], remote: Remote) -> Principal | None:
        """Return the user that a configured peer names."""
        user = headers.get(USER)
        if user is None or not self._believes(remote):
            return None
        return named(self._prefix, user.strip())

    def _believes(self, remote: Remote) -> bool:
        if self._is_inside(remote.address):
            return True
        if remote.certificate is None or not self._certificates:
            return False
        found = PeerCertificate.of(remote.certificate)
        return not self._certificates.isdisjoint((found.common_name, *found.dns_names))

    def _has_address(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False  # A call within the process has none.
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self._networks)
