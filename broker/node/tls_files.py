"""A node's contexts of TLS, made of the configured files, and made again when one of them has changed.

The new contexts serve connections that begin from then on. Open connections keep theirs, so none is cut. If the new
files can't be used, the former contexts stay, and a warning says why.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from broker import logs
from broker.config.tls_section import ClientCertificates, TlsConfig
from broker.http.certificates import (
    BadCertificates,
    client_context,
    readable_by_others,
    server_context,
    stamp,
)

VERIFY: Final = {
    ClientCertificates.NONE: ssl.CERT_NONE,
    ClientCertificates.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientCertificates.REQUIRED: ssl.CERT_REQUIRED,
}

log = logs.get_logger()


class Certificates:
    """The contexts of TLS of one node.

    Attributes:
        listener: the context for the node's own listeners; None: they have no TLS.
        peers: the context for other nodes whose URL is https.
        hbase: the context for HBase's gateways; None: they have no TLS.
    """

    def __init__(self, tls: TlsConfig) -> None:
        """Make the contexts.

        Raises:
            BadCertificates: a file can't be used.
        """
        self._tls = tls
        self.listener: ssl.SSLContext | None
        self.peers: ssl.SSLContext
        self.hbase: ssl.SSLContext | None
        self._changed: list[Callable[[], None]] = []
        self._paths = tuple(
            getattr(tls, name)
            for name in (
                *("tls_certificate", "tls_key", "tls_client_ca", "tls_peer_ca"),
                *("hbase_ca", "hbase_certificate", "hbase_key"),
            )
        )
        self._stamp = stamp(self._paths)
        self._load()
        for path in tls.secrets:
            if readable_by_others(path):
                log.warning(
                    "other users may read a secret: give its file the mode 0600", path=str(path)
                )

    def _load(self) -> None:
        tls = self._tls
        listener = hbase = None
        if tls.tls_certificate is not None:
            verify = VERIFY[tls.tls_client_certificates]
            listener = server_context(tls.tls_certificate, tls.tls_key, tls.tls_client_ca, verify)
        peers = client_context(tls.tls_peer_ca, tls.tls_certificate, tls.tls_key)
        if tls.hbase_ca is not None:
            hbase = client_context(tls.hbase_ca, tls.hbase_certificate, tls.hbase_key)
        self.listener, self.peers, self.hbase = listener, peers, hbase

    def on_change(self, changed: Callable[[], None]) -> None:
        """Call ``changed`` now, and after each change of the contexts."""
        self._changed.append(changed)
        changed()

    def reload(self) -> bool:
        """Make the contexts again if a file has changed. Return whether they are new."""
        found = stamp(self._paths)
        if found == self._stamp:
            return False
        self._stamp = found
        try:
            self._load()
        except BadCertificates as error:
            log.warning("certificates not reloaded: the old ones stay", error=str(error))
            return False
        log.info("certificates reloaded")
        for changed in self._changed:
            changed()
        return True

    async def watch(self) -> None:
        """Look at the files again and again."""
        if not any(self._paths):
            return
        while True:
            await asyncio.sleep(self._tls.tls_reload_s)
            self.reload()
