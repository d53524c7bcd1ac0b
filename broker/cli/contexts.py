"""Contexts: names for brokers, kept in one file of the user's.

A context is an address with what belongs to it: the certificates that it is trusted by, and the namespace of
topics that are named without one. The file is ``contexts.json`` in the folder ``broker`` of the user's
configuration (``$XDG_CONFIG_HOME``, or ``~/.config``)::

    {"current": "prod", "contexts": {"prod": {"url": "https://…", "ca_file": "…", "namespace": "audit"}}}

It is written whole and put in place at once, readable by its owner alone. Which address a command uses::

    --url  >  --context  >  BROKER_URL  >  BROKER_CONTEXT  >  the current context  >  the default

What was typed comes before what the environment says, and that before what a file says.
"""

from __future__ import annotations

import difflib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from broker.config.sections import ConfigError
from broker.errors import BadName
from broker.http.address import Address
from broker.model import check_namespace

URL_DEFAULT: Final = "http://127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class Context:
    """A broker as a context names it; empty text where it says nothing."""

    url: str
    ca_file: str = ""
    namespace: str = ""


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and which one is in use; ``current`` is empty if none is."""

    current: str = ""
    contexts: Mapping[str, Context] = field(default_factory=dict)

    def named(self, name: str, asked_by: str = "") -> Context:
        """Return a context. Raises ConfigError, which says where its name came from if that is given."""
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
        """Return these with one more, or another of that name."""
        return replace(self, contexts={**self.contexts, name: context})

    def removed(self, name: str) -> Contexts:
        """Return these without one; if it was in use, none is."""
        rest = {other: context for other, context in self.contexts.items() if other != name}
        return Contexts("" if self.current == name else self.current, rest)


@dataclass(frozen=True, slots=True)
class BrokerTarget:
    """The broker that a command speaks to, and where its address came from, for errors."""

    url: str
    source: str
    ca_file: str = ""
    namespace: str = ""
    context: str = ""


def check_urls(text: str) -> str:
    """Return addresses with commas between them. Raises ValueError if one is none."""
    for one in text.split(","):
        try:
            Address.of(one.strip().rstrip("/"))
        except ValueError as error:
            raise ValueError(f"{one.strip()!r} is not http://HOST:PORT") from error
    return text


def path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where the file of contexts is, whether or not it exists.

    Raises:
        ConfigError: the environment names neither a home nor a folder of configurations.
    """
    folder, home = environment.get("XDG_CONFIG_HOME", ""), environment.get("HOME", "")
    # What is not absolute is to be ignored, by the specification of XDG_CONFIG_HOME.
    if Path(folder).is_absolute():
        return Path(folder) / "broker" / "contexts.json"
    if not home:
        raise ConfigError("Contexts need a place: set HOME or XDG_CONFIG_HOME.")
    return Path(home) / ".config" / "broker" / "contexts.json"


def known(environment: Mapping[str, str] = os.environ) -> Contexts:
    """Return the user's contexts; none where there is no place for them. Raises ConfigError, OSError."""
    if not (environment.get("XDG_CONFIG_HOME") or environment.get("HOME")):
        return Contexts()
    return load(path(environment))


def load(file: Path) -> Contexts:
    """Read the file of contexts; none of them if it does not exist. Raises ConfigError, OSError."""
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Contexts()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is no text: {error}. Remove it to begin anew.") from error
    try:
        return _parsed(json.loads(text))
    except (ValueError, TypeError, KeyError, AttributeError, BadName) as error:
        raise ConfigError(
            f"{file} is not as broker context writes it: {error}. Mend it, or remove it to begin anew."
        ) from error


def _parsed(told: Mapping[str, Mapping[str, Mapping[str, str]]]) -> Contexts:
    contexts = {name: Context(**fields) for name, fields in told["contexts"].items()}
    for context in contexts.values():
        check_urls(context.url)
        if context.namespace:
            check_namespace(context.namespace)
    current = told.get("current", "")
    if not isinstance(current, str):
        raise TypeError("current is no text")
    return Contexts(current, contexts)


def save(file: Path, contexts: Contexts) -> None:
    """Write the file of contexts whole, with mode 0600; a reader sees the old one or the new one."""
    file.parent.mkdir(parents=True, exist_ok=True)
    # A temporary file of its own, so that two commands at once can't mix theirs; its mode is 0600.
    number, name = tempfile.mkstemp(prefix=".contexts-", dir=file.parent)
    new = Path(name)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as out:
            json.dump(asdict(contexts), out, indent=2, ensure_ascii=False)
            out.write("\n")
            out.flush()
            os.fsync(out.fileno())
        new.replace(file)
    except BaseException:
        new.unlink(missing_ok=True)
        raise


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """What was typed, and what the environment says, of a broker; empty where nothing was said."""

    url: str = ""
    context: str = ""
    url_of_environment: str = ""
    context_of_environment: str = ""


def target(asked: BrokerOptions, contexts: Contexts) -> BrokerTarget:
    """Return the broker to speak to. Raises ConfigError if a context is named that there is not."""
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
    return BrokerTarget(context.url, source, context.ca_file, context.namespace, name)
