from dataclasses import replace

from chaos.promises import PROMISES, promised


def test_availability_is_promised_if_a_time_is_given() -> None:
    assert promised(2.5, 1) == replace(PROMISES, unavailable_ms=2500, healing_ms=1000)
    assert promised(0, 20) == PROMISES
    assert "unavailable" in PROMISES.unjudged
    assert "unavailable" not in promised(2.5, 1).unjudged
