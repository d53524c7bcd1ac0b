"""A node: its parts, wired together, alone or in a cluster."""
