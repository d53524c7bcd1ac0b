"""Options are checked when they are given: at the clients, and at the options of reads and subscribers."""

from dataclasses import fields
from typing import get_type_hints

import pytest

from broker.client import (
    Client,
    Settings,
    SubscriberOptions,
    SyncClient,
    TailOptions,
)
from broker.client.subscriber_factory import SingleOptions
from broker.client.values import SettingOptions
from tests.kit import refused_calls

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("make", [Client, SyncClient])
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"idempotant": True}, "There is no option idempotant. Did you mean idempotent?"),
        ({"deadline": 10}, "Did you mean deadline_s?"),
        ({"zzz": 10}, "There are url, follow_leaders,"),
        ({"deadline_s": "10"}, r"deadline_s is a number, not '10' \(str\)"),
        ({"deadline_s": True}, "deadline_s is a number, not True"),
        ({"batch_messages_max": 1.5}, "batch_messages_max is a whole number, not 1.5"),
        ({"idempotent": 1}, "idempotent is bool, not 1"),
        ({"headers": {"a": "b"}}, "headers is "),
        ({"headers": (("a", 1),)}, "headers is "),
        ({"later_on_full": 7}, "later_on_full is "),
        ({"namespace": None}, "namespace is str, not None"),
    ],
)
async def test_a_client_is_not_made_with_a_wrong_option(make, options, told):
    with pytest.raises(TypeError, match=told):
        make(URL, **options)


@pytest.mark.parametrize("make", [Client, SyncClient])
@pytest.mark.parametrize("url", [b"http://127.0.0.1:1", [b"http://127.0.0.1:1"], 5])
async def test_a_client_is_not_made_with_an_address_of_a_wrong_type(make, url):
    with pytest.raises(TypeError, match="url is str, not "):
        make(url)


@pytest.mark.parametrize("make", [Client, SyncClient])
@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("127.0.0.1:8080", {}),
        (URL, {"deadline_s": 0}),
        (URL, {"deadline_s": float("nan")}),
        (URL, {"later_on_full": "wiat"}),
        (URL, {"headers": (("a", "b\r\nc: d"),)}),
    ],
)
async def test_a_client_is_not_made_with_a_wrong_value(make, url, options):
    with pytest.raises(ValueError, match=r".") as caught:
        make(url, **options)
    assert not isinstance(caught.value, TypeError)


@pytest.mark.parametrize("kind", [TailOptions, SubscriberOptions])
def test_options_of_reads_have_types(kind):
    with pytest.raises(TypeError, match="wait_s is a number"):
        kind(wait_s="1")
    assert kind(wait_s=1).wait_s == 1


async def test_a_subscriber_names_the_nearest_option():
    client = Client(URL)
    with pytest.raises(TypeError, match="Did you mean batch_messages_max"):
        client.subscriber("a/b", "c", refused_calls.by_message, batch_message_max=5)
    await client.close()


@pytest.mark.parametrize(
    ("kind", "named", "apart"),
    [
        (Settings, SettingOptions, {"url"}),
        (SubscriberOptions, SingleOptions, {"batch_messages_max"}),
    ],
)
def test_calls_take_the_options_that_the_class_declares(kind, named, apart):
    declared = get_type_hints(kind)
    assert {f.name: declared[f.name] for f in fields(kind) if f.name not in apart} == (
        get_type_hints(named)
    )
