"""A web service with aiohttp: an order is answered when its message is on the broker's disk.

::

    broker topics create examples/orders && broker topics create examples/visits
    BROKER_URL=http://127.0.0.1:8080 python examples/web/orders_aiohttp.py 8000
    curl -i -H 'Idempotency-Key: cart-7' -d 'two loaves' http://127.0.0.1:8000/orders

The application has one client, which every request uses, for its whole life. On SIGTERM aiohttp stops listening and
finishes the requests; then ``client_context`` flushes the messages of ``publish_later``.
"""

import math
import os
import sys
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler

from broker.client import BadRequest, BodyTooLarge, BrokerError, Client, IdempotencyKeyReused

ORDERS, VISITS = "examples/orders", "examples/visits"
CALLERS_FAULTS = (BadRequest, BodyTooLarge, IdempotencyKeyReused)
ANSWER_WITHIN_S = float(os.environ.get("ANSWER_WITHIN_S", "3"))  # With all retries of the client.
CLIENT = web.AppKey("client", Client)


async def client_context(app: web.Application) -> AsyncIterator[None]:
    """Make the client before the first request, and close it after the last one."""
    async with Client(os.environ.get("BROKER_URL"), deadline_s=ANSWER_WITHIN_S) as client:
        app[CLIENT] = client
        yield
        await client.flush()  # Ends by the deadline of the last message.
    print(f"closed: {client.later.counts}", flush=True)


async def place_order(request: web.Request) -> web.Response:
    """Publish the order once, however often the caller repeats the request with its key."""
    client, order = request.app[CLIENT], await request.read()
    key = request.headers.get("Idempotency-Key", "")  # The client refuses an empty key.
    # A visit may be lost, so no caller waits for it.
    await client.publish_later(VISITS, key, on_full="drop")
    # A service that knows its users puts the user's id before the key: two users may send the same one.
    done = await client.publish(ORDERS, order, idempotency_key=key)
    identifier = done.first_id.hex() if done.first_id else None
    return web.json_response({"id": identifier, "replayed": done.replayed}, status=201)


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer 503 if the order is certainly not placed, and 504 if it may be."""
    try:
        return await handler(request)
    except BrokerError as error:
        return answer_of(error)


def answer_of(error: BrokerError) -> web.Response:
    """Return the answer of a request that ended with an error of the client."""
    content = {"code": error.code, "outcome": error.outcome, "message": error.message}
    if error.outcome == "unknown":
        content["advice"] = "Repeat the request with the same Idempotency-Key: it is placed once."
        return web.json_response(content, status=504)
    if error.retriable:  # The broker is away, or full.
        headers = {"Retry-After": str(math.ceil(error.retry_after_s or 1))}
        return web.json_response(content, status=503, headers=headers)
    status = error.http_status if isinstance(error, CALLERS_FAULTS) else 500
    return web.json_response(content, status=status)


app = web.Application(middlewares=[answer_errors])
app.cleanup_ctx.append(client_context)
app.router.add_post("/orders", place_order)

if __name__ == "__main__":
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]))
