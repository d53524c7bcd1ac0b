from pathlib import Path

import pytest

from broker.http.certificates import BadCertificates, PeerCertificate, client_context
from tests.kit import certificates


def test_the_names_in_a_certificate() -> None:
    found = {
        "subject": (
            (("organizationName", "Example, Inc."),),
            (("organizationalUnitName", "ops"),),
            (("commonName", "alice"),),
        ),
        "subjectAltName": (
            ("DNS", "a.example"),
            ("URI", "spiffe://example/a"),
            ("email", "a@example.org"),
            ("DNS", "b.example"),
        ),
    }
    assert PeerCertificate.of(found) == PeerCertificate(
        r"CN=alice,OU=ops,O=Example\, Inc.",
        "alice",
        ("a.example", "b.example"),
        ("spiffe://example/a",),
        ("a@example.org",),
    )


@pytest.mark.parametrize(
    ("name", "subject"),
    [
        ("a,O=Example", r"CN=a\,O\=Example"),
        (r"a\,b", r"CN=a\\\,b"),
        (" a ", r"CN=\ a\ "),
        ("#a", r"CN=\#a"),
        ("a\0b", r"CN=a\00b"),
    ],
)
def test_no_name_looks_like_two_parts_of_a_subject(name: str, subject: str) -> None:
    assert PeerCertificate.of({"subject": ((("commonName", name),),)}).subject == subject


def test_a_certificate_without_names() -> None:
    assert PeerCertificate.of({}) == PeerCertificate("")


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    with pytest.raises(BadCertificates, match=r"bad\.pem' can't be read as a PEM file"):
        client_context(bad)
    files = certificates.write(tmp_path)
    with pytest.raises(BadCertificates, match=r"missing.*No such file"):
        client_context(files.ca, files.certificate, tmp_path / "missing")
    with pytest.raises(BadCertificates, match="has no certificate beside it"):
        client_context(files.ca, key=files.key)
