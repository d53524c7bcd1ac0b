"""``broker rowlog``: look at rowlogs, put into them, process them, and mend them."""
