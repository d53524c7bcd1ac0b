"""Logs and records: keys and control rows (pure), the ports, and their implementations."""
