"""The credentials of a client: the header that proves its caller, and the members of a cluster that may get it.

A token comes from the program, or from a file. When a server answers 401, the client reads the file again. If it has
another token, the client sends the request again with it, so a token is rotated without a restart: write the new one into
the file, then revoke the old one.

A stolen address must not become a stolen token. A reply names the leader of its topic (``Broker-Leader``), and a
node of the cluster may be wrong about it, or hostile: it may name a machine outside of the cluster. So credentials go
to the addresses in ``url``, and beyond them only to

* a member that ``trust_members`` lists, by host; and
* a member that an address in ``url`` names over https, if its certificate is valid for its host, and is signed by an
  authority that the caller chose (``ca_file``, or an own TLS context). One of the system's many authorities proves only
  that the machine has its name, and any machine on the internet can have that.

Over plain http a member proves nothing, so it must be listed, or be in ``url``. A client with credentials asks the given
addresses about a topic whose leader is not trusted: each node forwards to the leader, so all requests are answered, with
one hop more. It never goes on from https to http.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from broker.http.answer import Address
from broker.secret import Secret, read_secret

NONE: Final = b""


class Credentials:
    """The line with a caller's token in the head of a request; empty if the caller has no token."""

    def __init__(self, token: Secret, token_file: str = "") -> None:
        """Take the token, or read it from the file. Raises ValueError, as ``read_secret`` does."""
        self._file = token_file
        self.line = NONE
        """The header, with its end of line. Its value must not be kept: a renewal changes it."""
        self._set(_from_file(token_file) if token_file else token)

    def _set(self, token: Secret) -> None:
        self.line = f"Authorization: Bearer {token.reveal()}\r\n".encode() if token else NONE

    def renewed(self, refused: bytes) -> bool:
        """Return whether there is another token than in the ``refused`` line, which a server answered with 401.

        If there is none yet, this reads the file again.
        """
        if self._file and self.line == refused:
            try:
                self._set(_from_file(self._file))
            except ValueError:
                return False  # The caller gets the server's error.
        return self.line != refused


def _from_file(file: str) -> Secret:
    try:
        return read_secret(file)
    except ValueError as error:
        raise ValueError(f"token_file: {error}") from error


class MemberTrust:
    """Decides which members of a cluster get a caller's credentials; the module explains it. Pure."""

    def __init__(
        self, given: Sequence[str], listed: Sequence[str], *, by_certificate: bool
    ) -> None:
        """Trust the addresses in ``given``, hosts in ``listed``, and with ``by_certificate`` members over https."""
        self._given = frozenset(given)
        self._hosts = listed
        self._networks = [network for network in map(network_of, listed) if network is not None]
        self._by_certificate = by_certificate

    def allows(self, source: str, url: str) -> bool:
        """Return whether credentials may go to ``url``, which a reply of ``source`` names."""
        if url in self._given:
            return True
        address = Address.of(url)
        if source not in self._given or (source.startswith("https:") and not address.tls):
            return False
        return self._is_listed(address.host) or (
            self._by_certificate and address.tls and source.startswith("https:")
        )

    def _is_listed(self, host: str) -> bool:
        if any(fnmatchcase(host, each) for each in self._hosts):
            return True
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(
            network.version == address.version and address in network for network in self._networks
        )


Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def network_of(text: str) -> Network | None:
    """Return the network in CIDR form, or of one address; None for a name."""
    try:
        return ipaddress.ip_network(text.strip("[]"))
    except ValueError:
        return None


def listed_members(text: str) -> tuple[str, ...]:
    """Return the hosts in ``trust_members``: names, with ``*`` for any part, addresses, networks. Raises ValueError."""
    members = tuple(each.strip().lower() for each in text.split(",") if each.strip())
    for each in members:
        if network_of(each) is None and any(mark in each for mark in "/@:? "):
            raise ValueError(
                f"trust_members: {each!r} is no host: write a name (broker2.example, *.broker.example), an address or "
                "a network (10.0.0.0/24), without scheme and port."
            )
    return members


def proves_members(tls: ssl.SSLContext | None) -> bool:
    """Return whether a TLS context that the caller gave checks certificates, and the names in them."""
    return tls is not None and tls.check_hostname and tls.verify_mode == ssl.CERT_REQUIRED
