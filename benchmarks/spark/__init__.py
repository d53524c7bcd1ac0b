"""Compare Spark on topics with Spark on Kafka, on files, and on a source in memory."""
