"""A store in memory, for tests and for brokers that may lose their data; also one with injected faults."""
