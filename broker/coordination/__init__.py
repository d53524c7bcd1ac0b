"""Who is there, and who holds what: membership, instance numbers, leases, assignment."""
