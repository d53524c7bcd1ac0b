"""Packets that are lost on their way to a proxy, or back: nftables, as root.

One table for each verifier, which goes at the end; the counter in its rules tells how many packets were
lost, which is the evidence. TCP sends them again, later and later, so a lossy link is one on which anything
may take seconds::

    table inet chaos_4711 { chain input { type filter hook input priority 0;
        tcp dport { 28001, 28002 } numgen random mod 100 < 20 counter drop; } }

Toxiproxy can't do that: what it has accepted it has acknowledged.
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
    """No packets can be dropped here; the message is one line and says why."""


class PacketsFailed(OSError):
    """nft did not do what it was told; the text has what it said."""


class Packets:
    """What is dropped on this machine's loopback. Calls block. Raises PacketsFailed."""

    def __init__(self) -> None:
        """Try whether it may be done. Raises PacketsMissing."""
        self._table = f"chaos_{os.getpid()}"
        try:
            _nft("-f", "-", text=ruleset(self._table, [], 0))
            self.heal()
        except ServerMissing as error:
            raise PacketsMissing(str(error)) from error
        except PacketsFailed as error:
            raise PacketsMissing(f"nft may not be used: {error}") from error

    def lose(self, ports: Sequence[int], percent: int, direction: Direction = "both") -> None:
        """Let so many of a hundred packets to some ports get lost, or of those that come back."""
        self.heal()
        _nft("-f", "-", text=ruleset(self._table, ports, percent, direction))

    def lost(self) -> int:
        """Return how many packets were lost since ``lose``."""
        told = _nft("-j", "list", "table", "inet", self._table)
        return counted(json.loads(told)) if told else 0

    def heal(self) -> None:
        """Let everything pass."""
        _nft("-f", "-", text=f"add table inet {self._table}\ndelete table inet {self._table}\n")


def ruleset(table: str, ports: Sequence[int], percent: int, direction: Direction = "both") -> str:
    """Return the rules, as nft reads them."""
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
    """Return the packets of all counters in what nft lists."""
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
