import pytest

from broker.client import Settings

NUMBERS = [
    name
    for name, value in Settings.__dataclass_fields__.items()
    if isinstance(value.default, int | float) and not isinstance(value.default, bool)
]


def test_addresses_are_one_or_several():
    assert Settings(url="http://a:1/").urls == ("http://a:1",)
    assert Settings().changed(["http://a:1", "http://b:2/"], {}).urls == (
        "http://a:1",
        "http://b:2",
    )
    assert Settings(url="http://a:1, http://b:2").urls == ("http://a:1", "http://b:2")


def test_single_settings_are_changed_by_name():
    settings = Settings(namespace="ns1").changed(None, {"deadline_s": 5})
    assert (settings.namespace, settings.deadline_s) == ("ns1", 5)
    with pytest.raises(TypeError, match="deadlin"):
        settings.changed(None, {"deadlin_s": 5})


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, float("inf"), float("nan")])
def test_a_number_that_makes_no_sense_is_refused(name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        Settings(**{name: value})


def test_which_settings_may_be_zero():
    assert Settings(retry_delay_min_s=0, retry_delay_max_s=0, idle_s_max=0.0).idle_s_max == 0
    for name in ("deadline_s", "connections_per_topic", "batch_messages_max", "later_messages_max"):
        with pytest.raises(ValueError, match=name):
            Settings(**{name: 0})


def test_later_on_full_is_one_of_three_words():
    for choice in ("wait", "drop", "raise"):
        assert Settings(later_on_full=choice).later_on_full == choice
    with pytest.raises(ValueError, match="one of wait, drop, raise, not 'block'"):
        Settings(later_on_full="block")
