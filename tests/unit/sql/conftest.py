"""The client over a scripted transport, as the tests of the client have it; and the databases."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from tests.kit.fixtures import require
from tests.kit.servers.postgresql import PostgresServer
from tests.unit.client.conftest import make_client, transport

__all__ = ["make_client", "transport"]

NUMBERS = itertools.count(1)


class SqliteFile:
    """A database in a file. The engine has the file's path."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "orders.db"

    def engine(self) -> Engine:
        return create_engine(f"sqlite:///{self.path}")

    def async_engine(self) -> Any:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - It imports greenlet.

        return create_async_engine(f"sqlite+aiosqlite:///{self.path}")


class PostgresSchema:
    """A schema of its own in PostgreSQL."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._schema = f"test_{os.getpid()}_{next(NUMBERS)}"
        engine = create_engine(server.url("psycopg"))
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {self._schema}"))
        engine.dispose()

    def engine(self) -> Engine:
        options = {"options": f"-csearch_path={self._schema}"}
        return create_engine(self._server.url("psycopg"), connect_args=options)

    def async_engine(self) -> Any:
        from sqlalchemy.ext.asyncio import create_async_engine  # noqa: PLC0415 - It imports greenlet.

        options = {"server_settings": {"search_path": self._schema}}
        return create_async_engine(self._server.url("asyncpg"), connect_args=options)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    require("postgresql")
    with PostgresServer() as server:
        yield server


@pytest.fixture(
    params=["sqlite", pytest.param("postgresql", marks=[pytest.mark.integration, pytest.mark.slow])]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> SqliteFile | PostgresSchema:
    """A new database of each kind."""
    if request.param == "sqlite":
        return SqliteFile(tmp_path)
    return PostgresSchema(request.getfixturevalue("postgres_server"))
