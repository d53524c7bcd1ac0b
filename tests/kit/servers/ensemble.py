"""One ZooKeeper; and three that elect a leader: the ensemble survives the loss of one.

A member is ready only when the ensemble serves, so all members start at the same time.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, Self

from typing_extensions import override

from broker.local.servers import jvm
from broker.local.servers.process import ASK_TIMEOUT_S, HOST, free_ports
from broker.local.servers.zookeeper import LOG4J, MAIN, SETTINGS, ask, properties, serves
from broker.testing.server_process import ServerProcess
from tests.kit import certificates
from tests.kit.certificates import Files

MEMBERS = 3


class ZooKeeperServer(ServerProcess):
    """A standalone ZooKeeper on loopback."""

    name: ClassVar[str] = "zookeeper"

    def __init__(
        self, *, folder: Path | None = None, cpu: int | None = None, tls: Files | None = None
    ) -> None:
        """Prepare a server. With ``tls`` it has TLS alone, and asks its clients for certificates of the same CA."""
        super().__init__(folder=folder, cpu=cpu)
        (self.port,) = free_ports(1)
        self._tls = tls

    @property
    def hosts(self) -> str:
        """The connection string for a client."""
        return f"{HOST}:{self.port}"

    @override
    def command(self) -> Sequence[str]:
        configuration = self.folder / "zoo.cfg"
        own = {
            "dataDir": f"{self.folder}/data",
            "clientPort": str(self.port),
            "clientPortAddress": HOST,
        }
        over_tls: dict[str, str] = {}
        if self._tls is not None:
            del own["clientPort"], own["clientPortAddress"]
            over_tls = {
                "secureClientPort": str(self.port),
                "secureClientPortAddress": HOST,
                "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
                "ssl.keyStore.location": str(certificates.java_keys(self._tls)),
                "ssl.trustStore.location": str(self._tls.ca),
                "ssl.clientAuth": "need",
            }
        configuration.write_text(properties({**SETTINGS, **own, **over_tls}))
        (self.folder / "log4j.properties").write_text(LOG4J)
        return [
            jvm.java(),
            *jvm.QUICK,
            "-Xmx128m",
            *jvm.sharing(),
            "-cp",
            jvm.shared_class_path(self.folder),
            MAIN,
            str(configuration),
        ]

    @override
    def answers(self) -> bool:
        if self._tls is None:
            return serves(HOST, self.port)
        context = certificates.trusting(self._tls)
        with (
            socket.create_connection((HOST, self.port), timeout=ASK_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=HOST) as connection,
        ):
            connection.sendall(b"srvr")
            return b"Mode:" in connection.recv(1 << 16)


class EnsembleMember(ServerProcess):
    """One of several ZooKeepers; ``peers`` are the addresses of all of them, with the ports of the ensemble."""

    name: ClassVar[str] = "zookeeper-member"

    def __init__(self, number: int, port: int, peers: Sequence[str]) -> None:
        super().__init__()
        self.number = number
        self.port = port
        self._peers = peers

    @override
    def command(self) -> Sequence[str]:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        (data / "myid").write_text(str(self.number))
        own = {"dataDir": str(data), "clientPort": str(self.port), "clientPortAddress": HOST}
        peers = {f"server.{number}": peer for number, peer in enumerate(self._peers, 1)}
        configuration = self.folder / "zoo.cfg"
        configuration.write_text(properties({**SETTINGS, **own, **peers}))
        (self.folder / "log4j.properties").write_text(LOG4J)
        options = (*jvm.QUICK, "-Xmx128m", *jvm.sharing())
        path = jvm.shared_class_path(self.folder)
        return [jvm.java(), *options, "-cp", path, MAIN, str(configuration)]

    @override
    def answers(self) -> bool:
        return serves(HOST, self.port)

    @property
    def leads(self) -> bool:
        """Return whether this member is the leader now."""
        try:
            return "Mode: leader" in ask(HOST, self.port, "srvr")
        except OSError:
            return False


class ZooKeeperEnsemble:
    """Three members on loopback. The end of the ``with`` block ends them."""

    def __init__(self) -> None:
        ports = free_ports(3 * MEMBERS)
        clients, meeting, electing = ports[:3], ports[3:6], ports[6:]
        peers = [f"{HOST}:{meet}:{elect}" for meet, elect in zip(meeting, electing, strict=True)]
        self.members = [
            EnsembleMember(number, port, peers) for number, port in enumerate(clients, 1)
        ]

    @property
    def hosts(self) -> list[str]:
        """The addresses for a client."""
        return [f"{HOST}:{member.port}" for member in self.members]

    @property
    def leader(self) -> EnsembleMember:
        """The member that leads now."""
        (leader,) = [member for member in self.members if member.running and member.leads]
        return leader

    def __enter__(self) -> Self:
        try:
            with ThreadPoolExecutor(MEMBERS) as threads:
                for started in [threads.submit(member.start) for member in self.members]:
                    started.result()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def _close(self) -> None:
        for member in self.members:
            member.kill()
            member.close()
