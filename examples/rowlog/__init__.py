"""Lily's repository, small: links are kept by a WAL, full text is indexed through an MQ."""
