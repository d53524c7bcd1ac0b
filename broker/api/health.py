"""Handlers for machines: liveness, readiness, metrics, and the OpenAPI document of a node."""

from __future__ import annotations

from collections.abc import Callable

from broker.errors import Unavailable
from broker.http.reply import Answer, Reply, json_reply
from broker.http.request import Request
from broker.metrics import CONTENT_TYPE
from broker.operations import replies
from broker.operations.media_types import JSON, PLAIN
from broker.operations.replies import Product

_PONG = Reply(200, b"OK.\n", PLAIN)
_READY = Reply(200, b'{"status":"ready"}', JSON)
_STATUS_OK = Reply(200, b'{"status":"OK"}', JSON)


class Health:
    """The handlers that tell about the node itself."""

    def __init__(
        self,
        *,
        version: str,
        not_ready: Callable[[], str | None],
        metrics: Callable[[], bytes],
        openapi: Callable[[], bytes],
    ) -> None:
        """Keep the sources of the answers. ``not_ready`` returns the reason, or None if the node is ready."""
        self._version = version
        self._not_ready = not_ready
        self._metrics = metrics
        self._openapi = openapi

    async def product(self, _: Request) -> Answer:
        """Answer which product this is, and where its interface is described."""
        version = self._version
        return json_reply(Product(product="tms-broker", version=version, interface="/openapi.json"))

    async def ping(self, _: Request) -> Answer:
        """Answer as the original does."""
        return _PONG

    async def service_status(self, _: Request) -> Answer:
        """Answer as the original does, for any service name."""
        return _STATUS_OK

    async def healthz(self, _: Request) -> Answer:
        """Answer that the process lives."""
        return json_reply(replies.Health(status="ok", version=self._version))

    async def readyz(self, _: Request) -> Answer:
        """Answer that this node takes requests. Raises Unavailable if it does not."""
        reason = self._not_ready()
        if reason is not None:
            raise Unavailable(f"This node is not ready: {reason}")
        return _READY

    async def metrics(self, _: Request) -> Answer:
        """Answer all metrics in Prometheus' text format."""
        return Reply(200, self._metrics(), CONTENT_TYPE)

    async def openapi(self, _: Request) -> Answer:
        """Answer the OpenAPI document."""
        return Reply(200, self._openapi(), JSON)
