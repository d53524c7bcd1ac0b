"""A PostgreSQL for the tests of SQL transactions and of the outbox. It keeps nothing durable, so that it is fast."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from typing_extensions import override

from broker.local.servers.cache_folder import ServerMissing
from broker.local.servers.process import HOST, free_ports, program
from broker.testing.server_process import ServerProcess

OF_DEBIAN: Final = Path("/usr/lib/postgresql")
NOBODY: Final = 65_534


def binary(name: str) -> str:
    """Return the path of a program of PostgreSQL, of the newest version if there are several. Raises ServerMissing."""
    found = sorted(
        OF_DEBIAN.glob(f"*/bin/{name}"), key=lambda path: int(path.parts[-3].partition(".")[0])
    )
    path = str(found[-1]) if found else shutil.which(name)
    if path is None:
        raise ServerMissing("PostgreSQL is not installed: apt-get install postgresql")
    return path


class PostgresServer(ServerProcess):
    """A PostgreSQL on loopback, with the user ``postgres`` and no password."""

    name: ClassVar[str] = "postgresql"

    def __init__(self) -> None:
        super().__init__()
        (self.port,) = free_ports(1)
        self._data = self.folder / "data"

    @override
    def command(self) -> Sequence[str]:
        if not self._data.exists():
            self._initialise()
        settings = {
            "port": str(self.port),
            "listen_addresses": HOST,
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "synchronous_commit": "off",
            "shared_buffers": "16MB",
        }
        words = [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        return [*_as_nobody(), binary("postgres"), "-D", str(self._data), *words]

    def _initialise(self) -> None:
        self._data.mkdir()
        if os.geteuid() == 0:
            self.folder.chmod(0o755)
            os.chown(self._data, NOBODY, NOBODY)
        options = ("--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8")
        command = [*_as_nobody(), binary("initdb"), *options, "--locale=C", "-D", str(self._data)]
        subprocess.run(command, check=True, capture_output=True, cwd="/")

    @override
    def answers(self) -> bool:
        return (
            subprocess.run(
                [binary("pg_isready"), "-q", "-h", HOST, "-p", str(self.port)], check=False
            ).returncode
            == 0
        )

    def url(self, driver: str) -> str:
        """Return the URL of the server's database for SQLAlchemy with a driver."""
        return f"postgresql+{driver}://postgres@{HOST}:{self.port}/postgres"


def _as_nobody() -> Sequence[str]:
    """Return the words before a command that PostgreSQL refuses to root. A change of the user forgets the tie to us."""
    if os.geteuid() != 0:
        return ()
    user = (f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
    return [program("setpriv", "util-linux"), *user, "--pdeathsig", "KILL"]
