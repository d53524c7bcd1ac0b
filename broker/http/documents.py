"""Fetch a small JSON document of another server, with a bound on all that the server may do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Final

from aiohttp import ClientError, ClientSession, ClientTimeout, DummyCookieJar

from broker.http.certificates import BadCertificates, client_context
from broker.shield import bare

BYTES_MAX: Final = 256 * 1024
"""The longest document. Python's parser takes about 2 ms for it."""


class NoDocument(Exception):
    """The server gave no document. The message says why."""


async def fetch_document(url: str, ca: Path | None, timeout_s: float) -> dict[str, Any]:
    """Return the JSON object at a URL. ``ca``: the CAs of its server; None: those of the system.

    It follows no redirect, and takes no compressed body. Raises NoDocument.
    """
    try:
        body = await _fetched(url, ca, timeout_s)
        found = json.loads(body)
    except TimeoutError as error:
        raise NoDocument(f"{url} did not answer within {timeout_s:g} s") from bare(error)
    except (ClientError, OSError, BadCertificates) as error:
        raise NoDocument(f"{url} can't be read: {error}") from error
    except (ValueError, RecursionError) as error:
        raise NoDocument(f"{url} did not answer with JSON") from error
    if not isinstance(found, dict):
        raise NoDocument(f"{url} did not answer with a JSON object")
    return found


async def _fetched(url: str, ca: Path | None, timeout_s: float) -> bytes:
    # The files are read each time, so that a new CA counts without a restart.
    context = await asyncio.to_thread(client_context, ca)
    body = bytearray()
    async with (
        ClientSession(
            timeout=ClientTimeout(total=timeout_s),
            cookie_jar=DummyCookieJar(),
            auto_decompress=False,
        ) as session,
        session.get(
            url,
            allow_redirects=False,
            ssl=context,
            headers={"Accept": "application/json", "Accept-Encoding": "identity"},
        ) as reply,
    ):
        if reply.status != 200:
            raise NoDocument(f"{url} answered with status {reply.status}")
        async for chunk in reply.content.iter_any():
            body += chunk
            if len(body) > BYTES_MAX:
                raise NoDocument(f"{url} answered with more than {BYTES_MAX:,} bytes")
    return bytes(body)
