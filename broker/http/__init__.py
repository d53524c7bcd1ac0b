"""Both sides of HTTP: the server, built on aiohttp's public classes, and the connections of clients and nodes to it."""
