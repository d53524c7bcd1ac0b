"""A bare aiohttp server: it reads each body, does nothing, and answers 200.

Question (b) uses it as a third side: it shows the least cost of aiohttp's low-level server.
``python -m benchmarks.bare_server PORT``
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import web


async def _answer(request: web.BaseRequest) -> web.StreamResponse:
    await request.read()
    return web.Response()


async def _serve(port: int) -> None:
    server = web.Server(_answer, access_log=None)
    listening = await asyncio.get_running_loop().create_server(server, "127.0.0.1", port)
    await listening.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve(int(sys.argv[1])))
