"""JWT of an OIDC issuer over TLS, as credentials: which count, and what a hostile issuer or token does."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from pathlib import Path

import jwt
import pytest
from aiohttp import web
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from broker.access.access_records import AccessRecords
from broker.access.configured import configured_credentials
from broker.access.gate import RequiredGate
from broker.access.grants import Grant
from broker.access.issuer_keys import ASK_AGAIN_S, KEYS_MAX, STALE_S, IssuerKeys
from broker.access.json_web_tokens import GROUPS_MAX, LEEWAY_S, JwtCredentials
from broker.clock import SystemClock
from broker.config.access_section import AccessConfig
from broker.config.sections import Config, ConfigError
from broker.errors import Unauthenticated, Unavailable
from broker.http.documents import BYTES_MAX
from broker.principal import NOWHERE, CallerPending, Principal
from tests.kit import certificates
from tests.kit.oidc_issuer import AUDIENCE, OidcIssuer, listening_issuer, public
from tests.kit.serving import Broker, in_memory, listening

TOPIC = "/v1/namespaces/default/topics/t"


def bearing(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


class LateClock(SystemClock):
    """A clock that a test advances."""

    late_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.late_s

    def now_ms(self) -> int:
        return super().now_ms() + int(self.late_s * 1000)


class Checked:
    """An issuer, its keys at a node, and the credentials that these check."""

    def __init__(self, issuer: OidcIssuer, folder: Path, url: str = "") -> None:
        self.issuer = issuer
        self.clock = LateClock()
        self.access = AccessConfig(
            oidc_issuer=url or issuer.url,
            oidc_audience=(AUDIENCE,),
            oidc_ca=folder / "node-ca.pem",
            oidc_algorithms=("RS256", "ES256"),
            oidc_timeout_s=1.0,
        )
        found = configured_credentials(self.access, self.clock)
        assert found.keys is not None
        assert isinstance(found.bearers[0], JwtCredentials)
        self.keys: IssuerKeys = found.keys
        self.credentials: JwtCredentials = found.bearers[0]

    async def __call__(self, token: str) -> Principal | None:
        headers = bearing(token)
        try:
            return self.credentials.principal(headers, NOWHERE)
        except CallerPending as pending:
            await pending.fetched()
            return self.credentials.principal(headers, NOWHERE)


@pytest.fixture
async def checked(tmp_path: Path) -> AsyncIterator[Checked]:
    async with listening_issuer(certificates.write(tmp_path)) as issuer:
        one = Checked(issuer, tmp_path)
        yield one
        await one.keys.close()


async def test_a_token_of_the_issuer_names_its_caller(checked: Checked) -> None:
    token = checked.issuer.token(groups=["auditors", "staff"])
    assert await checked(token) == Principal("oidc:ann", frozenset({"auditors", "staff"}))
    for _ in range(3):
        await checked(checked.issuer.token("bob"))
    assert checked.issuer.asked == 1


@pytest.mark.parametrize(
    "claims",
    [
        {"life_s": -LEEWAY_S - 5},
        {"exp": None},
        {"exp": float("inf")},
        {"nbf": SystemClock().now_ms() // 1000 + 600},
        {"aud": "another"},
        {"aud": None},
        {"iss": "https://another.example"},
        {"iss": None},
        {"name": ""},
        {"sub": None},
        {"sub": "a b"},
        {"sub": "x" * 200},
        {"sub": "ann\n"},
        {"groups": {"a": 1}},
        {"groups": [1]},
        {"groups": ["g"] * (GROUPS_MAX + 1)},
    ],
)
async def test_a_token_with_a_wrong_claim_names_no_caller(
    checked: Checked, claims: dict[str, object]
) -> None:
    assert await checked(checked.issuer.token())
    with pytest.raises(Unauthenticated):
        await checked(checked.issuer.token(**claims))  # type: ignore[arg-type]


def _encoded(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


async def test_a_token_without_a_signature_names_no_caller(checked: Checked) -> None:
    _, claims, signature = checked.issuer.token().split(".")
    for algorithm in ("none", "None", "", None, ["ES256"], {}, 1):
        for end in ("", signature):
            head = _encoded({"alg": algorithm, "kid": "one"})
            with pytest.raises(Unauthenticated):
                await checked(f"{head}.{claims}.{end}")
    assert checked.issuer.asked == 0, "no key is looked for"


async def test_a_public_key_is_no_shared_secret(checked: Checked) -> None:
    public_key = checked.issuer.secret.public_key()
    pem = public_key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    _, claims, _ = checked.issuer.token().split(".")
    signed = f"{_encoded({'alg': 'HS256', 'kid': 'one', 'typ': 'JWT'})}.{claims}"
    mac = hmac.digest(pem, signed.encode(), hashlib.sha256)
    token = f"{signed}.{base64.urlsafe_b64encode(mac).rstrip(b'=').decode()}"
    with pytest.raises(Unauthenticated, match="algorithm"):
        await checked(token)
    with pytest.raises(ConfigError, match="HS256"):
        Config(access=AccessConfig(oidc_algorithms=("HS256",)))


@pytest.mark.filterwarnings("ignore::jwt.warnings.InsecureKeyLengthWarning")
async def test_a_key_counts_for_its_own_algorithm_alone(checked: Checked) -> None:
    small, other = (rsa.generate_private_key(65537, bits) for bits in (1024, 2048))
    checked.issuer.keys += [
        public(small, "small"),
        public(other, "other", alg="RS512"),
        public(other, "sealing", use="enc"),
        {"kty": "oct", "kid": "shared", "k": _encoded("0" * 40)},
        {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "AA", "y": "AA"},
    ]
    assert await checked(checked.issuer.token())
    for kid, key in (("small", small), ("other", other), ("sealing", other), ("one", other)):
        with pytest.raises(Unauthenticated):
            await checked(checked.issuer.token(kid=kid, key=key, algorithm="RS256"))
    for kid in ("shared", "broken"):
        with pytest.raises(Unauthenticated):
            await checked(checked.issuer.token(kid=kid))


async def test_another_key_and_odd_texts_are_refused(checked: Checked) -> None:
    with pytest.raises(Unauthenticated):
        await checked(checked.issuer.token(key=ec.generate_private_key(ec.SECP256R1())))
    deep = base64.urlsafe_b64encode(b'{"alg":"ES256","x":' + b"[" * 5000).decode()
    for text in ("..", "a.b.c", "\xff.\xff.\xff", f"{deep}.e30.x", f"{_encoded([])}.e30.x"):
        with pytest.raises(Unauthenticated):
            await checked(text)
    head, claims, signature = checked.issuer.token().split(".")
    for kid in (5, "k" * 5000, {}):
        with pytest.raises(Unauthenticated):
            await checked(f"{_encoded({'alg': 'ES256', 'kid': kid})}.{claims}.{signature}")
    told = jwt.decode(f"{head}.{claims}.{signature}", options={"verify_signature": False})
    with pytest.raises(Unauthenticated):
        await checked(f"{head}.{_encoded({**told, 'sub': 'admin'})}.{signature}")


async def test_a_checked_token_ends_with_its_life_and_with_its_key(checked: Checked) -> None:
    token = checked.issuer.token(life_s=60)
    assert await checked(token)
    checked.clock.late_s = 60 + LEEWAY_S - 1
    assert await checked(token)
    checked.clock.late_s += 2
    with pytest.raises(Unauthenticated):
        await checked(token)
    lasting = checked.issuer.token(life_s=36000)
    assert await checked(lasting)
    checked.issuer.keys = [public(ec.generate_private_key(ec.SECP256R1()), "two")]
    with pytest.raises(Unauthenticated):  # Its key is not known, so all keys are read.
        await checked(checked.issuer.token(kid="three"))
    with pytest.raises(Unauthenticated):
        await checked(lasting)


async def test_keys_rotate_and_an_unknown_key_is_asked_for_rarely(checked: Checked) -> None:
    assert await checked(checked.issuer.token())
    new = ec.generate_private_key(ec.SECP256R1())
    checked.issuer.keys.append(public(new, "two"))
    for _ in range(100):
        with pytest.raises(Unauthenticated):
            await checked(checked.issuer.token(kid="two", key=new))
    assert checked.issuer.asked == 1
    checked.clock.late_s += ASK_AGAIN_S
    found = await asyncio.gather(
        *(checked(checked.issuer.token(str(at), kid="two", key=new)) for at in range(20))
    )
    assert len(found) == 20
    assert checked.issuer.asked == 2


async def _hangs(_: web.BaseRequest) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def _is_huge(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(body=b" " * (BYTES_MAX + 1))


async def _is_no_json(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(text="<html>")


async def _is_deep(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(body=b"[" * 100_000)


async def _redirects(request: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=302, headers={"Location": f"{request.url.origin()}/keys?again"})


async def _has_thousands(_: web.BaseRequest) -> web.StreamResponse:
    return web.json_response({"keys": [{"kty": "EC", "kid": str(at)} for at in range(3000)]})


async def _has_no_list(_: web.BaseRequest) -> web.StreamResponse:
    return web.json_response({"keys": "many"})


async def _fails(_: web.BaseRequest) -> web.StreamResponse:
    return web.Response(status=500)


@pytest.mark.parametrize(
    ("misbehave", "says"),
    [
        (_hangs, "within 1 s"),
        (_is_huge, "more than"),
        (_is_no_json, "with JSON"),
        (_is_deep, "with JSON"),
        (_redirects, "status 302"),
        (_has_thousands, f"at most {KEYS_MAX}"),
        (_has_no_list, "no list"),
        (_fails, "status 500"),
    ],
)
async def test_while_the_keys_cannot_be_read_their_tokens_get_503(
    checked: Checked, misbehave: object, says: str
) -> None:
    checked.issuer.misbehave = misbehave  # type: ignore[assignment]
    for _ in range(3):
        with pytest.raises(Unavailable, match=says):
            await checked(checked.issuer.token())
    assert checked.issuer.asked == 1
    checked.issuer.misbehave = None
    checked.clock.late_s += ASK_AGAIN_S
    assert await checked(checked.issuer.token())
    checked.issuer.misbehave = misbehave  # type: ignore[assignment]
    checked.clock.late_s += ASK_AGAIN_S
    assert await checked(checked.issuer.token("bob")), "known keys go on"
    with pytest.raises(Unavailable, match=says):
        await checked(checked.issuer.token(kid="two"))
    checked.clock.late_s += STALE_S
    with pytest.raises(Unavailable):
        await checked(checked.issuer.token("eve", life_s=2 * STALE_S))


async def test_an_issuer_must_be_the_configured_one(checked: Checked, tmp_path: Path) -> None:
    other = Checked(checked.issuer, tmp_path, f"{checked.issuer.url}/")
    with pytest.raises(Unavailable, match="says that it is"):
        await other(checked.issuer.token())
    with pytest.raises(ConfigError, match="https"):
        Config(access=AccessConfig(oidc_issuer="http://example.org", oidc_audience=("b",)))
    with pytest.raises(ConfigError, match="oidc_audience"):
        Config(access=AccessConfig(oidc_issuer="https://example.org"))


async def test_an_issuer_of_another_ca_is_not_believed(checked: Checked) -> None:
    object.__setattr__(checked.access, "oidc_ca", None)
    with pytest.raises(Unavailable, match="can't be read"):
        await checked(checked.issuer.token())


async def test_a_name_of_the_issuer_is_not_that_of_a_group(checked: Checked) -> None:
    for prefix, name in (("", "group:admins"), ("group:", "admins"), ("", "*node")):
        object.__setattr__(checked.access, "oidc_prefix", prefix)
        with pytest.raises(Unauthenticated):
            await checked(checked.issuer.token(name))


async def test_only_tokens_of_a_silent_issuer_wait(checked: Checked) -> None:
    """While the issuer hangs, other callers go on, and a short deadline of a waiting one holds."""
    checked.issuer.misbehave = _hangs
    clock = SystemClock()
    _, records = in_memory(clock)
    access = AccessRecords(records, clock)
    await access.open()
    gate = RequiredGate(access.rules, clock.now_ms, bearers=(checked.credentials,))
    broker = Broker(gate=gate)
    text, _ = await access.create_token("ann")
    for who in ("ann", "oidc:ann"):
        await access.grant(Grant(who, "owner", "default/*"))
    try:
        async with listening(broker) as http:
            headers = {**bearing(checked.issuer.token()), "Request-Timeout": "0.05"}
            late = await http("PUT", TOPIC, headers=headers)
            assert (late.status, late.headers["Broker-Error"]) == (503, "no_leader")
            assert b"deadline" in late.body
            waiting = asyncio.create_task(
                http("PUT", TOPIC, headers=bearing(checked.issuer.token()))
            )
            assert (await http("PUT", TOPIC, headers=bearing(text))).status == 200
            assert not waiting.done()
            assert (await waiting).status == 503
            checked.issuer.misbehave = None
            checked.clock.late_s += ASK_AGAIN_S
            done = await http("GET", TOPIC, headers=bearing(checked.issuer.token()))
            assert done.status == 200
            async with http.session.get(f"{http.url}{TOPIC}?access_token={text}") as hidden:
                assert hidden.status == 401, "a token in a URL is none"
                assert text not in await hidden.text()
    finally:
        await access.close()
        await broker.close()
