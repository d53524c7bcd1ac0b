"""``broker bench``: measure a broker's throughput and latency, as seen from this machine."""
