"""A node: this package connects its parts. A standalone node is a cluster of one."""
