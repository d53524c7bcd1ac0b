"""``broker streams``: run, watch and stop stream jobs, and look at what they keep."""
