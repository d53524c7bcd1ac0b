import asyncio
import json

import pytest

from broker.rowlog.rows import Message
from chaos.rowlog_worker import Worker

MESSAGE = Message("mq", b"row", 1, 1_000, b'{"n": 1}', b"")


async def test_a_cancelled_call_writes_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    listen = Worker("one", {"id": "mq", "takes_s": 1000.0}).listener("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):  # It cancels the call at its first pause.
            await listen(MESSAGE)
    began, ended = map(json.loads, capsys.readouterr().out.splitlines())
    assert (began["kind"], ended["kind"], ended["done"]) == ("begin", "end", False)
    assert began["call"] == ended["call"]
