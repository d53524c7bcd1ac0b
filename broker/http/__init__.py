"""Both sides of HTTP: the server, on aiohttp's public classes, and the asking side of clients and nodes."""
