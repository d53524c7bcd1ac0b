"""Loss of packets to and from proxies, by nftables, as root.

Each verifier has one table, which it removes at the end. The counters in its rules give the number of lost
packets, which is the evidence of the fault. TCP sends lost packets again, after longer and longer times, so
every request over a lossy link may take seconds::

    table inet chaos_4711 { chain input { type filter hook input priority 0;
        tcp dport { 28001, 28002 } numgen random mod 100 < 20 counter drop; } }

Toxiproxy can't lose packets: the kernel has acknowledged the data that it reads.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from broker.local.servers import ServerMissing
from broker.local.servers.process import program
from chaos.links import Direction

NFT_S: Final = 10.0


class PacketsMissing(Exception):
    """This machine can't drop packets; the message is one line with the reason."""


class PacketsFailed(OSError):
    """nft failed; the text has its error output."""


class Packets:
    """Drops packets on this machine. Calls block, and raise PacketsFailed."""

    def __init__(self) -> None:
        """Test that nft can be used. Raises PacketsMissing."""
        self._table = f"chaos_{os.getpid()}"
        try:
            _nft("-f", "-", text=ruleset(self._table, [], 0))
            self.heal()
        except ServerMissing as error:
            raise PacketsMissing(str(error)) from error
        except PacketsFailed as error:
            raise PacketsMissing(f"nft may not be used: {error}") from error

    def lose(self, ports: Sequence[int], percent: int, direction: Direction = "both") -> None:
        """Drop this percentage of the packets to some ports, from them, or both."""
        self.heal()
        _nft("-f", "-", text=ruleset(self._table, ports, percent, direction))

    def lost(self) -> int:
        """Return the number of packets lost since ``lose``."""
        told = _nft("-j", "list", "table", "inet", self._table)
        return counted(json.loads(told)) if told else 0

    def heal(self) -> None:
        """Stop dropping packets."""
        _nft("-f", "-", text=f"add table inet {self._table}\ndelete table inet {self._table}\n")


def ruleset(table: str, ports: Sequence[int], percent: int, direction: Direction = "both") -> str:
    """Return the rules in nft's language."""
    ways = {"up": ("dport",), "down": ("sport",), "both": ("dport", "sport")}[direction]
    listed = ", ".join(map(str, ports))
    rules = "".join(
        f"    tcp {way} {{ {listed} }} numgen random mod 100 < {percent} counter drop\n"
        for way in ways
        if ports
    )
    return (
        f"table inet {table} {{\n  chain input {{\n"
        f"    type filter hook input priority 0; policy accept;\n{rules}  }}\n}}\n"
    )


def counted(listed: dict[str, Any]) -> int:
    """Return the sum of all packet counters in nft's listing."""
    rules = (one["rule"]["expr"] for one in listed["nftables"] if "rule" in one)
    return sum(part["counter"]["packets"] for rule in rules for part in rule if "counter" in part)


def _nft(*words: str, text: str | None = None) -> str:
    try:
        done = subprocess.run(
            [program("nft", "nftables"), *words],
            input=text,
            check=False,
            capture_output=True,
            text=True,
            timeout=NFT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PacketsFailed(str(error)) from error
    if done.returncode:
        raise PacketsFailed(" ".join(done.stderr.split()))
    return done.stdout
