"""Compare the speed of a rowlog with that of HBase alone."""
