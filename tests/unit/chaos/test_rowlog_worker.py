import asyncio
import json

import pytest

from broker.rowlog.rows import Message
from chaos.rowlog_worker import Worker

MESSAGE = Message("mq", b"row", 1, 1_000, b'{"n": 1}', b"")


async def test_a_call_that_is_cancelled_is_told_as_over(capsys: pytest.CaptureFixture[str]) -> None:
    listen = Worker("one", {"id": "mq", "takes_s": 1000.0}).listener("a")
    calling = asyncio.create_task(listen(Message("mq", b"row", 1, 2, b"", b"")))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    began, ended = map(json.loads, capsys.readouterr().out.splitlines())
    assert (began["kind"], ended["kind"], ended["done"]) == ("begin", "end", False)
    assert began["call"] == ended["call"]
