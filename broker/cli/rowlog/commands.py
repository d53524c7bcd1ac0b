"""The commands of ``broker rowlog``."""

from __future__ import annotations

import click

from broker.cli.rowlog import letters, views, worker, write_commands


@click.group()
def rowlog() -> None:
    """Show rowlogs in HBase, put messages into them, process and mend them.

    A rowlog is a queue of messages about the rows of one of your own HBase tables.

    \b
    broker rowlog list --hbase localhost:9090
    broker rowlog subscriptions mq --add indexer --max-tries 5
    broker rowlog put mq user/7 --cell d:name=Alice --payload created
    broker rowlog process mq --listener indexer=app.index:on_message --zookeeper localhost:2181
    broker rowlog dead mq indexer
    """  # noqa: D301 - Click's mark for a paragraph that must not be wrapped.


for command in (
    views.list_,
    views.show,
    write_commands.put,
    worker.process,
    letters.dead,
    letters.retry,
    write_commands.subscriptions,
    views.verify,
):
    rowlog.add_command(command)
