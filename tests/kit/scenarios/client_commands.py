"""Commands of clients and operators in a scenario. See interpreter.py."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from broker.client import Published, admin
from broker.client.transaction_publisher import TransactionPublisher
from broker.errors import BrokerError
from broker.model import Message
from broker.storage.table import Space
from tests.kit.scenarios import pages
from tests.kit.scenarios.interpreter import Lines, ScenarioError, Story, command, seconds, topic_id

NOTHING = "nothing"


def _ok(published: Published) -> Lines:
    return ["ok, replayed"] if published.replayed else ["ok"]


def _payloads(messages: Sequence[Message]) -> str:
    return " ".join(message.payload.decode() for message in messages) or NOTHING


# Topics.


@command("create")
async def create(story: Story, topic: str, ttl: str | None = None, via: str | None = None) -> Lines:
    """Create a topic; ``ttl``: the life of its messages."""
    ttl_s = None if ttl is None else round(seconds(ttl))
    await story.client(via).create_topic(topic, ttl_s=ttl_s)
    return ()


@command("delete")
async def delete(story: Story, topic: str, via: str | None = None) -> Lines:
    """Delete a topic."""
    await story.client(via).delete_topic(topic)
    return ()


@command("update")
async def update(story: Story, topic: str, ttl: str, via: str | None = None) -> Lines:
    """Change how long a topic's messages live."""
    await story.client(via).set_topic(topic, {"ttl": str(round(seconds(ttl)))})
    return ()


@command("topic")
async def show_topic(story: Story, topic: str, via: str | None = None) -> Lines:
    """Print a topic's settings."""
    found = await story.client(via).topic(topic)
    return [f"generation {found.generation}, ttl {found.properties['ttl']}s"]


# Messages.


@command("publish")
async def publish(
    story: Story,
    topic: str,
    *payloads: str,
    via: str | None = None,
    key: str | None = None,
    under: str | None = None,
    ttl: str | None = None,
    deadline: str | None = None,
) -> Lines:
    """Publish messages in one request; ``key``: an idempotency key; ``under``: a transaction."""
    ttl_s = None if ttl is None else round(seconds(ttl))
    if under is not None:
        transaction = _transaction(story, under)
        return _ok(await transaction.publish(topic, payloads, ttl_s=ttl_s, idempotency_key=key))
    client = story.client(via, deadline)
    return _ok(await client.publish(topic, payloads, idempotency_key=key, ttl_s=ttl_s))


@command("pipeline")
async def pipeline(
    story: Story, topic: str, *payloads: str, via: str, deadline: str | None = None
) -> Lines:
    """Publish each message in its own request, all at the same time, through one connection to a node."""
    client = story.cluster.client(
        "clients",
        node=story.machine(via).url,
        deadline_s=10.0 if deadline is None else seconds(deadline),
        batch_messages_max=1,
        requests_in_flight_max=len(payloads),
    )
    async with client:
        done = await asyncio.gather(
            *(client.publish(topic, payload) for payload in payloads), return_exceptions=True
        )
    ends: dict[str, list[str]] = {}
    for payload, end in zip(payloads, done, strict=True):
        if isinstance(end, BaseException) and not isinstance(end, BrokerError):
            raise end
        outcome = f"{end.outcome}: {end.code}" if isinstance(end, BrokerError) else "ok"
        ends.setdefault(outcome, []).append(payload)
    return [f"{outcome}: {' '.join(sent)}" for outcome, sent in ends.items()]


@command("poll")
async def poll(
    story: Story,
    topic: str,
    via: str | None = None,
    under: str | None = None,
    wait: str | None = None,
    after: str | None = None,
    deadline: str | None = None,
) -> Lines:
    """Print the payloads of a topic. ``via=all``: poll through each node; print one line if all agree.

    ``after=seen``: the messages behind the last one that a poll has shown; ``wait``: how long to wait for a message.
    """
    if via == "all":
        return await _poll_all(story, topic)
    if after not in (None, "seen"):
        raise ScenarioError("after is: seen")
    snapshot = None if under is None else _transaction(story, under).snapshot
    messages = await story.client(via, deadline).poll(
        topic,
        None if after is None else story.last_seen[topic],
        inclusive=after is None,
        snapshot=snapshot,
        wait_s=None if wait is None else seconds(wait),
    )
    if messages:
        story.last_seen[topic] = messages[-1].id
    return [_payloads(messages)]


