"""``broker export`` and ``broker import``: write a topic's messages to a file, and publish them from one."""
