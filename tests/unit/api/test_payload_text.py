import base64

from hypothesis import given
from hypothesis import strategies as st

from broker.api.payload_text import shown


def test_text_is_text_and_the_rest_base64() -> None:
    assert shown("grüße\n".encode()) == ("text", "grüße\n", False)
    assert shown(b"") == ("text", "", False)
    assert shown(b"\xff\x00") == ("base64", "/wA=", False)


def test_a_cut_never_goes_through_a_character() -> None:
    assert shown("aä".encode(), 2) == ("text", "a", True)
    assert shown("aä".encode(), 3) == ("text", "aä", False)
    assert shown(b"\xe4\xb8", None) == ("base64", "5Lg=", False)


@given(st.binary(max_size=40), st.integers(1, 50))
def test_the_shown_text_is_a_prefix(payload: bytes, bytes_max: int) -> None:
    encoding, text, truncated = shown(payload, bytes_max)
    told = text.encode() if encoding == "text" else base64.b64decode(text)
    assert payload.startswith(told)
    assert truncated == (len(payload) > bytes_max)
    assert truncated or told == payload
