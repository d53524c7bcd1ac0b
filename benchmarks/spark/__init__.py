"""Spark over topics, beside Spark over Kafka, files, and a source that has nothing to wait for."""
