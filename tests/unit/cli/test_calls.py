import pytest

from broker.cli.command.broker_calls import AGAIN_S, Teller, trouble_text
from broker.cli.command.contexts import BrokerTarget
from broker.client import Overloaded, Trouble
from broker.client.outcomes import never_sent

URL = "http://127.0.0.1:8080"
REFUSED = never_sent(OSError(111, "Connect call failed ('127.0.0.1', 8080)"))


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_a_trouble_names_the_address_the_reason_and_the_time(capsys):
    Teller(URL, None)(Trouble(REFUSED, 29.9))
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == (
        f"broker: can't reach {URL}: connection refused (127.0.0.1:8080); "
        "retrying for 30 s, Ctrl-C ends\n"
    )


@pytest.mark.parametrize(
    ("trouble", "text"),
    [
        (Trouble(None, 29.0), f"still waiting for {URL}"),
        (Trouble(Overloaded("Too much at once."), 29.0), f"{URL}: Too much at once"),
    ],
)
def test_each_trouble_has_a_text(trouble, text):
    assert trouble_text(URL, trouble) == text


def test_the_same_trouble_is_repeated_only_after_a_while(capsys):
    clock = Clock()
    teller = Teller(URL, BrokerTarget(URL, "context 'prod'", context="prod"), now=clock)
    for _ in range(3):
        teller(Trouble(REFUSED, None))
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert f"{URL} (context 'prod')" in told
    assert "retrying until it works" in told
    teller(Trouble(Overloaded("busy"), None))
    assert "busy" in capsys.readouterr().err
    clock.now = AGAIN_S
    teller(Trouble(Overloaded("busy"), None))
    assert "busy" in capsys.readouterr().err


def test_a_last_trouble_and_json_output_print_no_text(capsys):
    Teller(URL, None)(Trouble(REFUSED, 0.5))
    Teller(URL, None, as_json=True)(Trouble(REFUSED, 30))
    assert capsys.readouterr().err == ""
