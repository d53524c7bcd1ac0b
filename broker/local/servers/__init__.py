"""Real servers for tests and benchmarks, started without containers.

Each launcher is a context manager. It starts one server on its own ports and in its own folder, and returns when
the server answers. It leaves no process behind, even if the program that uses it is killed::

    with TmsServer() as tms:
        requests_go_to(tms.url)

``python -m broker.local.servers fetch`` downloads the servers, once. If a server is not fetched, its launcher
raises ``ServerMissing``; the message names the command that helps.

    TmsServer        CDAP's own messaging server on LevelDB: the oracle, and a peer of the benchmarks
    JavaClient       CDAP's own client, unmodified, driven from Python
    TephraClient     Tephra's own client, and its server, unmodified, driven from Python
    HBaseServer      ZooKeeper, HBase and both Thrift gateways in one JVM
    HBaseGateway     one more Thrift-2 gateway of an HBaseServer
    ZooKeeperServer  one ZooKeeper
    RedisServer, KafkaServer     peers of the benchmarks; they acknowledge after a sync
    ToxiproxyServer  a proxy that can make connections slow, silent or dead
"""

from broker.local.servers.cache_folder import ServerMissing
from broker.local.servers.hbase import HBaseGateway, HBaseServer, thrift2_idl
from broker.local.servers.javaclient import JavaClient, JavaError, JavaTopics, RollbackHandle
from broker.local.servers.kafka import KafkaServer
from broker.local.servers.process import ServerFailed, ServerProcess, free_ports
from broker.local.servers.redis import RedisServer
from broker.local.servers.tephraclient import TephraCalls, TephraClient
from broker.local.servers.tms import TmsServer
from broker.local.servers.toxiproxy import ToxiproxyServer
from broker.local.servers.zookeeper import ZooKeeperServer

__all__ = [
    "HBaseGateway",
    "HBaseServer",
    "JavaClient",
    "JavaError",
    "JavaTopics",
    "KafkaServer",
    "RedisServer",
    "RollbackHandle",
    "ServerFailed",
    "ServerMissing",
    "ServerProcess",
    "TephraCalls",
    "TephraClient",
    "TmsServer",
    "ToxiproxyServer",
    "ZooKeeperServer",
    "free_ports",
    "thrift2_idl",
]
