import json
import os
import stat
from dataclasses import replace
from pathlib import Path

import click
import pytest

from broker.cli import app
from broker.cli.command import contexts
from broker.cli.command.broker_calls import BrokerCall
from broker.cli.command.contexts import BrokerOptions, Context, Contexts, GivenOptions, target
from broker.config.sections import ConfigError
from tests.unit.cli.running import run

CERTIFICATE = str(Path(__file__).parents[2] / "data" / "tls" / "cert.pem")
KNOWN = Contexts(
    "here", {"here": Context("http://a:1"), "there": Context("http://b:1", "ca", "ns")}
)


@pytest.mark.parametrize(
    ("asked", "url", "source"),
    [
        (BrokerOptions(), "http://a:1", "context 'here'"),
        (BrokerOptions(context_of_environment="there"), "http://b:1", "context 'there'"),
        (BrokerOptions(url_of_environment="u", context_of_environment="there"), "u", "BROKER_URL"),
        (BrokerOptions(context="there", url_of_environment="u"), "http://b:1", "context 'there'"),
        (BrokerOptions(url="typed", url_of_environment="u"), "typed", "--url"),
    ],
)
def test_options_win_over_the_environment_and_the_environment_over_the_file(asked, url, source):
    found = target(asked, KNOWN)
    assert (found.url, found.source) == (url, source)


def test_without_any_context_the_address_is_the_default():
    assert target(BrokerOptions(), Contexts()) == contexts.BrokerTarget(
        contexts.URL_DEFAULT, "the default"
    )


def test_a_context_gives_its_own_settings_and_a_typed_address_none():
    found = target(BrokerOptions(context="there"), KNOWN)
    assert (found.ca_file, found.namespace, found.context) == ("ca", "ns", "there")
    assert target(BrokerOptions(url="http://b:1"), KNOWN) == contexts.BrokerTarget(
        "http://b:1", "--url"
    )


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (
            BrokerOptions(context="ther"),
            "--context: there is no context 'ther'; the nearest is 'there'",
        ),
        (BrokerOptions(context_of_environment="x"), "BROKER_CONTEXT: there is no context 'x'"),
    ],
)
def test_an_unknown_context_is_reported_with_the_source_of_its_name(asked, said):
    with pytest.raises(ConfigError) as refused:
        target(asked, KNOWN)
    assert said in str(refused.value)


def test_the_file_is_private_and_replaced_atomically(tmp_path, monkeypatch):
    file = tmp_path / "broker" / "contexts.json"
    contexts.save(file, KNOWN)
    assert contexts.load(file) == KNOWN
    assert stat.S_IMODE(file.stat().st_mode) == 0o600

    def fails(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="No space"):
        contexts.save(file, Contexts())
    assert contexts.load(file) == KNOWN
    assert [one.name for one in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"contexts": {"a": {"url": "no address"}}}',
        b'{"contexts": {"a": {"url": "http://a:1", "namespace": "a b"}}}',
        b'{"contexts": {"a": {"uri": "http://a:1"}}}',
        b'{"contexts": {}, "current": 1}',
    ],
)
def test_a_damaged_file_is_named_with_what_to_do(tmp_path, content):
    file = tmp_path / "contexts.json"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as refused:
        contexts.load(file)
    assert str(file) in str(refused.value)
    assert "emove it" in str(refused.value)


def test_where_there_is_no_home_there_are_no_contexts():
    assert contexts.known({}) == Contexts()
    with pytest.raises(ConfigError, match="XDG_CONFIG_HOME"):
        contexts.path({})
    assert contexts.path({"HOME": "/h", "XDG_CONFIG_HOME": "relative"}).is_relative_to("/h/.config")


