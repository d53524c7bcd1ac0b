"""A broker as its clients see it: throughput and latency (``broker bench``), and its figures (``broker top``)."""
