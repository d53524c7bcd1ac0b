"""Make the settings of a node's parts from the configuration."""

from __future__ import annotations

from broker.config.sections import Config
from broker.topics.settings import TopicSettings
from broker.transactions.service_settings import TransactionSettings

STANDALONE = "standalone"


def topic_settings(config: Config) -> TopicSettings:
    """Return the settings of topics."""
    limits, topics, sweep = config.limits, config.topics, config.sweep
    return TopicSettings(
        transaction_life_max_s=topics.transaction_life_max_s,
        stage_life_s=topics.stage_life_s,
        cursors_max=topics.cursors_max,
        request_deadline_s=config.server.request_deadline_s,
        id_lead_ms_max=topics.id_lead_ms_max,
        clock_skew_ms_max=config.cluster.clock_skew_ms_max,
        queued_requests_max=limits.queued_requests_max,
        queued_bytes_max=limits.queued_bytes_max,
        idempotency_window_ms=int(topics.idempotency_window_s * 1000),
        idempotency_keys_max=limits.idempotency_keys_max,
        idempotency_keys_bytes_max=limits.idempotency_keys_bytes_max,
        poll_messages_max=limits.poll_messages_max,
        cache_bytes_max=topics.cache_bytes_max,
        sweep_margin_ms=int(sweep.sweep_margin_s * 1000),
        sweep_rows_max=sweep.sweep_rows_max,
    )


def transaction_settings(config: Config) -> TransactionSettings:
    """Return the settings of the transaction service."""
    own = config.transactions
    return TransactionSettings(
        timeout_default_s=own.transaction_timeout_default_s,
        timeout_max_s=own.transaction_timeout_max_s,
        long_timeout_default_s=own.long_transaction_timeout_default_s,
        long_timeout_max_s=config.topics.transaction_life_max_s,
        in_progress_max=own.transactions_in_progress_max,
        changes_max=own.transaction_changes_max,
        changes_bytes_max=own.transaction_changes_bytes_max,
        change_sets_bytes_max=own.change_sets_bytes_max,
        client_characters_max=own.transaction_client_characters_max,
        sweep_interval_s=own.transaction_sweep_interval_s,
        snapshot_edits=own.journal_snapshot_edits,
        snapshot_bytes=own.journal_snapshot_bytes,
        request_deadline_s=config.server.request_deadline_s,
    )


def node_name(config: Config) -> str:
    """Return the label of the node in its metrics."""
    if not config.cluster.is_on:
        return STANDALONE
    return config.cluster.advertised_url or f"{config.server.host}:{config.server.port}"