async def _poll_all(story: Story, topic: str) -> Lines:
    shown: dict[str, list[str]] = {}
    for machine in story.cluster.up:
        node = str(machine.number)
        (line,) = await poll(story, topic, via=node)
        shown.setdefault(line, []).append(node)
    if len(shown) == 1:
        return list(shown)
    return [f"{' '.join(nodes)}: {line}" for line, nodes in shown.items()]


@command("log")
async def log(story: Story, topic: str, payloads: str = "no") -> Lines:
    """Print the stored pages of a topic, with the writes of each epoch. ``payloads=yes``: its payload logs."""
    space = Space.PAYLOADS if payloads == "yes" else Space.MESSAGES
    return list(pages.lines(story.cluster.table.table, topic_id(topic), space)) or [NOTHING]


# Transactions.


def _transaction(story: Story, name: str) -> TransactionPublisher:
    if name not in story.transactions:
        raise ScenarioError(f"there is no transaction {name}")
    return story.transactions[name]


@command("begin")
async def begin(story: Story, name: str, via: str | None = None) -> Lines:
    """Begin a transaction; its messages go to the leaders, or through one node."""
    client = story.client(via)
    snapshot = await client.transactions.start()
    story.transactions[name] = TransactionPublisher(client, snapshot.write_pointer, snapshot)
    return ()


@command("commit")
async def commit(story: Story, name: str, *changes: str, via: str | None = None) -> Lines:
    """Commit a transaction that has changed some keys."""
    service, pointer = story.client(via).transactions, _transaction(story, name).pointer
    await service.can_commit(pointer, [change.encode() for change in changes])
    await service.commit(pointer)
    return ["committed"]


@command("roll-back")
async def roll_back(story: Story, name: str, via: str | None = None) -> Lines:
    """Roll back a transaction's messages; then abort it, or invalidate it if an outcome is unknown."""
    transaction = _transaction(story, name)
    is_whole = await transaction.rollback()
    service = story.client(via).transactions
    if is_whole:
        await service.abort(transaction.pointer)
        return ["aborted"]
    await service.invalidate(transaction.pointer)
    return ["invalid"]


@command("store")
async def store(story: Story, topic: str, *payloads: str, under: str) -> Lines:
    """Store messages under a transaction's write pointer."""
    await _transaction(story, under).store(topic, payloads)
    return ["ok"]


@command("publish-stored")
async def publish_stored(story: Story, topic: str, under: str) -> Lines:
    """Publish the messages stored under a transaction's write pointer, by one reference."""
    return _ok(await _transaction(story, under).publish_stored(topic))


# Operators.


@command("leader")
async def leader(story: Story, topic: str, via: str | None = None) -> Lines:
    """Ask the cluster which node leads a topic."""
    found = await story.client(via).leader(topic)
    number = list(story.cluster.nodes).index(found.url)
    return [
        f"node {number}, " + ("not leading yet" if found.epoch is None else f"epoch {found.epoch}")
    ]


@command("leaders")
async def leaders(story: Story, topic: str) -> Lines:
    """Print the nodes that believe that they lead a topic."""
    name = topic_id(topic)
    machines = story.cluster.machines
    held = [str(machine.number) for machine in machines if name in machine.topics_led]
    return [f"node {' '.join(held)}" if held else "none"]


@command("pin")
async def pin(story: Story, topic: str, node: str) -> Lines:
    """Pin a topic to a node: the node leads it while it lives."""
    await story.client(None).ask(admin.pin(topic_id(topic), node))
    return ()


@command("unpin")
async def unpin(story: Story, topic: str) -> Lines:
    """Remove a topic's pin."""
    await story.client(None).ask(admin.unpin(topic_id(topic)))
    return ()


@command("drain")
async def drain(story: Story, node: str) -> Lines:
    """Drain a node: it hands over all its topics."""
    await story.client(None).ask(admin.drain(node))
    return ()


@command("undrain")
async def undrain(story: Story, node: str) -> Lines:
    """End a node's drain: it may lead again."""
    await story.client(None).ask(admin.undrain(node))
    return ()
