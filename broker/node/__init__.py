"""A node: this package connects the parts of a standalone node, or of a node in a cluster."""
