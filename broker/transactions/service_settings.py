"""The settings of the transaction service."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """Bounds and times."""

    timeout_default_s: float = 30.0
    """The time-out of a short transaction that names none."""
    timeout_max_s: float = 600.0
    long_timeout_default_s: float = 86_400.0
    long_timeout_max_s: float = 90_000.0
    in_progress_max: int = 4_000
    """The most transactions and checkpoints in progress. The answer to each start lists them all."""
    changes_max: int = 10_000
    """The most keys of one change set."""
    changes_bytes_max: int = 1024 * 1024
    """The most bytes of the keys of one change set."""
    change_sets_bytes_max: int = 256 * 1024 * 1024
    """The most memory of all change sets: those of committed transactions, and of those that may commit."""
    client_characters_max: int = 256
    sweep_interval_s: float = 10.0
    """How often the leader checks for timed-out transactions."""
    snapshot_edits: int = 50_000
    """After so many edits, the leader writes a snapshot into the journal."""
    snapshot_bytes: int = 16 * 1024 * 1024
    """After so many bytes of edits, and at least as many as the last snapshot has, the leader writes one, too."""
    request_deadline_s: float = 30.0
