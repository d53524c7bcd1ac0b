"""Web pages of other sites and other users of the machine have no access."""

import stat

import pytest

from tests.kit.attacked import Attacked
from tests.kit.serving import topic_path

pytestmark = [pytest.mark.integration]


async def test_other_users_of_the_machine_can_not_read_the_data(broker: Attacked) -> None:
    mode = broker.process.data_dir.stat().st_mode
    assert stat.S_IMODE(mode) == 0o700


@pytest.mark.parametrize("target", ["/ping", "/metrics", "/nothing", topic_path("none")])
async def test_a_reply_forbids_browsers_to_guess_its_type(broker: Attacked, target: str) -> None:
    reply = await broker.ask("GET", target)
    assert reply.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://localhost.evil.example"])
async def test_a_page_of_another_site_is_refused(broker: Attacked, origin: str) -> None:
    for method, target in (("GET", "/ping"), ("PUT", topic_path("from-a-page"))):
        reply = await broker.ask(method, target, b"", f"Origin: {origin}")
        assert reply.status == 403
    assert (await broker.ask("GET", topic_path("from-a-page"))).status == 404
