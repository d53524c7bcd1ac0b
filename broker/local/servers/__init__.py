"""Real servers for clusters on one machine, started without containers.

Each launcher is a context manager. It starts one server on its own ports and in its own folder, and returns when
the server answers. It leaves no process behind, even if the program that uses it is killed::

    with HBaseServer() as hbase:
        tables_are_at(hbase.thrift2_port)

``python -m broker.local.servers fetch`` downloads the servers, once. If a server is not fetched, its launcher
raises ``ServerMissing``; the message names the command that helps.

    HBaseServer      ZooKeeper, HBase and both Thrift gateways in one JVM
"""

from broker.local.servers.cache_folder import ServerMissing
from broker.local.servers.hbase import HBaseServer
from broker.local.servers.process import ServerFailed, ServerProcess, free_ports

__all__ = [
    "HBaseServer",
    "ServerFailed",
    "ServerMissing",
    "ServerProcess",
    "free_ports",
]
