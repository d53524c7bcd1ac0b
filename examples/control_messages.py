"""Control messages to all containers of a program: each container reads the same topic, from the same place.

BROKER_URL=http://127.0.0.1:8080 python examples/control_messages.py
"""

import asyncio
import os

from broker.client import Client, TailOptions

TOPIC = "examples/control"
CONTAINERS = 3


async def container(number: int, url: str | None, since: bytes) -> None:
    """Print every message after the program's start, until the message ``stop``."""
    async with Client(url) as client:
        # A long poll: the broker answers as soon as there is a message.
        async for message in client.tail(
            TOPIC, since, inclusive=False, options=TailOptions(wait_s=60)
        ):
            print(f"container {number}: {message.payload.decode()}")
            if message.payload == b"stop":
                return


async def main() -> None:
    """Start containers, and send the same messages to all of them."""
    url = os.environ.get("BROKER_URL")
    async with Client(url) as client:
        await client.create_topic(TOPIC, if_exists="keep")
        await client.publish(TOPIC, "start")
        (start,) = (await client.browse(TOPIC, descending=True, limit=1)).messages

        containers = [container(number, url, start.id) for number in range(CONTAINERS)]
        running = [asyncio.create_task(work) for work in containers]
        await client.publish(TOPIC, "log level debug")
        await client.publish(TOPIC, "stop")
        await asyncio.gather(*running)
        print("all containers have stopped")

        await client.delete_topic(TOPIC)


asyncio.run(main())
