"""The section ``tls``: the files with certificates and keys, of this node and of the servers that it uses."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from broker.config.declaration import key


class ClientCertificates(enum.StrEnum):
    """Whether a listener asks its clients for certificates."""

    NONE = "none"
    OPTIONAL = "optional"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """TLS. All files are PEM. A node notices that a certificate, a key or a CA was replaced, and uses the new one."""

    tls_certificate: Path | None = key(
        None,
        "This node's certificate, with those up to its CA. With it all listeners speak TLS alone.",
    )
    tls_key: Path | None = key(None, "The key of `tls_certificate`; none: it is in the same file.")
    tls_client_ca: Path | None = key(None, "The CAs that sign the certificates of clients.")
    tls_client_certificates: ClientCertificates = key(
        ClientCertificates.NONE,
        "Whether clients need a certificate: none, optional or required. Nodes show their own to each other.",
    )
    tls_peer_ca: Path | None = key(
        None, "The CAs that sign the certificates of the other nodes; none: those of the system."
    )
    tls_reload_s: float = key(
        5.0,
        "How often a node looks whether one of the files has changed. SIGHUP looks at once.",
        least=0.1,
    )
    zookeeper_ca: Path | None = key(
        None, "The CAs of ZooKeeper's servers. With it the node reaches them over TLS alone."
    )
    zookeeper_certificate: Path | None = key(
        None, "The certificate that the node shows to ZooKeeper; none: it shows none."
    )
    zookeeper_key: Path | None = key(
        None, "The key of `zookeeper_certificate`; none: it is in the same file."
    )
    zookeeper_credentials: Path | None = key(
        None,
        "File (0600) with user:password. Only this user may read or change the broker's znodes.",
    )
    hbase_ca: Path | None = key(
        None, "The CAs of HBase's gateways. With it the node reaches them over TLS alone."
    )
    hbase_certificate: Path | None = key(
        None, "The certificate that the node shows to HBase's gateways; none: it shows none."
    )
    hbase_key: Path | None = key(
        None, "The key of `hbase_certificate`; none: it is in the same file."
    )

    @property
    def is_on(self) -> bool:
        """True if this node's listeners have TLS."""
        return self.tls_certificate is not None

    @property
    def secrets(self) -> tuple[Path, ...]:
        """The files that other users must not be able to read."""
        found = (
            *(
                self.tls_key or self.tls_certificate,
                self.zookeeper_key or self.zookeeper_certificate,
            ),
            *(self.hbase_key or self.hbase_certificate, self.zookeeper_credentials),
        )
        return tuple(path for path in found if path is not None)


NO_TLS: Final = TlsConfig()
"""No TLS on any way."""


def tls_problems(tls: TlsConfig, advertised_url: str | None) -> Iterator[str]:
    """Yield contradictions between keys of the section."""
    for name in ("tls", "zookeeper", "hbase"):
        if getattr(tls, f"{name}_key") is not None and getattr(tls, f"{name}_certificate") is None:
            yield f"tls.{name}_key needs tls.{name}_certificate"
    for name in ("zookeeper", "hbase"):
        if getattr(tls, f"{name}_certificate") is not None and getattr(tls, f"{name}_ca") is None:
            yield f"tls.{name}_certificate needs tls.{name}_ca: without it there is no TLS"
    if tls.tls_client_certificates is not ClientCertificates.NONE:
        if not tls.is_on:
            yield "tls.tls_client_certificates needs tls.tls_certificate: without it there is no TLS"
        if tls.tls_client_ca is None:
            yield "tls.tls_client_certificates needs tls.tls_client_ca"
    if tls.is_on and advertised_url is not None and not advertised_url.startswith("https:"):
        yield (
            f"cluster.advertised_url = {advertised_url} must begin with https: "
            "with tls.tls_certificate the node speaks nothing else"
        )
