"""A small OIDC issuer over TLS: its discovery document, its keys, and the tokens that it signs.

``misbehave`` lets it answer otherwise. As a process of its own: ``python -m tests.kit.oidc_issuer``, see ``main``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
from aiohttp import web
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from broker.clock import SystemClock
from tests.kit import certificates
from tests.kit.certificates import Files

AUDIENCE = "broker"
PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey
Misbehaviour = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


def public(key: PrivateKey, kid: str | None, **more: object) -> dict[str, Any]:
    """Return the public part of a key, as a JWK."""
    if isinstance(key, rsa.RSAPrivateKey):
        found = RSAAlgorithm.to_jwk(key.public_key(), as_dict=True)
    else:
        found = ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, **({} if kid is None else {"kid": kid}), **more}


class OidcIssuer:
    """One issuer. ``keys`` are those that it shows; ``asked`` counts the requests for them."""

    def __init__(self) -> None:
        """Begin with one key of EC, named ``one``."""
        self.url = ""
        self.secret = ec.generate_private_key(ec.SECP256R1())
        self.keys = [public(self.secret, "one")]
        self.asked = 0
        self.misbehave: Misbehaviour | None = None

    def token(
        self,
        name: str = "ann",
        *,
        kid: str | None = "one",
        key: object = None,
        algorithm: str = "ES256",
        life_s: float = 600,
        **claims: object,
    ) -> str:
        """Sign a token."""
        now = SystemClock().now_ms() // 1000
        told = {"iss": self.url, "aud": AUDIENCE, "sub": name, "iat": now}
        told |= {"exp": now + int(life_s), **claims}
        told = {claim: value for claim, value in told.items() if value is not None}
        headers = None if kid is None else {"kid": kid}
        return jwt.encode(told, key or self.secret, algorithm, headers)  # type: ignore[arg-type]

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request as an issuer does."""
        if request.path == "/.well-known/openid-configuration":
            return web.json_response({"issuer": self.url, "jwks_uri": f"{self.url}/keys"})
        if request.path == "/keys":
            self.asked += 1
            if self.misbehave is not None:
                return await self.misbehave(request)
            return web.json_response({"keys": self.keys})
        if request.path == "/token":
            return web.Response(text=self.token(request.query["name"]))
        return web.Response(status=404)


@asynccontextmanager
async def listening_issuer(files: Files) -> AsyncIterator[OidcIssuer]:
    """Listen with TLS on a free port of loopback."""
    issuer = OidcIssuer()
    runner = web.ServerRunner(web.Server(issuer.answer), shutdown_timeout=0.01)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=certificates.serving(files))
    await site.start()
    port = runner.addresses[0][1]
    issuer.url = f"https://127.0.0.1:{port}"
    try:
        yield issuer
    finally:
        await runner.cleanup()


async def main(certificate: str, key: str, ca: str) -> None:
    """Listen until the end of this process's input, and print URL and CA."""
    async with listening_issuer(Files(Path(certificate), Path(key), Path(ca))) as issuer:
        print(json.dumps({"url": issuer.url}), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
