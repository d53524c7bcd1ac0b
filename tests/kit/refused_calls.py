"""Calls that a type checker must refuse. mypy fails for an ignore comment that is not needed, so lint shows the types.

``accepted`` has the calls that it must take.
"""

from __future__ import annotations

from typing import Any

from broker.client import Client, Message, PlaceStore, SubscriberOptions, SyncClient


def by_message(_: Message) -> None:
    """Handle a message."""


async def by_list(_: list[Message]) -> None:
    """Handle a list."""


def in_place(_: Message, __: Any) -> None:
    """Handle a message within a place."""


def by_text(_: str) -> None:
    """Handle a text, which no subscriber gives."""


def refused(client: Client, sync: SyncClient, place: PlaceStore) -> None:
    """Make calls with wrong names and types."""
    Client("http://127.0.0.1", idempotant=True)  # type: ignore[call-arg]
    SyncClient("http://127.0.0.1", idempotant=True)  # type: ignore[call-arg]
    Client("http://127.0.0.1", deadline_s="10")  # type: ignore[arg-type]
    SyncClient(later_on_full="wiat")  # type: ignore[arg-type]
    client.subscriber("a/b", "c", by_text)  # type: ignore[arg-type]
    client.subscriber("a/b", "c", by_list)  # type: ignore[arg-type]
    client.subscriber("a/b", "c", in_place)  # type: ignore[arg-type]
    client.subscriber("a/b", "c", by_message, place=place)  # type: ignore[arg-type]
    client.subscriber("a/b", "c", by_message, batch_messages_max=10)  # type: ignore[arg-type]
    client.subscriber("a/b", "c", by_message, tries=1)  # type: ignore[call-overload]
    sync.subscriber("a/b", "c", by_text)  # type: ignore[arg-type]
    sync.subscriber("a/b", "c", by_message, wait_s="1")  # type: ignore[call-overload]


def accepted(client: Client, sync: SyncClient, place: PlaceStore) -> None:
    """Make calls with right names and types."""
    Client("http://127.0.0.1", idempotent=True, deadline_s=10)
    SyncClient("http://127.0.0.1", namespace="audit", later_on_full="drop")
    client.subscriber("a/b", "c", by_message, tries_max=3, start="now")
    client.subscriber("a/b", "c", by_list, batch_messages_max=10)
    sync.subscriber("a/b", "c", in_place, place=place)
    sync.subscriber("a/b", "c", by_list, options=SubscriberOptions(batch_messages_max=10))
