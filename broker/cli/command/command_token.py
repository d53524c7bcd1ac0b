"""The token of a command: from a file, or from the environment, never from its arguments, which every user of the machine sees.

The first one that is given decides::

    --token-file  >  the file of the context  >  BROKER_TOKEN_FILE or BROKER_TOKEN
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from broker.cli.command.contexts import GivenOptions
from broker.config.sections import ConfigError
from broker.secret import Secret, read_secret


class TokenSource(NamedTuple):
    """A token, or the file that has it. Both are empty if the command has no token."""

    token: Secret = Secret()
    token_file: str = ""


def token_of(given: GivenOptions, environment: Mapping[str, str] = os.environ) -> TokenSource:
    """Return the token of a command. Raises ConfigError: its file can't be used, or there are two tokens."""
    file, source = given.typed_token_file, "--token-file"
    if not file and given.target is not None and given.target.token_file:
        file, source = given.target.token_file, given.target.source
    if not file:
        file, token = environment.get("BROKER_TOKEN_FILE", ""), environment.get("BROKER_TOKEN", "")
        source = "BROKER_TOKEN_FILE"
        if file and token:
            raise ConfigError("Set BROKER_TOKEN_FILE or BROKER_TOKEN, not both.")
        if token:
            if not token.isascii() or not token.isprintable() or " " in token:
                raise ConfigError("BROKER_TOKEN: a token has visible ASCII characters alone.")
            return TokenSource(Secret(token))
    if file:
        try:
            read_secret(file)
        except ValueError as error:
            raise ConfigError(f"{source}: {error}") from error
    return TokenSource(token_file=file)
