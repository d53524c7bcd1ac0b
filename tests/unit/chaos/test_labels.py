from hypothesis import given
from hypothesis import strategies as st

from chaos.labels import SIZES, collapse, expand


@given(st.text(st.characters(exclude_characters="|", codec="utf-8"), max_size=20))
def test_a_label_stands_for_a_payload(label: str) -> None:
    assert collapse(expand(label)) == label


def test_a_changed_payload_has_no_label() -> None:
    payload = bytearray(expand("m:1:1"))
    payload[-1] ^= 1
    assert collapse(bytes(payload)).startswith("damaged:")


def test_labels_stand_for_payloads_of_many_sizes() -> None:
    sizes = {len(expand(f"m:{number}")) for number in range(1000)}
    assert len(sizes) >= len(set(SIZES))
    assert max(sizes) > 70_000
