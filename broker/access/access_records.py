"""The records of access: tokens, grants and quotas, changed by compare-and-set and followed by every node.

::

    access/token/<id>     {"principal", "hash", "created_ms", "expires_ms"}     removed when revoked: no id comes twice
    access/grants/<who>   [{"what", "pattern"}, …]                              empty when all are revoked
    access/quota/<who>      {kind: limit, …}                                     removed with the last one
    access/changes        a number that each change raises, after the change itself

A node reads ``access/changes`` every second, and all records when the number changed. It also reads them twice a minute in any
case: then it sees a change whose author died before it raised the number. A node that can't read the number for
``STALE_S`` does not know what was revoked, so it refuses all requests until it can.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any, Final

from broker import logs
from broker.access.grants import Grant, Grants, checked_grant
from broker.access.quotas import Limits, Quotas, checked_limits
from broker.access.rules import Rules
from broker.access.tokens import Token, new_token
from broker.clock import Clock
from broker.errors import (
    BadRequest,
    BrokerError,
    NotFound,
    OutcomeUnknown,
    RequestError,
    Unavailable,
    UnavailableError,
)
from broker.storage.records import RecordStore

TOKEN_PREFIX: Final = b"access/token/"
GRANTS_PREFIX: Final = b"access/grants/"
QUOTA_PREFIX: Final = b"access/quota/"
CHANGES: Final = b"access/changes"
LOOK_S: Final = 1.0
READ_ALL_S: Final = 30.0
STALE_S: Final = 30.0
PUT_TRIES_MAX: Final = 16
QUOTAS_MAX: Final = 10_000
GRANTS_OF_ONE_MAX: Final = 1000
TOKENS_MAX: Final = 100_000

log = logs.get_logger()


class AccessRecords:
    """Reads, changes and follows the records of access. ``rules`` returns those in force."""

    def __init__(self, records: RecordStore, clock: Clock) -> None:
        """Begin without rules. Call ``open`` before use, and ``close`` at the end."""
        self._records = records
        self._clock = clock
        self._rules = Rules()
        self._seen: bytes | None = None
        self._looked_at = clock.monotonic()
        self._read_at = clock.monotonic()
        self._following: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Read all records, and follow them from now on. Raises Unavailable."""
        await self._read_all(await self._changes())
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """Stop following."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait((self._following,))

    def rules(self) -> Rules:
        """Return the rules in force. Raises Unavailable if this node could not look for changes for long."""
        if self._clock.monotonic() - self._looked_at > STALE_S:
            raise Unavailable(
                "This node can't read the rules of access, so it does not know whether yours still holds."
            )
        return self._rules

    # --- Changes --------------------------------------------------------------------------------------

    async def create_token(self, principal: str, life_ms: int | None = None) -> tuple[str, Token]:
        """Make a token and store its hash. Return its text, which no other call returns, and its stored part.

        Raises:
            OutcomeUnknown: a token may have been stored that no caller has.
        """
        if len(self._rules.tokens) >= TOKENS_MAX:
            raise BadRequest(f"There are {TOKENS_MAX:,} tokens already. Revoke some.")
        text, token = new_token(principal, self._clock.now_ms(), life_ms)
        key = TOKEN_PREFIX + token.id.encode()
        stored = {name: value for name, value in token._asdict().items() if name != "id"}
        if await self._records.put_if(key, None, _encoded(stored)) is None:
            raise OutcomeUnknown("The token may have been stored. List the tokens, and revoke it.")
        await self._changed()
        return text, token

    async def revoke_token(self, identifier: str) -> Token:
        """Remove a token. Return what it was. Raises NotFound."""
        key = TOKEN_PREFIX + identifier.encode("ascii", "replace")
        found = await self._records.get(key)
        if found is None:
            raise NotFound(f"There is no token {identifier!a:.80}.")
        await self._records.remove([key])
        await self._changed()
        return _token(key, found.value)

    async def grant(self, grant: Grant) -> bool:
        """Add a grant. Return whether it is new."""
        return await self._change_grants(
            grant.who, lambda grants: grants if grant in grants else [*grants, grant]
        )

    async def revoke(self, grant: Grant) -> bool:
        """Remove a grant. Return whether there was one."""
        return await self._change_grants(
            grant.who, lambda grants: [each for each in grants if each != grant]
        )

    async def _change_grants(self, who: str, change: Callable[[list[Grant]], list[Grant]]) -> bool:
        key = GRANTS_PREFIX + who.encode()
        is_changed = False
        for _ in range(PUT_TRIES_MAX):
            found = await self._records.get(key)
            grants = [] if found is None else _grants(key, found.value)
            changed = change(grants)
            if changed == grants:
                if is_changed:
                    await self._changed()
                return is_changed
            if len(changed) > GRANTS_OF_ONE_MAX:
                raise BadRequest(f"{who} has {GRANTS_OF_ONE_MAX:,} grants already. Revoke some.")
            stored = [{"what": each.what, "pattern": each.pattern} for each in changed]
            version = None if found is None else found.version
            try:
                if await self._records.put_if(key, version, _encoded(stored)) is not None:
                    await self._changed()
                    return True
            except OutcomeUnknown:
                is_changed = True  # The next look shows whether it was done.
        raise OutcomeUnknown(f"The grants of {who} may have been changed. List them.")

    async def quotas(self) -> Quotas:
        """Return the stored quotas. Those that can't be read are left out."""
        quotas, _ = await self._read_quotas()
        return quotas

    async def set_quota(self, who: str, limits: Limits) -> bool:
        """Replace the limits of a name; no limits: it has none of its own. Return whether this changed anything."""
        key, value = QUOTA_PREFIX + who.encode(), _encoded(limits)
        for _ in range(PUT_TRIES_MAX):
            found = await self._records.get(key)
            if found is None and not limits:
                return False
            if found is not None and found.value == value:
                await self._changed()  # An earlier attempt may have stored it, and died.
                return False
            if found is None and len((await self.quotas()).limits) >= QUOTAS_MAX:
                raise BadRequest(f"There are quotas of {QUOTAS_MAX:,} names already. Remove some.")
            try:
                if not limits:
                    await self._records.remove([key])
                elif not await self._records.put_if(key, found and found.version, value):
                    continue
            except OutcomeUnknown:
                continue  # The next look shows whether it was done.
            await self._changed()
            return True
        raise OutcomeUnknown(f"The quotas of {who} may have been changed. List them.")

    async def _read_quotas(self) -> tuple[Quotas, list[str]]:
        limits: dict[str, Limits] = {}
        problems: list[str] = []
        for key, record in await self._records.scan_prefix(QUOTA_PREFIX):
            try:
                who = key.removeprefix(QUOTA_PREFIX).decode()
                limits[who] = checked_limits(who, json.loads(record.value))
            except (ValueError, AttributeError, RequestError) as error:
                problems.append(f"{key!r}: {error}")
        return Quotas(limits), problems

    async def _changed(self) -> None:
        """Tell all nodes, after a change. Raises OutcomeUnknown: the change is stored, and counts within half a minute."""
        for _ in range(PUT_TRIES_MAX):
            try:
                found = await self._records.get(CHANGES)
                number = 0 if found is None else int(found.value)
                version = None if found is None else found.version
                if await self._records.put_if(CHANGES, version, b"%d" % (number + 1)) is not None:
                    await self._look()
                    return
            except UnavailableError as error:
                raise OutcomeUnknown("The change is stored, but counts later.") from error
        raise OutcomeUnknown("The change is stored, but counts later.")

    # --- Following ------------------------------------------------------------------------------------

    async def _follow(self) -> None:
        while True:
            await self._clock.sleep(LOOK_S)
            try:
                await self._look()
            except BrokerError as error:
                log.warning("rules of access can't be read", error=error.message)

    async def _look(self) -> None:
        began = self._clock.monotonic()
        seen = await self._changes()
        if seen != self._seen or began - self._read_at >= READ_ALL_S:
            await self._read_all(seen)
        self._looked_at = began

    async def _changes(self) -> bytes | None:
        found = await self._records.get(CHANGES)
        return None if found is None else found.version

    async def _read_all(self, seen: bytes | None) -> None:
        """Read all records. ``seen`` is the version of the number that was read before."""
        began, problems = self._clock.monotonic(), self._rules.problems
        self._rules = await self.stored()
        self._seen, self._read_at = seen, began
        if self._rules.problems and self._rules.problems != problems:
            log.error("records of access are not readable", problems=self._rules.problems[:10])

    async def stored(self) -> Rules:
        """Return the rules as they are stored now. Raises Unavailable."""
        tokens: dict[str, Token] = {}
        grants: list[Grant] = []
        problems: list[str] = []
        for prefix in (TOKEN_PREFIX, GRANTS_PREFIX):
            for key, record in await self._records.scan_prefix(prefix):
                try:
                    if prefix == TOKEN_PREFIX:
                        token = _token(key, record.value)
                        tokens[token.id] = token
                    else:
                        grants += _grants(key, record.value)
                except (ValueError, KeyError, TypeError, BadRequest) as error:
                    problems.append(f"{key!r}: {error}")  # It allows nothing.
        quotas, unread = await self._read_quotas()
        return Rules(tokens, Grants(grants), (*problems, *unread), quotas)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _token(key: bytes, value: bytes) -> Token:
    stored = json.loads(value)
    return Token(
        key.removeprefix(TOKEN_PREFIX).decode(),
        str(stored["principal"]),
        str(stored["hash"]),
        int(stored["created_ms"]),
        None if stored["expires_ms"] is None else int(stored["expires_ms"]),
    )


def _grants(key: bytes, value: bytes) -> list[Grant]:
    who = key.removeprefix(GRANTS_PREFIX).decode()
    return [checked_grant(who, each["what"], each["pattern"]) for each in json.loads(value)]
