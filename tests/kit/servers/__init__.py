"""Servers for tests and benchmarks only: oracles, peers, and other clients.

``python -m tests.kit.servers fetch`` downloads these and those of ``broker.local.servers``, once.

    TmsServer        CDAP's own messaging server on LevelDB: the oracle, and a peer of the benchmarks
    JavaClient       CDAP's own client, unmodified, driven from Python
    TephraClient     Tephra's own client, and its server, unmodified, driven from Python
    HBaseGateway     one more Thrift-2 gateway of an HBaseServer
    ZooKeeperServer, ZooKeeperEnsemble    one ZooKeeper, and three that elect a leader
    PostgresServer   a database for the tests of SQL transactions and of the outbox
    RedisServer, KafkaServer     peers of the benchmarks; they acknowledge after a sync
"""

from tests.kit.servers.ensemble import ZooKeeperEnsemble, ZooKeeperServer
from tests.kit.servers.gateway import HBaseGateway, thrift2_idl
from tests.kit.servers.javaclient import JavaClient, JavaError, JavaTopics, RollbackHandle
from tests.kit.servers.kafka import KafkaServer
from tests.kit.servers.postgresql import PostgresServer
from tests.kit.servers.redis import RedisServer
from tests.kit.servers.tephraclient import TephraCalls, TephraClient
from tests.kit.servers.tms import TmsServer

__all__ = [
    "HBaseGateway",
    "JavaClient",
    "JavaError",
    "JavaTopics",
    "KafkaServer",
    "PostgresServer",
    "RedisServer",
    "RollbackHandle",
    "TephraCalls",
    "TephraClient",
    "TmsServer",
    "ZooKeeperEnsemble",
    "ZooKeeperServer",
    "thrift2_idl",
]
