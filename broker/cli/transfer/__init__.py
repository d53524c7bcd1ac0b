"""``broker export`` and ``broker import``: a topic's messages as a file, and back."""
