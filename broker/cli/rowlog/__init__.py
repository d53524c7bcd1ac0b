"""``broker rowlog``: show rowlogs, put messages into them, process them, and mend them."""
