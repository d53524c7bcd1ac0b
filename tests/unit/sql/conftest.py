"""The client over a scripted transport, as the tests of the client have it."""

from tests.unit.client.conftest import make_client, transport

__all__ = ["make_client", "transport"]
