"""A small version of Lily's repository: a WAL updates links, and an MQ feeds a full-text index."""
