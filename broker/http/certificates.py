"""The files and names of TLS: contexts made of certificates, and what a peer's certificate says of it.

A context is made anew whenever a file has changed, and takes the place of the former one. Connections that are open
keep theirs, so a certificate is replaced without an interruption. A new certificate and its key are two files; while
they don't belong together, no context can be made of them, and the former one stays.

Sessions are not resumed: each connection shows its certificate, and one of a CA that was taken away no longer counts.
"""

from __future__ import annotations

import ssl
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

PRIVATE: Final = stat.S_IRWXG | stat.S_IRWXO
"""The rights of other users, of which a file with a secret must have none."""
_SHORT: Final = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "localityName": "L",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "domainComponent": "DC",
    "userId": "UID",
}
"""The names of RFC 4514, by those of OpenSSL."""


class BadCertificates(ValueError):
    """A file of certificates can't be used. The message names it, and says why."""


class PeerCertificate(NamedTuple):
    """The names in a certificate that a CA of this side has signed.

    ``subject`` is text as in RFC 4514, the most specific part first: ``CN=alice,O=Example``. The other names are empty if
    the certificate has none.
    """

    subject: str
    common_name: str = ""
    dns_names: tuple[str, ...] = ()
    uris: tuple[str, ...] = ()
    emails: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> PeerCertificate:
        """Read what ``getpeercert`` of the module ``ssl`` returns."""
        parts = [pair for part in found.get("subject", ()) for pair in part]
        subject = ",".join(
            f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in reversed(parts)
        )
        common = [value for name, value in parts if name == "commonName"]
        names: list[tuple[str, str]] = list(found.get("subjectAltName", ()))
        return cls(
            subject,
            common[-1] if common else "",
            *(
                tuple(value for kind, value in names if kind == wanted)
                for wanted in ("DNS", "URI", "email")
            ),
        )


def _escaped(value: str) -> str:
    """Return a value of a subject so that it can't look like further parts (RFC 4514, 2.4)."""
    text = "".join(f"\\{sign}" if sign in ',+"\\<>;=' else sign for sign in value)
    text = text.replace("\0", "\\00")
    if text[:1] in (" ", "#"):
        text = f"\\{text}"
    return f"{text[:-1]}\\ " if len(value) > 1 and text.endswith(" ") else text


def server_context(
    certificate: Path,
    key: Path | None = None,
    client_ca: Path | None = None,
    verify: ssl.VerifyMode = ssl.CERT_NONE,
) -> ssl.SSLContext:
    """Return the context of a listener. Without ``key`` the key is in the certificate's file.

    ``verify`` says whether clients are asked for a certificate, and ``client_ca`` who must have signed it.

    Raises:
        BadCertificates: a file can't be read, or certificate and key don't belong together.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _harden(context)
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    _show(context, certificate, key)
    if verify is not ssl.CERT_NONE:
        if client_ca is None:
            raise BadCertificates("clients can't be asked for certificates without a CA for them")
        context.verify_mode = verify
        _trust(context, client_ca)
    return context


def client_context(
    ca: Path | str | None = None,
    certificate: Path | str | None = None,
    key: Path | str | None = None,
) -> ssl.SSLContext:
    """Return the context of a client. Without ``ca`` it trusts the certificates of the system. Empty names are none.

    Raises:
        BadCertificates: as ``server_context``.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _harden(context)
    if ca:
        _trust(context, ca)
    else:
        context.load_default_certs()
    if certificate:
        _show(context, certificate, key or None)
    elif key:
        raise BadCertificates(f"the key {str(key)!r} has no certificate beside it")
    return context


def _harden(context: ssl.SSLContext) -> None:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION


def _show(context: ssl.SSLContext, certificate: Path | str, key: Path | str | None) -> None:
    """Let a context show a certificate."""

    def ask() -> str:
        raise BadCertificates(f"the key of {str(certificate)!r} has a passphrase: store it without")

    try:
        context.load_cert_chain(certificate, key, password=ask)
    except (OSError, ValueError) as error:
        if isinstance(error, BadCertificates):
            raise
        shown = str(certificate) if key is None else f"{certificate}, {key}"
        raise BadCertificates(
            f"{shown!r} can't be read as a PEM certificate with its key: {_reason(error)}"
        ) from error


def _trust(context: ssl.SSLContext, ca: Path | str) -> None:
    try:
        context.load_verify_locations(cafile=ca)
    except (OSError, ValueError) as error:
        raise BadCertificates(
            f"{str(ca)!r} can't be read as a PEM file with certificates: {_reason(error)}"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return {"KEY_VALUES_MISMATCH": "the key belongs to another certificate"}.get(
            error.reason or "", str(error)
        )
    return getattr(error, "strerror", None) or str(error)


def readable_by_others(path: Path) -> bool:
    """Return whether other users have a right to a file. A file that is missing belongs to no user."""
    try:
        return bool(path.stat().st_mode & PRIVATE)
    except OSError:
        return False


def stamp(paths: Iterable[Path | None]) -> tuple[tuple[int, int, int] | None, ...]:
    """Return what changes when one of these files is replaced or written."""
    return tuple(None if path is None else _stamp(path) for path in paths)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
