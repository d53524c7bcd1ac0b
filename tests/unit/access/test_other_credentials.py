"""Basic, certificates and the header of gateways as credentials."""

from __future__ import annotations

import base64
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from broker.access.access_records import AccessRecords
from broker.access.certificate_names import CertificateCredentials
from broker.access.credential_kinds import secret_of
from broker.access.gate import RequiredGate
from broker.access.user_header import UserHeader
from broker.clock import SystemClock
from broker.config.access_section import AccessConfig, CertificateName
from broker.config.sections import Config, ConfigError
from broker.errors import Unauthenticated
from broker.principal import ANYONE, NOWHERE, Principal, Remote
from tests.kit.serving import in_memory

USER = {"X-CDAP-UserId": "ann"}
GATEWAY = Remote("10.1.2.3")


def basic(user: str, password: str) -> dict[str, str]:
    text = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {text}"}


def certificate(cn: str = "", *names: tuple[str, str]) -> Remote:
    subject = ((("organizationName", "Example"),), (("commonName", cn),) if cn else ())
    return Remote("192.0.2.1", {"subject": subject, "subjectAltName": names})


@pytest.fixture
async def access() -> AsyncIterator[AccessRecords]:
    clock = SystemClock()
    access = AccessRecords(in_memory(clock)[1], clock)
    await access.open()
    yield access
    await access.close()


@pytest.fixture
def gate(access: AccessRecords) -> RequiredGate:
    return RequiredGate(
        access.rules,
        SystemClock().now_ms,
        others=(
            UserHeader(("10.1.2.0/24", "fd00::/8"), ("gateway",), "user:"),
            CertificateCredentials(CertificateName.CN, "cert:"),
        ),
    )


async def test_basic_takes_a_token_as_password(access: AccessRecords, gate: RequiredGate) -> None:
    text, _ = await access.create_token("ann")
    for user in ("", "ann", "any one"):
        assert gate.identify(basic(user, text), NOWHERE) == Principal("ann")
    for headers in (
        basic("ann", "secret"),
        basic(text, ""),
        {"Authorization": "Basic"},
        {"Authorization": "Basic !"},
        {"Authorization": "Basic /w=="},
        {"Authorization": "Basic " + base64.b64encode(text.encode()).decode()},
        {"Authorization": f"Digest {text}"},
        {"Authorization": text},
        {"Authorization": ""},
    ):
        with pytest.raises(Unauthenticated):
            gate.identify(headers, NOWHERE)
    assert secret_of({}) is None


async def test_a_wrong_token_is_compared_in_constant_time(
    access: AccessRecords, gate: RequiredGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the id of a token, which is no secret, decides whether its hash is compared."""
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(
        hmac, "compare_digest", lambda a, b: compared.append((a, b)) or compare(a, b)
    )
    text, token = await access.create_token("ann")
    for wrong in (text[:21] + "A" * 42 + "_", text[:-1] + ("a" if text[-1] != "a" else "b")):
        with pytest.raises(Unauthenticated):
            gate.identify({"Authorization": f"Bearer {wrong}"}, NOWHERE)
    assert [(stored, len(given)) for stored, given in compared] == [(token.hash, 64)] * 2


async def test_wrong_credentials_count_more_than_others(gate: RequiredGate) -> None:
    """A request with a bad Authorization is refused, also if a gateway or a certificate names a caller."""
    for remote in (GATEWAY, certificate("bob")):
        with pytest.raises(Unauthenticated):
            gate.identify({**USER, "Authorization": "Bearer tms_x"}, remote)


async def test_a_certificate_names_its_caller(gate: RequiredGate) -> None:
    assert gate.identify({}, certificate("bob")) == Principal("cert:bob")
    assert gate.identify({}, NOWHERE) == ANYONE
    assert gate.identify({}, certificate("")) == ANYONE
    assert gate.identify({}, certificate("a b")) == ANYONE


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        (CertificateName.SUBJECT, None),  # CN=bob,O=Example has characters of no name.
        (CertificateName.CN, "bob"),
        (CertificateName.DNS, "bob.example"),
        (CertificateName.URI, "spiffe://example/bob"),
        (CertificateName.EMAIL, "bob@example.org"),
    ],
)
def test_each_rule_takes_one_kind_of_names(rule: CertificateName, name: str | None) -> None:
    shown = certificate(
        "bob",
        *(("DNS", "bob.example"), ("URI", "spiffe://example/bob"), ("email", "bob@example.org")),
        ("IP Address", "10.1.2.3"),
    )
    found = CertificateCredentials(rule, "cert:").principal({}, shown)
    assert (found and found.name) == (name and f"cert:{name}")


def test_a_certificate_with_two_names_of_the_kind_names_no_caller() -> None:
    rule = CertificateCredentials(CertificateName.DNS, "cert:")
    assert rule.principal({}, certificate("bob", ("DNS", "a"), ("DNS", "b"))) is None
    assert (
        CertificateCredentials(CertificateName.CN, "group:").principal({}, certificate("b")) is None
    )


def test_only_a_configured_gateway_names_a_user(gate: RequiredGate) -> None:
    for remote in (
        GATEWAY,
        Remote("::ffff:10.1.2.3"),
        Remote("fd00::1%eth0"),
        certificate("gateway"),
        certificate("", ("DNS", "gateway")),
    ):
        assert gate.identify(USER, remote) == Principal("user:ann")
    for remote in (
        NOWHERE,
        Remote("10.1.3.1"),
        Remote("127.0.0.1"),
        Remote("::1"),
        Remote("10.1.2.3.example"),
        certificate("", ("DNS", "gateway.evil")),
    ):
        assert gate.identify(USER, remote) == ANYONE
    assert gate.identify(USER, certificate("bob")) == Principal("cert:bob")
    for name in ("", " ", "*node", "a b", "ann\tbob", "x" * 200):
        with pytest.raises(Unauthenticated):
            gate.identify({"X-CDAP-UserId": name}, GATEWAY)


def test_the_networks_of_gateways_are_checked() -> None:
    config = Config()
    for networks in (("10.0.0.1/8",), ("example.org",), ("0.0.0.0/0",), ("::/0",)):
        with pytest.raises(ConfigError, match="user_header_networks"):
            replace(config, access=AccessConfig(user_header_networks=networks))
