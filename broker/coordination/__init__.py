"""Which nodes there are, and which of them leads which topic: membership, instance ids, leases, assignment, tenure."""
