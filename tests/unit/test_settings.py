from pathlib import Path

import pytest

from broker.config import ConfigError, LogFormat, iter_keys
from broker.settings import as_text, load, parse


def toml(folder: Path, text: str) -> Path:
    file = folder / "broker.toml"
    file.write_text(text)
    return file


def test_later_sources_win_and_are_remembered(tmp_path: Path) -> None:
    file = toml(tmp_path, "[server]\nport = 1\nhost = 'a'\nheaders_max = 20\n")
    environment = {"BROKER_SERVER__PORT": "2", "BROKER_SERVER__HOST": "b", "PATH": "/bin"}
    settings = load(file=file, environment=environment, flags={"server.port": "3"})
    server = settings.config.server
    assert (server.port, server.host, server.headers_max) == (3, "b", 20)
    assert settings.origins["server.port"] == "flag --port"
    assert settings.origins["server.host"] == "environment BROKER_SERVER__HOST"
    assert settings.origins["server.headers_max"] == f"file {file}"
    assert settings.origins["server.drain_s"] == "default"


def test_lines_show_every_key() -> None:
    shown = {dotted: (text, origin) for dotted, text, origin in load().lines()}
    assert list(shown) == [key.dotted for key in iter_keys()]
    assert shown["limits.poll_messages_max"] == ("none", "default")


def test_a_flag_that_was_not_given_changes_nothing() -> None:
    settings = load(environment={"BROKER_SERVER__PORT": "2"}, flags={"server.port": None})
    assert settings.config.server.port == 2


@pytest.mark.parametrize(
    ("sources", "nearest"),
    [
        ({"flags": {"server.prot": "1"}}, "server.port"),
        ({"environment": {"BROKER_LIMIT__BODY_BYTE_MAX": "1"}}, "limits.body_bytes_max"),
    ],
)
def test_an_unknown_key_names_the_nearest(sources, nearest) -> None:
    with pytest.raises(ConfigError, match=f"the nearest is '{nearest}'"):
        load(**sources)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[server]\nporrt = 1\n", "the nearest is 'server.port'"),
        ("port = 1\n", "the nearest is 'server.port'"),
        ("[server]\nport = 1.5\n", "wrong type"),
        ("[server]\nport = true\n", "wrong type"),
        ("[server]\nport = 'x'\n", "server.port = 'x'"),
        ("[server\n", "broker.toml"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as raised:
        load(file=toml(tmp_path, text))
    assert "broker.toml" in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load(file=tmp_path / "absent.toml")


def test_a_file_gives_every_kind_of_value(tmp_path: Path) -> None:
    config = load(
        file=toml(
            tmp_path,
            "[topics]\ntopic_properties_default = {size = 60, owner = 'x'}\n"
            "[metrics]\nmetrics_topics = ['a/b', 'c/d']\n"
            "[sweep]\nsweep_interval_s = 5\n"
            "[storage]\ndata_dir = '/var/lib/broker'\n"
            "[limits]\npoll_messages_max = 7\n",
        )
    ).config
    assert dict(config.topics.topic_properties_default) == {"size": "60", "owner": "x"}
    assert config.metrics.metrics_topics == ("a/b", "c/d")
    assert config.sweep.sweep_interval_s == 5.0
    assert config.storage.data_dir == Path("/var/lib/broker")
    assert config.limits.poll_messages_max == 7


def test_text_gives_every_kind_of_value() -> None:
    config = load(
        flags={
            "topics.topic_properties_default": "size=60, owner=x",
            "metrics.metrics_topics": "a/b,c/d",
            "limits.poll_messages_max": "none",
            "logs.log_format": "json",
        }
    ).config
    assert dict(config.topics.topic_properties_default) == {"size": "60", "owner": "x"}
    assert config.metrics.metrics_topics == ("a/b", "c/d")
    assert config.limits.poll_messages_max is None
    assert config.logs.log_format is LogFormat.JSON


@pytest.mark.parametrize("key", list(iter_keys()), ids=lambda key: key.dotted)
def test_what_is_printed_can_be_read_back(key) -> None:
    assert parse(key, as_text(key.default)) == key.default


def test_text_that_is_no_boolean_is_refused() -> None:
    key = next(iter_keys())._replace(type=bool)
    assert parse(key, "Yes") is True
    assert parse(key, "0") is False
    with pytest.raises(ValueError, match="neither true nor false"):
        parse(key, "maybe")


def test_a_pair_without_an_equals_sign_is_refused() -> None:
    with pytest.raises(ConfigError, match="not name=value"):
        load(flags={"topics.topic_properties_default": "ttl"})
