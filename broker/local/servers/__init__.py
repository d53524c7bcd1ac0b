"""Real servers for clusters on one machine, started without containers.

A process that is started here does not outlive the program that started it, even if that is killed.

``python -m broker.local.servers fetch`` downloads the servers, once. If a server is not fetched, its start
raises ``ServerMissing``; the message names the command that helps.
"""

from broker.local.servers.cache_folder import ServerMissing
from broker.local.servers.process import ServerFailed, free_ports

__all__ = [
    "ServerFailed",
    "ServerMissing",
    "free_ports",
]
