"""Contexts: names for brokers, kept in one file of the user.

A context has a broker's address, the certificates to trust, the path of the file with the caller's token (never the
token), and the namespace of topics that are named without one. The file is ``contexts.json`` in the folder ``broker`` of the user's configuration
(``$XDG_CONFIG_HOME``, or ``~/.config``)::

    {"current": "prod", "contexts": {"prod": {"url": "https://…", "ca_file": "…", "namespace": "audit"}}}

A command writes the file whole and renames it into place; only its owner can read it. A command uses the
first of these addresses that is given::

    --url  >  --context  >  BROKER_URL  >  BROKER_CONTEXT  >  the current context  >  the default

The command line comes before the environment, and the environment before the file.
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import click

from broker import small_files as files
from broker.config.sections import ConfigError
from broker.errors import BadName
from broker.http.answer import Address
from broker.model import TopicId, check_namespace

URL_DEFAULT: Final = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Context:
    """A broker as a context describes it; a field that is not set is empty."""

    url: str
    ca_file: str = ""
    namespace: str = ""
    token_file: str = ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and the one in use; ``current`` is empty if none is in use."""

    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)

    def named(self, name: str, asked_by: str = "") -> Context:
        """Return a context. Raises ConfigError; its message names ``asked_by``, the source of the name."""
        found = self.contexts.get(name)
        if found is not None:
            return found
        near = difflib.get_close_matches(name, self.contexts, n=1)
        hint = f"; the nearest is {near[0]!r}" if near else ""
        source = f"{asked_by}: " if asked_by else ""
        raise ConfigError(
            f"{source}there is no context {name!r}{hint}. See all with: broker context list"
        )

    def added(self, name: str, context: Context) -> Contexts:
        """Return these with one more; a context of the same name is replaced."""
        return replace(self, contexts={**self.contexts, name: context})

    def removed(self, name: str) -> Contexts:
        """Return these without one; if it was in use, no context is in use afterwards."""
        rest = {other: context for other, context in self.contexts.items() if other != name}
        return Contexts("" if self.current == name else self.current, rest)


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """The broker that a command speaks to, and the source of its address, for errors."""

    url: str
    source: str
    ca_file: str = ""
    namespace: str = ""
    context: str = ""
    token_file: str = ""


def check_urls(text: str) -> str:
    """Return ``text``, addresses with commas between them. Raises ValueError if one is not valid."""
    for one in text.split(","):
        try:
            Address.of(one.strip().rstrip("/"))
        except ValueError:
            if "@" in one:
                raise  # It may have a password, and the error has advice.
            shown = one.strip().partition("?")[0]  # A query may have a token.
            raise ValueError(f"{shown!r} is not http://HOST:PORT") from None
    return text


def path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file of contexts. The file may not exist.

    Raises:
        ConfigError: the environment names neither a home nor a folder of configurations.
    """
    folder, home = environment.get("XDG_CONFIG_HOME", ""), environment.get("HOME", "")
    # The specification of XDG_CONFIG_HOME says: ignore a relative path.
    if Path(folder).is_absolute():
        return Path(folder) / "broker" / "contexts.json"
    if not home:
        raise ConfigError("There is no folder for contexts: set HOME or XDG_CONFIG_HOME.")
    return Path(home) / ".config" / "broker" / "contexts.json"


def known(environment: Mapping[str, str] = os.environ) -> Contexts:
    """Return the user's contexts; none if the user has no folder for them. Raises ConfigError, OSError."""
    if not (environment.get("XDG_CONFIG_HOME") or environment.get("HOME")):
        return Contexts()
    return load(path(environment))


def load(file: Path) -> Contexts:
    """Read the file of contexts; none of them if it does not exist. Raises ConfigError, OSError."""
    try:
        return _parsed(files.read(file))
    except FileNotFoundError:
        return Contexts()
    except (ValueError, TypeError, KeyError, AttributeError, BadName) as error:
        raise ConfigError(
            f"{file} is not a file of contexts: {error}. Correct it, or remove it to start again."
        ) from error


def _parsed(value: Any) -> Contexts:
    contexts = {name: Context(**fields) for name, fields in value["contexts"].items()}
    for context in contexts.values():
        check_urls(context.url)
        if context.namespace:
            check_namespace(context.namespace)
    current = value.get("current", "")
    if not isinstance(current, str):
        raise TypeError("current is not text")
    return Contexts(current, contexts)


def save(file: Path, contexts: Contexts) -> None:
    """Write the file of contexts whole, with mode 0600; a reader sees the old one or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # Each command has a temporary file of its own, so two commands at once can't mix their text. Its mode
    # is 0600.
    number, name = tempfile.mkstemp(prefix=".contexts-", dir=file.parent)
    os.close(number)
    new = Path(name)
    try:
        files.write_beside(file, new, json.dumps(asdict(contexts), indent=2, ensure_ascii=False))
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """The broker that the command line and the environment name; a field that is not set is empty."""

    url: str = ""
    context: str = ""
    url_of_environment: str = ""
    context_of_environment: str = ""


def target(asked: BrokerOptions, contexts: Contexts) -> BrokerTarget:
    """Return the broker to speak to. Raises ConfigError if a named context does not exist."""
    if asked.url:
        return BrokerTarget(asked.url, "--url")
    if asked.context:
        return _of_context(asked.context, "--context", contexts)
    if asked.url_of_environment:
        return BrokerTarget(asked.url_of_environment, "BROKER_URL")
    if asked.context_of_environment:
        return _of_context(asked.context_of_environment, "BROKER_CONTEXT", contexts)
    if contexts.current:
        return _of_context(contexts.current, "the current context", contexts)
    return BrokerTarget(URL_DEFAULT, "the default")


def _of_context(name: str, asked_by: str, contexts: Contexts) -> BrokerTarget:
    context = contexts.named(name, asked_by)
    source = f"context {name!r}"
    return BrokerTarget(
        context.url, source, context.ca_file, context.namespace, name, context.token_file
    )


@dataclass(slots=True)
class GivenOptions:
    """The values of one run of the command line, for errors and completion; click's callbacks fill them in.

    Attributes:
        as_json: whether the output is JSON.
        command: the command's words, such as ``topics create``.
        topics: the topics that were named.
        target: the command's broker; None before its address is known, and for commands without a broker.
        typed_context: the value of ``--context``, if it was typed.
        typed_url: the value of ``--url``, if it was typed.
        typed_token_file: the value of ``--token-file``, if it was typed.
    """

    as_json: bool = False
    command: str = ""
    topics: list[TopicId] = field(default_factory=list)
    target: BrokerTarget | None = None
    typed_context: str = ""
    typed_url: str = ""
    typed_token_file: str = ""

    @property
    def topic_name(self) -> str:
        """The topic's name if exactly one topic was named, else the placeholder ``NS/TOPIC``."""
        names = set(map("/".join, self.topics))
        return names.pop() if len(names) == 1 else "NS/TOPIC"


def given(context: click.Context | None = None) -> GivenOptions:
    """Return the values given so far; outside of a command they are empty."""
    context = context or click.get_current_context(silent=True)
    return GivenOptions() if context is None else context.find_root().ensure_object(GivenOptions)
