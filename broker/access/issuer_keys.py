"""The public keys of an OIDC issuer: fetched in the background, kept, and asked for anew when one is not known.

::

    begin ──▶ fetch ──▶ keys ──refresh_s──▶ fetch ──▶ …          an unknown key: fetch at once,
                │                             │                  but at most once in ASK_AGAIN_S
              fails: again after ASK_AGAIN_S ─┘

No request waits for a fetch but one whose key is not known. Keys that could not be renewed for STALE_S are not used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from broker import logs
from broker.clock import Clock
from broker.config.access_section import AccessConfig, is_safe_url
from broker.errors import Overloaded, Unavailable
from broker.http.documents import NoDocument, fetch_document
from broker.principal import CallerPending

ASK_AGAIN_S: Final = 10.0
STALE_S: Final = 3600.0
KEYS_MAX: Final = 100
WAITING_MAX: Final = 1_000
"""The most requests that wait for a fetch at once."""
DISCOVERY: Final = "/.well-known/openid-configuration"

log = logs.get_logger()

Jwk = Mapping[str, Any]
"""One key, as the issuer's document has it."""


class IssuerKeys:
    """The keys of one issuer. Call ``open`` before use, and ``close`` at the end."""

    def __init__(
        self, fetch: Callable[[], Awaitable[Iterable[Jwk]]], clock: Clock, refresh_s: float
    ) -> None:
        """Get the keys by ``fetch``, which raises NoDocument."""
        self._fetch = fetch
        self._clock = clock
        self._refresh_s = refresh_s
        self.keys: dict[str | None, Jwk] = {}
        """The keys by their ids. Each fetch that finds other keys makes a new one."""
        self._began = float("-inf")
        self._read_at = float("-inf")
        self._failure: str | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._following: asyncio.Task[None] | None = None
        self._waiting = 0

    def open(self) -> None:
        """Fetch the keys now, and again and again. The node starts also while its issuer is away."""
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop fetching."""
        tasks = [each for each in (self._following, self._fetching) if each is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def find(self, kid: str | None) -> Jwk | None:
        """Return the key with an id; None: the issuer has no such key. Without an id: its only key.

        Raises:
            CallerPending: it may be among the keys that are being fetched.
            Unavailable: the keys could not be fetched.
        """
        now = self._clock.monotonic()
        if now - self._read_at <= STALE_S:
            if kid is None and len(self.keys) == 1:
                return next(iter(self.keys.values()))
            if (found := self.keys.get(kid)) is not None:
                return found
        if self._fetching is None and now - self._began >= ASK_AGAIN_S:
            self._start()
        if self._fetching is not None:
            if self._waiting >= WAITING_MAX:
                raise Overloaded("Too many requests wait for the keys of the issuer.")
            raise CallerPending(self._fetched)
        if self._failure is not None:
            raise Unavailable(f"The keys of the issuer can't be read: {self._failure}.")
        return None

    async def _fetched(self) -> None:
        """Wait for the end of the present fetch."""
        if self._fetching is not None:
            self._waiting += 1
            try:
                await asyncio.wait((self._fetching,))
            finally:
                self._waiting -= 1

    async def _follow(self) -> None:
        while True:
            if self._fetching is None:
                self._start()
            await self._fetched()
            await self._clock.sleep(self._refresh_s if self._failure is None else ASK_AGAIN_S)

    def _start(self) -> None:
        self._began = self._clock.monotonic()
        self._fetching = asyncio.create_task(self._fetch_once())

    async def _fetch_once(self) -> None:
        try:
            keys = _by_id(await self._fetch())
        except NoDocument as error:
            self._failure = str(error)
            log.warning("keys of the issuer can't be read", reason=self._failure)
        except Exception as error:
            self._failure = f"an unexpected error: {type(error).__name__}"
            log.exception("keys of the issuer can't be read")
        else:
            self._failure, self._read_at = None, self._began
            if keys != self.keys:
                self.keys = keys
        finally:
            self._fetching = None


def _by_id(found: Iterable[Jwk]) -> dict[str | None, Jwk]:
    """Return the keys that can sign, by their ids. Of two with one id the first counts."""
    keys: dict[str | None, Jwk] = {}
    for jwk in found:
        kid = jwk.get("kid")
        if isinstance(kid, str | None) and jwk.get("use", "sig") == "sig":
            keys.setdefault(kid, jwk)
    return keys


def fetcher(access: AccessConfig) -> Callable[[], Awaitable[list[Jwk]]]:
    """Return the function that fetches the keys of the configured issuer."""
    issuer = access.oidc_issuer or ""

    async def fetch() -> list[Jwk]:
        async def document(url: str) -> dict[str, Any]:
            return await fetch_document(url, access.oidc_ca, access.oidc_timeout_s)

        url = access.oidc_jwks_url
        if url is None:
            told = await document(issuer.rstrip("/") + DISCOVERY)
            if told.get("issuer") != issuer:
                raise NoDocument(f"{issuer} says that it is {told.get('issuer')!a:.200}")
            url = _keys_url(told, issuer)
        keys = (await document(url)).get("keys")
        if not isinstance(keys, list) or not all(isinstance(each, dict) for each in keys):
            raise NoDocument(f"{url} has no list of keys")
        if len(keys) > KEYS_MAX:
            raise NoDocument(f"{url} has {len(keys):,} keys; at most {KEYS_MAX} are read")
        return keys

    return fetch


def _keys_url(told: Mapping[str, Any], issuer: str) -> str:
    """Return the URL of the keys in a discovery document. Raises NoDocument if it is not as safe as the issuer's."""
    url = told.get("jwks_uri")
    is_same = isinstance(url, str) and urlsplit(url)[:2] == urlsplit(issuer)[:2]
    if isinstance(url, str) and is_safe_url(url) and (is_same or url.startswith("https://")):
        return url
    raise NoDocument(f"{issuer} names keys at {url!a:.200}, which is no https URL")
