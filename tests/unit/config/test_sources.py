from pathlib import Path

import pytest

from broker.config.sections import ConfigError, LogFormat, iter_keys
from broker.config.sources import OTHER_VARIABLES, as_text, load, parse


def toml(folder: Path, text: str) -> Path:
    file = folder / "broker.toml"
    file.write_text(text)
    return file


def test_later_sources_override_earlier_ones_and_are_named(tmp_path: Path) -> None:
    file = toml(tmp_path, "[server]\nport = 1\nhost = 'a'\nheaders_max = 20\n")
    environment = {"BROKER_SERVER__PORT": "2", "BROKER_SERVER__HOST": "::1", "PATH": "/bin"}
    settings = load(file=file, environment=environment, flags={"server.port": "3"})
    server = settings.config.server
    assert (server.port, server.host, server.headers_max) == (3, "::1", 20)
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
    ("text", "message"),
    [
        ("[server]\nporrt = 1\n", "the nearest is 'server.port'"),
        ("port = 1\n", "the nearest is 'server.port'"),
        ("[server]\nport = 1.5\n", "wrong type"),
        ("[server]\nport = true\n", "wrong type"),
        ("[transactions]\ntransactions_reset_allowed = 1\n", "wrong type"),
        ("[transactions]\ntransactions_reset_allowed = 'yes'\n", "is not true or false"),
        ("[storage]\ndata_dir = ''\n", "storage.data_dir = '': it names no folder"),
        ("[server]\nport = 'x'\n", "server.port = 'x'"),
        ("[server\n", "broker.toml"),
    ],
)
def test_a_bad_file_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        load(file=toml(tmp_path, text))
    assert "broker.toml" in str(raised.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        load(file=tmp_path / "absent.toml")


def test_a_device_that_never_ends_is_no_configuration() -> None:
    """Its bytes were read until the memory was full."""
    with pytest.raises(
        ConfigError, match="/dev/zero is not TOML: it has more than 1,048,576 bytes"
    ):
        load(file=Path("/dev/zero"))


def test_a_file_gives_every_kind_of_value(tmp_path: Path) -> None:
    config = load(
        file=toml(
            tmp_path,
            "[topics]\ntopic_properties_default = {size = 60, owner = 'x', kept = true}\n"
            "[metrics]\nmetrics_topics = ['a/b', 'c/d']\n"
            "[sweep]\nsweep_interval_s = 5\n"
            "[storage]\ndata_dir = '/var/lib/broker'\n"
            "[limits]\npoll_messages_max = 7\n",
        )
    ).config
    assert dict(config.topics.topic_properties_default) == {
        "size": "60",
        "owner": "x",
        "kept": "true",
    }
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
def test_printed_values_can_be_read_back(key) -> None:
    assert parse(key, as_text(key.default)) == key.default


def test_a_pair_without_an_equals_sign_is_refused() -> None:
    with pytest.raises(ConfigError, match="not name=value"):
        load(flags={"topics.topic_properties_default": "ttl"})


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("BROKER_PORT", "BROKER_SERVER__PORT"),
        ("BROKER_SERVER_PORT", "BROKER_SERVER__PORT"),
        ("BROKER_DATA_DRI", "BROKER_STORAGE__DATA_DIR"),
        ("BROKER_ULR", "BROKER_URL"),
        ("BROKER_PORT_8080_TCP_ADDR", None),
        ("BROKER_SERVICE_HOST", None),
        ("BROKER_", None),
    ],
)
def test_a_variable_that_names_no_key_is_refused(variable: str, meant: str | None) -> None:
    with pytest.raises(ConfigError, match=f"environment variable {variable}:") as raised:
        load(environment={variable: "tcp://10.0.0.9:8080"})
    if meant is not None:
        assert f"did you mean {meant}?" in str(raised.value)


def test_variables_with_another_reader_are_ignored() -> None:
    others = dict.fromkeys([*OTHER_VARIABLES, "PATH", "BROKERS", "_BROKER_COMPLETE"], "x")
    assert load(environment=others) == load()


KUBERNETES = {
    "BROKER_SERVICE_HOST": "10.0.0.9",
    "BROKER_SERVICE_PORT": "8080",
    "BROKER_SERVICE_PORT_HTTP": "8080",
    "BROKER_PORT": "tcp://10.0.0.9:8080",
    "BROKER_PORT_8080_TCP": "tcp://10.0.0.9:8080",
    "BROKER_PORT_8080_TCP_PROTO": "tcp",
    "BROKER_PORT_8080_TCP_PORT": "8080",
    "BROKER_PORT_8080_TCP_ADDR": "10.0.0.9",
}
"""The variables of a process in Kubernetes beside a Service named ``broker``."""


@pytest.mark.parametrize("service", ["BROKER", "BROKER_HEADS", "BROKER__ODD"])
def test_variables_of_a_kubernetes_service_are_ignored(service: str) -> None:
    other = {name.replace("BROKER", service, 1): value for name, value in KUBERNETES.items()}
    settings = load(environment={**KUBERNETES, **other, "BROKER_SERVER__PORT": "2"})
    assert settings.config.server.port == 2


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"BROKER_PORT": "9000"}, "BROKER_PORT"),
        ({"BROKER_PROT": "9000"}, "BROKER_PROT"),
        ({"BROKER_PORT_TCP": "9000"}, "BROKER_PORT_TCP"),
        ({"BROKER_OTHER_SERVICE_PORT": "9000"}, "BROKER_OTHER_SERVICE_PORT"),
    ],
)
def test_other_variables_beside_those_of_kubernetes_are_checked(
    changes: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=f"environment variable {named}:"):
        load(environment={**KUBERNETES, **changes})


@pytest.mark.parametrize(("text", "value"), [("true", True), ("False", False)])
def test_a_truth_value_is_read_from_text(text, value) -> None:
    settings = load(environment={"BROKER_TRANSACTIONS__TRANSACTIONS_RESET_ALLOWED": text})
    assert settings.config.transactions.transactions_reset_allowed is value
