"""Decide which nodes live, and which node leads a topic: membership, instance ids, leases, assignment, tenure."""
