"""``broker streams``: run, watch and stop stream jobs, and show their state."""
