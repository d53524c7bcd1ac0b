"""Real servers for tests and benchmarks, started without containers.

Each launcher is a context manager that starts one server on ports and in a folder of its own,
returns when the server answers, and leaves no process behind, however its user ends::

    with TmsServer() as tms:
        requests_go_to(tms.url)

What they run is fetched beforehand, once, by ``python -m broker.local.servers fetch``; a launcher
whose server is not there raises ``ServerMissing``, whose message is the command that mends it.

    TmsServer        CDAP's own messaging server on LevelDB: the oracle, and a peer
    JavaClient       CDAP's own client, unmodified, driven from Python
    TephraClient     Tephra's own client, and its server, likewise
    HBaseServer      ZooKeeper, HBase and both Thrift gateways in one JVM
    HBaseGateway     one more Thrift-2 gateway of that
    ZooKeeperServer  one ZooKeeper
    RedisServer, KafkaServer     peers of the benchmarks, set to acknowledge after a sync
    ToxiproxyServer  a proxy whose connections can be made slow, silent or dead
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
