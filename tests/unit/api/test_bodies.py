import pytest

from broker.api.bodies import BodyType, body_type
from broker.errors import BadRequest


@pytest.mark.parametrize(
    ("sent", "kind"),
    [
        ("avro/binary", BodyType.AVRO),
        ("application/json", BodyType.JSON),
        ("avro/json", BodyType.AVRO_JSON),
        ("Avro/JSON; charset=utf-8", BodyType.AVRO_JSON),
        ("Application/JSON; charset=utf-8", BodyType.JSON),
        ("text/plain", BodyType.RAW),
        ("text/plain;charset=latin-1", BodyType.RAW),
        ("application/octet-stream", BodyType.RAW),
    ],
)
def test_known_types(sent: str, kind: BodyType) -> None:
    assert body_type({"Content-Type": sent}, raw=True) is kind


@pytest.mark.parametrize(
    "sent",
    [
        "",
        "avro/binary; charset=utf-8",
        "Avro/Binary",
        " avro/binary",
        "application/avro",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ],
)
def test_other_types_are_told_what_to_add(sent: str) -> None:
    with pytest.raises(BadRequest, match='Add the header "Content-Type: avro/binary"'):
        body_type({"Content-Type": sent}, raw=True)


def test_one_message_as_it_is_can_only_be_published() -> None:
    with pytest.raises(BadRequest):
        body_type({"Content-Type": "text/plain"})
    with pytest.raises(BadRequest, match="not ''"):
        body_type({})
