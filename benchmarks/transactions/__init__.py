"""Short transactions per second, and the time from their commit to a consumer that sees them."""
