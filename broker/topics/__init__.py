"""Topics: ids, group commit, reading, caching, idempotency and retention."""
