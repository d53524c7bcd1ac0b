"""``broker access``: who may do what, and how much; the first administrator."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from broker.cli.command.broker_calls import Json, asks, writes
from broker.cli.command.options import flag, topic_argument
from broker.cli.command.output import table, write_line
from broker.cli.command.problems import NotNow
from broker.cli.nodes.quota_commands import quotas
from broker.cli.nodes.serve import configured_by, resolved
from broker.client import SyncClient, admin
from broker.errors import BadRequest, TaskFailed, UnavailableError
from broker.model import TopicId
from broker.moments import rfc3339, whole_s


@click.group()
def access() -> None:
    """Say who may do what, and how much: tokens for callers, grants of roles or actions, quotas.

    They count on nodes with access.access_mode = required.

    \b
    broker access init --data-dir data --out admin.token
    broker access token create billing --expires 90d
    broker access grant billing writer 'audit/*'
    broker access check billing publish audit/logins
    broker access quotas list
    """


access.add_command(quotas)


@access.command()
@click.option("--principal", default="admin", show_default=True, help="The administrator's name.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("admin.token"),
    show_default=True,
    help="The file to which the token is written, readable by you alone. It must not exist.",
)
@flag("--again", "Make one although there is an administrator.")
@configured_by({"storage", "cluster", "hbase", "tls"})
@writes(lambda told: write_line("the token of {principal} is in {file}".format(**told), err=True))
def init(
    principal: str, out: Path, again: bool, file: Path | None, **flags: str | None
) -> dict[str, str]:
    """Make the first administrator, and write its token into a file.

    A data directory must not be served meanwhile. The nodes of a cluster may run.

    \b
    broker access init --data-dir data
    broker access init --config node1.toml --out /etc/broker/admin.token
    """
    from broker.api.access_handlers import check_principal  # noqa: PLC0415 - Slow to import.
    from broker.node.administrator import make_administrator  # noqa: PLC0415

    config = resolved(file, flags).config
    try:
        check_principal(principal)
    except BadRequest as error:
        raise click.BadParameter(error.message, param_hint="--principal") from error
    try:
        # Made first: a token that can't be written must not be made.
        target = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise TaskFailed(f"{out} can't be made: {error.strerror}. Name a new file.") from error
    try:
        with os.fdopen(target, "w") as opened:
            token = asyncio.run(make_administrator(config, principal, again=again))
            opened.write(token + "\n")
    except BaseException as error:
        out.unlink()
        if isinstance(error, UnavailableError):
            raise NotNow(error) from error
        raise
    return {"principal": principal, "file": str(out)}


# --- Tokens ---------------------------------------------------------------------------------------


@access.group()
def token() -> None:
    """Make, list and revoke tokens: the credentials of programs.

    \b
    broker access token create billing --expires 90d
    broker access token list
    broker access token revoke 5f2c0a1b9d3e7f60
    """


@token.command()
@click.argument("principal", metavar="NAME")
@click.option("--expires", metavar="DURATION", help="Its life, such as 90d.  [default: no end]")
@asks(lambda told: write_line(told["token"]))
def create(client: SyncClient, principal: str, expires: str | None) -> Json:
    """Make a token for a principal, and show it once.

    A principal may have several tokens: to change one, make a second one, use it everywhere, revoke the first.

    \b
    broker access token create billing > billing.token
    broker access token create billing --expires 90d
    """
    try:
        life_s = None if expires is None else whole_s(expires)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--expires") from error
    return client.ask(admin.create_token(principal, life_s))


_TOKENS = table("ID", "PRINCIPAL", "CREATED", "EXPIRES")
_GRANTS = table("WHO", "WHAT", "PATTERN")


def _token_rows(told: Json) -> Iterable[dict[str, Any]]:
    for each in told["tokens"]:
        expires_ms = each["expires_ms"]
        yield {
            "id": each["id"],
            "principal": each["principal"],
            "created": rfc3339(each["created_ms"]),
            "expires": "never" if expires_ms is None else rfc3339(expires_ms),
        }


@token.command("list")
@asks(lambda told: _TOKENS(list(_token_rows(told))))
def list_tokens(client: SyncClient) -> Json:
    """List all tokens, without their secrets.

    \b
    broker access token list
    """
    return client.ask(admin.tokens())


@token.command("revoke")
@click.argument("identifier", metavar="ID")
@asks("{revoked} of {principal} is revoked")
def revoke_token(client: SyncClient, identifier: str) -> Json:
    """Revoke a token. Within two seconds no node takes it.

    \b
    broker access token revoke 5f2c0a1b9d3e7f60
    """
    return client.ask(admin.revoke_token(identifier))


# --- Grants ---------------------------------------------------------------------------------------

_who = click.argument("who", metavar="WHO")
_what = click.argument("what", metavar="ROLE|ACTION")
_pattern = click.argument("pattern", metavar="[PATTERN]", default="*")


def _line(told: Json, done: str, same: str) -> str:
    grant = told["grant"]
    text = f"{grant['who']} {grant['what']} {grant['pattern']}"
    return f"{text}: {done if told['changed'] else same}"


@access.command()
@_who
@_what
@_pattern
@asks(lambda told: _line(told, "granted", "was granted before"))
def grant(client: SyncClient, who: str, what: str, pattern: str) -> Json:
    """Grant a role or an action to a principal, or to a group (group:NAME).

    \b
    broker access grant billing writer 'audit/*'
    broker access grant group:auditors reader audit/logins
    broker access grant dave admin
    """
    return client.ask(admin.grant(who, what, pattern))


@access.command()
@_who
@_what
@_pattern
@flag("--force", "Also the last grant of an administrator.")
@asks(lambda told: _line(told, "revoked", "was not granted"))
def revoke(client: SyncClient, who: str, what: str, pattern: str, force: bool) -> Json:
    """Revoke a grant. Within two seconds it counts on no node.

    \b
    broker access revoke billing writer 'audit/*'
    """
    return client.ask(admin.revoke_grant(who, what, pattern, force=force))


@access.command("list")
@asks(lambda told: _GRANTS(told["grants"]))
def list_grants(client: SyncClient) -> Json:
    """List all grants.

    \b
    broker access list
    """
    return client.ask(admin.grants())


@access.command()
@_who
@click.argument("action", metavar="ACTION")
@topic_argument
@asks(
    lambda told: (
        "allowed by: {who} {what} {pattern}".format(**told["grant"])
        if told["allowed"]
        else "denied: no grant allows it"
    )
)
def check(client: SyncClient, who: str, action: str, topic: TopicId) -> Json:
    """Show whether a principal or a group may do an action in a topic, and which grant decides.

    \b
    broker access check billing publish audit/logins
    """
    return client.ask(admin.decide(who, action, "/".join(topic)))
