"""Configuration changes: a process reads the whole history when it starts, then follows.

BROKER_URL=http://127.0.0.1:8080 python examples/configuration_changes.py
"""

import asyncio
import json
import os

from broker.client import Client

TOPIC = "examples/configuration"


async def follow(client: Client, ready: asyncio.Event) -> dict[str, str]:
    """Keep a configuration current until a message sets ``stop``."""
    configuration: dict[str, str] = {}
    async for message in client.tail(TOPIC):
        configuration |= json.loads(message.payload)
        print(f"now in force: {configuration}")
        ready.set()
        if "stop" in configuration:
            return configuration
    raise AssertionError("a tail has no end")


async def main() -> None:
    """Change the configuration under a process that follows it."""
    async with Client(os.environ.get("BROKER_URL")) as client:
        await client.create_topic(TOPIC, if_exists="keep")
        await client.publish(TOPIC, json.dumps({"threads": "4"}))

        ready = asyncio.Event()
        following = asyncio.create_task(follow(client, ready))
        await ready.wait()
        await client.publish(TOPIC, json.dumps({"threads": "8"}))
        await client.publish(TOPIC, json.dumps({"stop": "yes"}))
        await following

        await client.delete_topic(TOPIC)


asyncio.run(main())
