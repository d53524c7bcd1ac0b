"""Compare stream jobs with the same jobs written by hand in PySpark."""
