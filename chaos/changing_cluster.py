"""A cluster on this machine whose processes change while it runs, for fault testing."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from broker.local import LocalCluster, Member, ProcessKind, plan
from broker.local.cluster import by_name
from broker.local.plan import ClusterLayout, ListenAddress, Settings
from broker.local.servers import ServerFailed
from broker.local.servers.process import HOST

MOVE_S: Final = 60.0
REGION_MOVER_MAIN: Final = "org.apache.hadoop.hbase.util.RegionMover"


@dataclass
class ChangingCluster(LocalCluster):
    """A cluster whose nodes are renewed, whose regions move, and whose processes join and leave."""

    def renew(
        self,
        settings: Settings,
        *,
        own_settings: Mapping[int, Settings] | None = None,
        mutant: str = "",
    ) -> None:
        """Kill the nodes and start them again with other settings, which override those of this cluster.

        With another table prefix and another root in ZooKeeper the nodes are a new cluster on the running
        servers. This takes seconds instead of half a minute.

        Args:
            settings: Settings of every node, instead of those of the last renewal.
            own_settings: Settings of single nodes, instead of those of the last renewal.
            mutant: The guard that every node lacks; "" for none.

        Raises:
            ServerFailed: A node did not start; the message has the end of its log.
        """
        began, home, before = time.monotonic(), self._home, self._plan
        assert home is not None, "not started"
        assert before is not None, "not started"
        for node in self._of(ProcessKind.BROKER):
            node.kill()
        layout = replace(
            before,
            settings={**before.settings, **settings},
            own_settings=by_name(self.own_settings, own_settings or {}),
            mutant=mutant,
        )
        fresh = {
            place.name: self._member(plan.broker_program(layout, place), home)
            for place in layout.brokers
        }
        self.members = [fresh.get(member.name, member) for member in self.members]
        self._make_tables(layout, home, began)
        self._start_nodes(began)

    def unload(self, region_server: Member) -> str:
        """Move all regions of a running region server to the others; return the output of HBase's RegionMover.

        Raises:
            ServerFailed: Not all regions were moved; the message has the output.
        """
        assert self._plan is not None, "not started"
        command = _unloading(self._plan, region_server.place)
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=MOVE_S
            )
        except subprocess.TimeoutExpired as late:
            raise ServerFailed(f"moving the regions of {region_server.name}: {late}") from late
        output = done.stdout + done.stderr
        if done.returncode:
            raise ServerFailed(
                f"the regions of {region_server.name} were not moved: {output[-2000:]}"
            )
        return output

    def join(self, member: Member) -> None:
        """Start one more process and return when it answers. Raises ServerFailed.

        If there is a process of the same name, it ends first.
        """
        self.leave(member.name)
        self.members.append(member)
        member.start()

    def leave(self, name: str) -> None:
        """Kill the process ``name``, if there is one, and forget it."""
        for member in [each for each in self.members if each.name == name]:
            member.kill()
            self.members.remove(member)


def _unloading(layout: ClusterLayout, region_server: ListenAddress) -> tuple[str, ...]:
    """Return the command that moves all regions of a region server to the others, by way of the master."""
    local = "localhost" if region_server.host == HOST else region_server.host
    words = ("-r", f"{local}:{region_server.port}", "-o", "unload", "-m", "4")
    moved = ("-f", f"{layout.hbase_folder}/moved-{region_server.name}")
    return plan.java_command(
        layout, layout.hbase_folder, ProcessKind.GATEWAY, REGION_MOVER_MAIN, *words, *moved
    )