def test_contexts_are_added_used_listed_shown_and_removed(capsys, tmp_path):
    words = ("context", "add", "prod", "--url", "http://127.0.0.1:1", "--namespace", "audit")
    assert run(capsys, *words) == (0, "", "")
    assert (tmp_path / "config" / "broker" / "contexts.json").exists()
    code, _, err = run(capsys, *words)
    assert code == 1
    assert "broker context show prod" in err
    assert run(capsys, *words, "--replace")[0] == 0
    assert run(capsys, "context", "show")[0] == 1
    assert json.loads(run(capsys, "context", "list", "--json")[1])[0]["current"] is False
    assert run(capsys, "context", "use", "prod")[0] == 0
    shown = json.loads(run(capsys, "context", "show", "--json")[1])
    assert shown == {
        "name": "prod",
        "current": True,
        "url": "http://127.0.0.1:1",
        "ca_file": None,
        "token_file": None,
        "namespace": "audit",
    }
    assert "*  prod" in run(capsys, "context", "list")[1]
    assert "audit" in run(capsys, "context", "show", "prod")[1]
    assert run(capsys, "context", "remove", "prod")[0] == 0
    assert json.loads(run(capsys, "context", "list", "--json")[1]) == []


@pytest.mark.parametrize(
    "words",
    [
        ("add", "a b", "--url", "http://a:1"),
        ("add", "a", "--url", "a:1"),
        ("add", "a", "--url", "http://a:1", "--namespace", "a/b"),
        ("add", "a", "--url", "http://a:1", "--ca-file", "there-is-none"),
        ("use", "a"),
        ("remove", "a"),
    ],
)
def test_an_invalid_context_is_2(capsys, words, tmp_path):
    assert run(capsys, "context", *words)[0] == 2
    assert not (tmp_path / "config").exists()


def test_a_context_names_the_broker_the_namespace_and_itself_in_errors(capsys):
    run(capsys, "context", "add", "prod", "--url", "http://127.0.0.1:1", "--namespace", "audit")
    run(capsys, "context", "use", "prod")
    code, _, err = run(capsys, "topics", "show", "logins", "--deadline", "0.1")
    assert code == 4
    assert "http://127.0.0.1:1 (context 'prod'); see: broker context show prod" in err
    code, _, err = run(capsys, "topics", "show", "logins", "--url", "http://127.0.0.1:2")
    assert code == 2
    assert "no namespace" in err
    code, _, err = run(capsys, "stats", "logins", "--url", "http://a:1", "--context", "prod")
    assert code == 2
    assert "not both" in err


def test_the_certificates_of_a_context_are_those_of_its_client():
    found = replace(target(BrokerOptions(context="there"), KNOWN), ca_file=CERTIFICATE)
    with click.Context(app.cli, obj=GivenOptions(target=found)):
        assert BrokerCall(found.url, 5.0, False).settings.ca_file == CERTIFICATE
        assert BrokerCall("http://other:1", 5.0, False).settings.ca_file == ""
    assert BrokerCall(found.url, 5.0, False).settings.ca_file == ""


@pytest.mark.parametrize("content", [b"[" * 100_000, b"9" * 5_000, b"\xff\xfe", b"null", b"[]"])
def test_a_damaged_file_of_contexts_is_named(capsys, content):
    run(capsys, "context", "add", "one", "--url", "http://h:1")
    contexts.path().write_bytes(content)
    code, _, err = run(capsys, "context", "list")
    assert (code, err.count("\n")) == (2, 1)
    assert f"broker: {contexts.path()} is not a file of contexts: " in err


def test_certificates_that_can_not_be_read_are_named(capsys, tmp_path):
    """The client sent no request, so the outcome is known."""
    file = tmp_path / "ca.pem"
    file.write_text("no certificate")
    given = ("--url", "https://127.0.0.1:1", "--ca-file", str(file))
    assert run(capsys, "context", "add", "c", *given)[0] == 0
    for reason in "no certificate", "No such file":
        code, _, err = run(capsys, "publish", "a/b", "x", "--context", "c")
        assert code == 2
        told = f"broker: context 'c': '{file}' can't be read as a PEM file with certificates: "
        assert err.startswith(told)
        assert reason in err
        file.unlink(missing_ok=True)
