"""A web service with FastAPI: an order is answered when its message is on the broker's disk.

::

    broker topics create examples/orders && broker topics create examples/visits
    BROKER_URL=http://127.0.0.1:8080 uvicorn --app-dir examples/web orders_fastapi:app
    curl -i -H 'Idempotency-Key: cart-7' -d 'two loaves' http://127.0.0.1:8000/orders

It needs FastAPI and uvicorn. The application has one client, which every request uses, for its whole life. On SIGTERM
uvicorn stops listening and finishes the requests; then ``lifespan`` flushes the messages of ``publish_later``.
"""

import math
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Header, Request
from fastapi.responses import JSONResponse

from broker.client import BadRequest, BodyTooLarge, BrokerError, Client, IdempotencyKeyReused

ORDERS, VISITS = "examples/orders", "examples/visits"
CALLERS_FAULTS = (BadRequest, BodyTooLarge, IdempotencyKeyReused)
ANSWER_WITHIN_S = float(os.environ.get("ANSWER_WITHIN_S", "3"))  # With all retries of the client.


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Make the client before the first request, and close it after the last one."""
    async with Client(os.environ.get("BROKER_URL"), deadline_s=ANSWER_WITHIN_S) as client:
        app.state.client = client
        yield
        await client.flush()  # Ends by the deadline of the last message.
    print(f"closed: {client.later.counts}", flush=True)


app = FastAPI(lifespan=lifespan)


@app.post("/orders", status_code=201)
async def place_order(
    request: Request, idempotency_key: Annotated[str, Header()]
) -> dict[str, object]:
    """Publish the order once, however often the caller repeats the request with its key."""
    client: Client = request.app.state.client
    order = await request.body()
    # A visit may be lost, so no caller waits for it.
    await client.publish_later(VISITS, idempotency_key, on_full="drop")
    # A service that knows its users puts the user's id before the key: two users may send the same one.
    done = await client.publish(ORDERS, order, idempotency_key=idempotency_key)
    return {"id": done.first_id.hex() if done.first_id else None, "replayed": done.replayed}


@app.exception_handler(BrokerError)
async def answer_error(_: Request, error: BrokerError) -> JSONResponse:
    """Answer 503 if the order is certainly not placed, and 504 if it may be."""
    content = {"code": error.code, "outcome": error.outcome, "message": error.message}
    if error.outcome == "unknown":
        content["advice"] = "Repeat the request with the same Idempotency-Key: it is placed once."
        return JSONResponse(content, 504)
    if error.retriable:  # The broker is away, or full.
        retry_after_s = math.ceil(error.retry_after_s or 1)
        return JSONResponse(content, 503, {"Retry-After": str(retry_after_s)})
    return JSONResponse(content, error.http_status if isinstance(error, CALLERS_FAULTS) else 500)
