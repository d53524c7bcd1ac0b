import pytest

from broker.api.asked import JSON_BYTES_MAX, BodyType, body_type, bytes_max
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
def test_other_types_are_refused_with_the_header_to_add(sent: str) -> None:
    with pytest.raises(BadRequest, match='Add the header "Content-Type: avro/binary"'):
        body_type({"Content-Type": sent}, raw=True)


def test_a_raw_body_can_only_be_published() -> None:
    with pytest.raises(BadRequest):
        body_type({"Content-Type": "text/plain"})
    with pytest.raises(BadRequest, match="not ''"):
        body_type({})


@pytest.mark.parametrize(
    ("sent", "most", "bound"),
    [
        ("avro/binary", None, None),
        ("text/plain", None, None),
        ("", 7, 7),
        ("application/json", None, JSON_BYTES_MAX),
        ("Avro/JSON; charset=utf-8", None, JSON_BYTES_MAX),
        ("application/json", 2 * JSON_BYTES_MAX, JSON_BYTES_MAX),
        ("application/json", 7, 7),
    ],
)
def test_json_has_its_own_bound(sent: str, most: int | None, bound: int | None) -> None:
    assert bytes_max({"Content-Type": sent}, most) == bound
