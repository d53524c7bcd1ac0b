"""Certificates of a CA of this process, for tests of TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography.hazmat.primitives import serialization

from broker.http.certificates import client_context, server_context


class Files(NamedTuple):
    """The files of one certificate, and of the CA that signed it."""

    certificate: Path
    key: Path
    ca: Path


@cache
def authority() -> trustme.CA:
    """Return the CA of this process."""
    return trustme.CA()


def write(
    folder: Path,
    *names: str,
    ca: trustme.CA | None = None,
    name: str = "node",
    cn: str | None = None,
) -> Files:
    """Write a certificate for these names, or for loopback, with its key and its CA."""
    signer = ca or authority()
    issued = signer.issue_cert(*(names or ("127.0.0.1", "localhost", "::1")), common_name=cn)
    files = Files(folder / f"{name}.pem", folder / f"{name}.key", folder / f"{name}-ca.pem")
    files.key.touch(mode=0o600)
    issued.private_key_pem.write_to_path(files.key)
    for at, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(files.certificate, append=at > 0)
    signer.cert_pem.write_to_path(files.ca)
    return files


def java_keys(files: Files) -> Path:
    """Write the key and the certificate of these files as Java reads them. Return the file."""
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    written = files.certificate.with_name(f"{files.certificate.stem}-java.pem")
    written.touch(mode=0o600)
    pkcs8 = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    written.write_bytes(pkcs8 + files.certificate.read_bytes())
    return written


def serving(files: Files, verify: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
    """Return the context of a listener that shows these files' certificate."""
    return server_context(files.certificate, files.key, files.ca, verify)


def trusting(files: Files | None = None, ca: trustme.CA | None = None) -> ssl.SSLContext:
    """Return the context of a client that trusts the CA of this process, and shows a certificate if given one."""
    context = client_context(*((files.ca, files.certificate, files.key) if files else ()))
    (ca or authority()).configure_trust(context)
    return context


class TlsObject:
    """The client's side of TLS for a test that reads and writes a socket by itself."""

    def __init__(self, context: ssl.SSLContext, name: str = "127.0.0.1") -> None:
        """Begin without a handshake."""
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._arrived, self._leaving, server_hostname=name)

    async def shake_hands(self, sock: socket.socket) -> None:
        """Do the handshake on a socket that does not block."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                self.tls.do_handshake()
            except ssl.SSLWantReadError:
                await loop.sock_sendall(sock, self._leaving.read())
                self._arrived.write(await loop.sock_recv(sock, 1 << 16))
            else:
                await loop.sock_sendall(sock, self._leaving.read())
                return

    def encrypted(self, data: bytes) -> bytes:
        """Return the bytes to send for some plain ones."""
        self.tls.write(data)
        return self._leaving.read()

    def ended(self) -> bytes:
        """Return the bytes that end this side."""
        with suppress(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self._leaving.read()

    def decrypted(self, data: bytes) -> bytes:
        """Return the plain bytes that are whole once these have arrived."""
        self._arrived.write(data)
        pieces = []
        with suppress(ssl.SSLWantReadError, ssl.SSLZeroReturnError):
            while piece := self.tls.read(1 << 16):
                pieces.append(piece)
        return b"".join(pieces)
