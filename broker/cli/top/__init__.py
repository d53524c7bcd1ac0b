"""``broker top``: topics and nodes, live in the terminal."""
