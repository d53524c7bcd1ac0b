"""What an operator may set about the transaction service."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Bounds and times. The node fills it from the configuration."""

    timeout_default_s: float = 30.0
    """How long a short transaction may take that names no time-out."""
    timeout_max_s: float = 600.0
    long_timeout_default_s: float = 86_400.0
    long_timeout_max_s: float = 90_000.0
    in_progress_max: int = 4_000
    """Transactions in progress, checkpoints among them: each start answers them all."""
    changes_max: int = 10_000
    """Keys of one change set."""
    changes_bytes_max: int = 1024 * 1024
    """Bytes of the keys of one change set."""
    change_sets_bytes_max: int = 256 * 1024 * 1024
    """Bytes of all change sets that are kept, of committed transactions and of those that may commit."""
    client_characters_max: int = 256
    sweep_interval_s: float = 10.0
    """How often the leader looks for transactions whose time is over."""
    snapshot_edits: int = 50_000
    """After so many edits the journal gets a snapshot."""
    snapshot_bytes: int = 16 * 1024 * 1024
    """After so many bytes of edits it gets one, too."""
    request_deadline_s: float = 30.0
