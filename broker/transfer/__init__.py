"""Export and import: a topic's messages in a file of JSON lines, Avro or Parquet, and published from one, each once."""
