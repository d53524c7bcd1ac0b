"""Secrets: tokens and passwords, that no log, error, pickle or list of processes shows.

A ``Secret`` shows ``***`` wherever a value is written by mistake; only ``reveal`` returns its text. It can't be pickled,
because pickles go to files and to other machines: there, a file has the secret (``read_secret``). Texts that others made,
such as headers and addresses, are redacted by name (``redacted``, ``without_secrets``).
"""

from __future__ import annotations

import hmac
import os
import re
import stat
from collections.abc import Iterable
from typing import Any, Final, NoReturn

from typing_extensions import override

HIDDEN: Final = "***"
"""Stands for a secret in texts."""
FILE_BYTES_MAX: Final = 16 * 1024
"""The largest file of a secret. The largest header that servers take is about as large."""
_VISIBLE: Final = re.compile(r"[!-~]+")

_SECRET_NAME: Final = re.compile(
    r"authorization|cookie|password|passwd|secret|credential|private.?key|api.?key"
    r"|token",
    re.IGNORECASE,
)
_NAMES_NO_SECRET: Final = re.compile(r"(file|path|name|max|id|_m?s)$", re.IGNORECASE)
_USER: Final = re.compile(r"(?<=//)[^/?#\s]*@")
_IN_QUERY: Final = re.compile(r"([?&][^=&\s]*=)[^&\s#'\"]*")
_SCHEME: Final = re.compile(r"\b(bearer|basic)\s+[^\s\"',;)\]}]+", re.IGNORECASE)
_HEADER: Final = re.compile(
    r"((?:authorization|cookie)(?:\\?[\"'])?\s*[:=,]\s*(?:b?\\?[\"'])?+)(?!(?:bearer|basic)\s)[^\s\"',;)\]}]+",
    re.IGNORECASE,
)


class Secret:
    """A text that ``repr``, ``str``, ``format`` and pickles don't show. It is false if it is empty."""

    __slots__ = ("_text",)

    def __init__(self, text: str = "") -> None:
        """Keep the text."""
        self._text = text

    def reveal(self) -> str:
        """Return the text, to send it; never to keep or to write it."""
        return self._text

    def __bool__(self) -> bool:
        return bool(self._text)

    @override
    def __repr__(self) -> str:
        return f"Secret({HIDDEN!r})" if self._text else "Secret()"

    @override
    def __str__(self) -> str:
        return HIDDEN if self._text else ""

    @override
    def __format__(self, form: str) -> str:
        return format(str(self), form)

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    @override
    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> Secret:
        return self

    def __deepcopy__(self, _: object) -> Secret:
        return self

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        if self._text:
            not_pickled("a secret")
        return (Secret, ())

    @override
    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        return self.__reduce__()


def not_pickled(what: str) -> NoReturn:
    """Raise TypeError: ``what`` has a secret, and is not pickled."""
    raise TypeError(
        f"{what} is not pickled: a pickle would take it to files and other machines. "
        "Name a file that has it there, with token_file."
    )


def read_secret(path: str | os.PathLike[str]) -> Secret:
    """Return the secret in a file: one line of visible ASCII characters, which the file's owner alone can read.

    Raises:
        ValueError: there is no such file, it is not a regular file, others may read or change it, or it has other text.
            The error names the file, and no text of it.
    """
    name = os.fspath(path)
    try:
        # A named pipe without a writer would block the program here.
        number = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _check_mode(name, os.fstat(number).st_mode)
            read = os.read(number, FILE_BYTES_MAX + 1)
        finally:
            os.close(number)
    except OSError as error:
        raise ValueError(f"{name} can't be read: {error.strerror}.") from error
    text = read.decode("latin-1").strip()
    if len(read) > FILE_BYTES_MAX or not _VISIBLE.fullmatch(text):
        raise ValueError(
            f"{name} must have one secret: a line of visible ASCII characters, at most {FILE_BYTES_MAX} bytes."
        )
    return Secret(text)


def _check_mode(name: str, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise ValueError(f"{name} is not a regular file.")
    bits = stat.S_IMODE(mode)
    if bits & 0o077:
        raise ValueError(
            f"{name} has the mode {bits:04o}: others may read or change the secret in it. "
            f"Correct it with: chmod 600 {name}"
        )


def is_secret_name(name: str) -> bool:
    """Return whether a header, a field or a setting of this name has a secret, such as ``Authorization``."""
    return bool(_SECRET_NAME.search(name)) and not _NAMES_NO_SECRET.search(name)


def redacted(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return names and values; the values of secrets are hidden."""
    return [(name, HIDDEN if is_secret_name(name) else value) for name, value in pairs]


def without_secrets(text: str) -> str:
    """Return a text without the secrets in it: credentials of headers, users of URLs, values of secret parameters."""
    if "//" in text:
        text = _USER.sub(f"{HIDDEN}@", text)
    if "?" in text:
        text = _IN_QUERY.sub(_without_value, text)
    return _HEADER.sub(rf"\g<1>{HIDDEN}", _SCHEME.sub(rf"\g<1> {HIDDEN}", text))


def _without_value(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}" if is_secret_name(found[1][1:-1]) else found[0]
