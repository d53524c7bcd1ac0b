"""Measure a broker's throughput and latency as its clients see them: ``broker bench``."""
