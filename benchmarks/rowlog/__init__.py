"""How fast a rowlog is beside what HBase does alone."""
