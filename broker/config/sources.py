"""Read the configuration: defaults, then a TOML file, the environment, and flags.

The result has the source of each value, so that ``broker config`` can show it. Only this module turns text from the
environment and from flags into a key's type. Booleans, numbers and lists that it can't parse are errors that name
their source.

A variable that begins with BROKER_ and names no key is an error too, so that a setting without effect does not go
unnoticed. Two kinds are allowed. Some variables have other readers (``OTHER_VARIABLES``). And Kubernetes sets
variables for the Services beside a process: a Service named ``broker`` sets BROKER_SERVICE_HOST,
BROKER_PORT=tcp://10.0.0.9:8080, and more. These are allowed only as a set: host, port, and the address as a URL.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from broker.config.sections import Config, ConfigError, Key, iter_keys, value_of
from broker.moments import span_ms
from broker.small_files import read_bytes

DEFAULT = "default"
_PREFIX = "BROKER_"
_UNIT_OF_NAME = re.compile(r"_(s|ms)(?:_max)?$")
"""Keys with such names are spans of time; their text may have another unit: ``drain_s = "2m"``."""
_NONE = ("", "none")
_BOOLEANS = {"true": True, "false": False}
OTHER_VARIABLES = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        *("URL", "CONTEXT", "CONFIG", "TOKEN", "TOKEN_FILE"),  # Options of commands.
        *("TOPIC", "MESSAGE_ID", "MESSAGE_TIMESTAMP_MS"),  # For the commands that ``tail`` runs.
        *("SERVERS_DIR", "KILLS", "CUTS"),  # For tests.
    )
)
"""Variables with this prefix that are not keys, but have other readers."""
_OF_SERVICE = r"(SERVICE_(HOST|PORT(_\w+)?)|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
_SERVICE_HOST = "_SERVICE_HOST"
_SERVICE_URL = re.compile("(tcp|udp|sctp)://")


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A checked configuration and, by dotted key, the name of the source of its value."""

    config: Config
    origins: Mapping[str, str]

    def lines(self) -> Iterator[tuple[str, str, str]]:
        """Yield (dotted key, value as text, source) for every key."""
        for known in iter_keys():
            text = as_text(value_of(self.config, known.dotted))
            yield known.dotted, text, self.origins[known.dotted]


def load(
    *,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
) -> LoadedConfig:
    """Resolve the configuration.

    Args:
        file: a TOML file whose tables are the sections.
        environment: variables. Those named BROKER_SECTION__KEY are read; others that begin with BROKER_ must be
            known (see above).
        flags: texts by dotted key; None means that the flag was not given.

    Raises:
        ConfigError: a key is unknown, a value or file can't be read, or keys contradict each other.
    """
    keys = {known.dotted: known for known in iter_keys()}
    values: dict[str, Any] = {}
    origins = dict.fromkeys(keys, DEFAULT)
    sources = (
        _from_file(file, keys) if file is not None else (),
        _from_environment(environment or {}, keys),
        _from_flags(flags or {}, keys),
    )
    for source in sources:
        for dotted, value, origin in source:
            values[dotted] = value
            origins[dotted] = origin
    return LoadedConfig(config=_build(values), origins=MappingProxyType(origins))


