"""Stream jobs beside the same jobs written by hand in PySpark."""
