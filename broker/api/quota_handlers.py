"""Handlers that list and change quotas."""

from __future__ import annotations

from broker.access.access_records import AccessRecords
from broker.access.quotas import Limits, checked_limits
from broker.api import asked
from broker.http.reply import Answer, json_reply
from broker.http.request import Request
from broker.operations.replies import QuotaChanged, QuotaList, QuotaShown
from broker.operations.sent import QuotaSent

QUOTA_BYTES_MAX = 16 * 1024


class QuotaHandlers:
    """The handlers of quotas. They count in the mode ``required`` alone, but can be set before."""

    def __init__(self, access: AccessRecords) -> None:
        """Keep the records."""
        self._access = access

    async def quotas(self, request: Request) -> Answer:
        """Answer all limits, as they are stored."""
        del request
        stored = await self._access.quotas()
        return json_reply(
            QuotaList(
                quotas=[
                    QuotaShown(who=who, limits=_shown(limits))
                    for who, limits in stored.limits.items()
                ]
            )
        )

    async def put_quota(self, request: Request) -> Answer:
        """Replace the limits of a name."""
        body: QuotaSent = asked.read_small(request.body, QuotaSent, bytes_max=QUOTA_BYTES_MAX)
        return await self._set(request.names.who, checked_limits(request.names.who, body["limits"]))

    async def delete_quota(self, request: Request) -> Answer:
        """Remove the limits of a name."""
        checked_limits(request.names.who, {})
        return await self._set(request.names.who, {})

    async def _set(self, who: str, limits: Limits) -> Answer:
        is_changed = await self._access.set_quota(who, limits)
        return json_reply(QuotaChanged(who=who, limits=_shown(limits), changed=is_changed))


def _shown(limits: Limits) -> dict[str, int | None]:
    return {kind.value: limit for kind, limit in limits.items()}