def as_text(value: Any) -> str:
    """Return a value as the text of an environment variable or a flag."""
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ",".join(value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={part}" for name, part in value.items())
    return str(value).lower() if isinstance(value, bool) else str(value)


def parse(known: Key, text: str) -> Any:
    """Turn the text of a variable or a flag into the key's type. Raises ValueError."""
    wanted, optional = _plain_type(known.type)
    if optional and text.lower() in _NONE:
        return None
    if typing.get_origin(wanted) is tuple:
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if wanted is bool:
        if text.lower() not in _BOOLEANS:
            raise ValueError(f"{text!r} is not true or false")
        return _BOOLEANS[text.lower()]
    if wanted is Path and not text:
        raise ValueError("it names no folder")  # Python takes it for the present one.
    if wanted not in (str, int, float, Path) and not _is_enum(wanted):
        return _parse_pairs(text)
    try:
        return wanted(text)
    except ValueError:
        span = _span(known, text, wanted)
        if span is None:
            raise ValueError(f"{text!r} is not {_description(wanted)}") from None
        return span


def _span(known: Key, text: str, wanted: type) -> float | None:
    """Return a span of time with a unit, in the unit that ends the key's name; None if it is none, or not in whole units."""
    unit = _UNIT_OF_NAME.search(known.name)
    if unit is None or wanted not in (int, float):
        return None
    try:
        value = span_ms(text) / (1000 if unit[1] == "s" else 1)
    except ValueError:
        return None
    if wanted is float:
        return value
    return int(value) if value == int(value) else None


def _plain_type(annotation: Any) -> tuple[Any, bool]:
    """Return the type without ``| None``, and whether it allows None."""
    if not isinstance(annotation, types.UnionType):
        return annotation, False
    (wanted,) = (part for part in typing.get_args(annotation) if part is not type(None))
    return wanted, True


def _description(wanted: Any) -> str:
    if _is_enum(wanted):
        return f"one of {', '.join(wanted)}"
    return "a whole number" if wanted is int else "a number"


def _is_enum(wanted: Any) -> bool:
    return isinstance(wanted, type) and issubclass(wanted, enum.Enum)


def _parse_pairs(text: str) -> Mapping[str, str]:
    pairs = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = part.partition("=")
        if not equals:
            raise ValueError(f"{part!r} is not name=value")
        pairs[name.strip()] = value.strip()
    return MappingProxyType(pairs)


def _from_file(file: Path, keys: Mapping[str, Key]) -> Iterator[tuple[str, Any, str]]:
    try:
        document = tomllib.loads(read_bytes(file).decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not text in UTF-8: see byte {error.start}") from error
    except OSError as error:
        raise ConfigError(f"{file} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # Also a number of thousands of digits.
        raise ConfigError(f"{file} is not TOML: {error}") from error
    for section, table in document.items():
        if not isinstance(table, dict):
            raise _unknown(section, keys, str(file))
        for name in table:
            known = _find(f"{section}.{name}", keys, str(file))
            yield known.dotted, _from_toml(known, table[name], str(file)), f"file {file}"


def _from_toml(known: Key, value: Any, source: str) -> Any:
    wanted, _ = _plain_type(known.type)
    if isinstance(value, str):
        return _parse_named(known, value, source)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if typing.get_origin(wanted) is tuple and _is_list_of_text(value):
        return tuple(value)
    if _is_mapping(wanted) and isinstance(value, dict):
        return MappingProxyType({name: as_text(part) for name, part in value.items()})
    if wanted in (bool, int, float) and type(value) is wanted:
        return value
    raise ConfigError(f"{source}: {known.dotted} = {json.dumps(value, default=str)}: wrong type")


def _is_list_of_text(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(part, str) for part in value)


def _is_mapping(wanted: Any) -> bool:
    return typing.get_origin(wanted) is not None and typing.get_origin(wanted) is not tuple


def _from_environment(
    environment: Mapping[str, str], keys: Mapping[str, Key]
) -> Iterator[tuple[str, Any, str]]:
    for variable in _broker_variables(environment):
        dotted = variable.removeprefix(_PREFIX).lower().replace("__", ".", 1)
        if "__" not in variable:
            raise _unknown_variable(variable, keys)
        known = _find(dotted, keys, f"environment variable {variable}")
        value = _parse_named(known, environment[variable], variable)
        yield dotted, value, f"environment {variable}"


def check_environment(environment: Mapping[str, str]) -> None:
    """Refuse unknown variables and wrong values, for commands that read no keys from the environment.

    Raises:
        ConfigError: a variable that begins with BROKER_ is unknown, or its value can't be read.
    """
    for _ in _from_environment(environment, {known.dotted: known for known in iter_keys()}):
        pass


def _broker_variables(environment: Mapping[str, str]) -> list[str]:
    """Return the variables with the prefix, except those with another reader and those of Kubernetes."""
    named = [name for name in environment if name.startswith(_PREFIX)]
    services = [
        service
        for service in (
            name.removesuffix(_SERVICE_HOST) for name in named if name.endswith(_SERVICE_HOST)
        )
        if f"{service}_SERVICE_PORT" in environment
        and _SERVICE_URL.match(environment.get(f"{service}_PORT", ""))
    ]
    of_service = re.compile(f"({'|'.join(map(re.escape, services))})_{_OF_SERVICE}")
    return sorted(
        name for name in named if name not in OTHER_VARIABLES and not of_service.fullmatch(name)
    )


def _unknown_variable(variable: str, keys: Mapping[str, Key]) -> ConfigError:
    names = {other.removeprefix(_PREFIX): other for other in OTHER_VARIABLES}
    for known in keys.values():
        names |= {
            known.name.upper(): known.variable,
            f"{known.section}_{known.name}".upper(): known.variable,
        }
    near = difflib.get_close_matches(variable.removeprefix(_PREFIX), names, n=1)
    meant = f"did you mean {names[near[0]]}?" if near else "`broker config` lists all keys."
    return ConfigError(
        f"environment variable {variable}: there is no such key; {meant} "
        "Variables that begin with BROKER_ are settings of the broker. Correct the variable, or unset it."
    )


def _from_flags(
    flags: Mapping[str, str | None], keys: Mapping[str, Key]
) -> Iterator[tuple[str, Any, str]]:
    for dotted, text in flags.items():
        known = _find(dotted, keys, "flag")
        if text is not None:
            yield dotted, _parse_named(known, text, known.flag), f"flag {known.flag}"


def _find(dotted: str, keys: Mapping[str, Key], source: str) -> Key:
    try:
        return keys[dotted]
    except KeyError:
        raise _unknown(dotted, keys, source) from None


def _unknown(dotted: str, keys: Mapping[str, Key], source: str) -> ConfigError:
    name = dotted.rpartition(".")[2]
    names = {known.name: known.dotted for known in keys.values()}
    near = difflib.get_close_matches(dotted, keys, n=1) or [
        names[match] for match in difflib.get_close_matches(name, names, n=1, cutoff=0.0)
    ]
    return ConfigError(f"{source}: there is no key {dotted!r}; the nearest is {near[0]!r}")


def _parse_named(known: Key, text: str, source: str) -> Any:
    try:
        return parse(known, text)
    except ValueError as error:
        raise ConfigError(f"{source}: {known.dotted} = {text!r}: {error}") from error


def _build(values: Mapping[str, Any]) -> Config:
    """Build the configuration from the values that differ from the defaults. Raises ConfigError."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, value in values.items():
        section, _, name = dotted.partition(".")
        sections.setdefault(section, {})[name] = value
    hints = typing.get_type_hints(Config)
    return Config(**{section: hints[section](**part) for section, part in sections.items()})
