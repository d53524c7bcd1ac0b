"""Queries and faults of the nodes' ZooKeepers, past the proxies. All calls block."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from broker.local import Member
from broker.local.servers import zookeeper


class Ensemble:
    """One ZooKeeper or several; each keeps its data in ``data/NAME``."""

    def __init__(self, members: Sequence[Member], data: Path) -> None:
        """Begin with the processes, and the folder of their data."""
        self._members = members
        self._data = data

    @property
    def hosts(self) -> list[str]:
        """Return their addresses."""
        return [member.place.address for member in self._members]

    def leader(self) -> str | None:
        """Return the name of the leader, or of a standalone ZooKeeper; None while there is none."""
        for member in self._members:
            try:
                told = zookeeper.ask(member.place.host, member.place.port, "srvr")
            except OSError:
                continue
            if "Mode: leader" in told or "Mode: standalone" in told:
                return member.name
        return None

    def wipe(self) -> None:
        """Kill all, delete their data except their ids, and start them. Raises ServerFailed."""
        for member in self._members:
            member.kill()
        for member in self._members:
            for left in (self._data / member.name).iterdir():
                if left.name != "myid":
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        for member in self._members:
            member.launch()
        for member in self._members:
            member.await_ready()
