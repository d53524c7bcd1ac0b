"""All settings, each with its default, its unit and its meaning. There is no other place for them.

A *key* is a field of one of the sections below. The name of a key is unique without its section; a section only
groups keys. Unit and bound come last in the name. A key has the same name in every source::

    source           how a key looks                              wins over
    default          the field below                              nothing
    TOML file        [limits]  body_bytes_max = 1048576           defaults
    environment      BROKER_LIMITS__BODY_BYTES_MAX=1048576        the file
    flag             --body-bytes-max 1048576                     all

Flags omit the unit of seconds (``--request-deadline 30``), as users expect. An unknown key is an error that names
the nearest key, so that a misspelt limit does not go unnoticed. ``broker.config.sources`` reads the sources.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, get_type_hints

from broker.config.access_section import AccessConfig as AccessConfig  # noqa: PLC0414 - Exported.
from broker.config.access_section import AccessMode as AccessMode  # noqa: PLC0414 - Exported.
from broker.config.access_section import access_problems
from broker.config.declaration import key
from broker.config.text_forms import (
    HOST_NAME,
    HOST_PORT,
    LISTENED,
    ORIGIN,
    TOPIC,
    URL,
    is_loopback,
)
from broker.config.tls_section import TlsConfig, tls_problems

TTL_S_MAX = 2_147_483_647
INSTANCE_ID_MAX = 255
PORT_MAX = 65_535
PROPERTIES_BYTES_MAX = 65_536
TRANSACTIONS = ("optional", "required", "refused")
"""The values of the property ``transactions``."""
REGIONS_MAX = 256
"""The first byte of a row's key decides its region."""
EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - Compared only.
"""Hosts that stand for every address of a machine."""
_MIB = 1024 * 1024


class ConfigError(ValueError):
    """The configuration is not usable. The message names each wrong key and the reason."""


class LogLevel(enum.StrEnum):
    """The least important level that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LogFormat(enum.StrEnum):
    """The format of log lines: for people, for programs, or chosen by the output (terminal or not)."""

    CONSOLE = "console"
    JSON = "json"
    AUTO = "auto"


class Durability(enum.StrEnum):
    """When HBase acknowledges a write: on disk, or in the memory of its servers."""

    FSYNC = "fsync"
    FLUSHED = "flushed"


class Compression(enum.StrEnum):
    """How LevelDB compresses blocks before it writes them."""

    NONE = "none"
    SNAPPY = "snappy"


class Role(enum.StrEnum):
    """The services of a node."""

    ALL = "all"
    TOPICS = "topics"
    TRANSACTIONS = "transactions"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where a node listens, and how long it waits for its clients."""

    host: str = key(
        "127.0.0.1",
        "Address to listen on. Beyond loopback `access.access_mode` must be set, too.",
        form=LISTENED,
    )
    port: int = key(8080, "Port to listen on; 0 takes a free one.", least=0, most=PORT_MAX)
    host_names: tuple[str, ...] = key(
        (),
        "More names by which clients reach a node that listens on loopback. Another Host gets 403 there.",
        form=HOST_NAME,
    )
    cors_origins: tuple[str, ...] = key(
        (),
        "Origins (https://app.example,...) whose web pages may use this broker; others get 403.",
        form=ORIGIN,
    )
    connections_max: int = key(16_384, "Most open connections; further ones get 503.", least=1)
    keep_alive_s: float = key(75.0, "How long an idle connection stays open.", least=0)
    header_deadline_s: float = key(30.0, "How long a request's headers may take.", least=0.1)
    body_stall_s: float = key(30.0, "How long a request's body may make no progress.", least=0.1)
    body_bytes_per_s_min: int = key(
        8_192, "A body that is slower than this counts as one without progress.", least=1
    )
    body_deadline_s: float = key(600.0, "How long a request's body may take in all.", least=0.1)
    reply_stall_s: float = key(60.0, "How long a client may read nothing of its reply.", least=0.1)
    request_line_bytes_max: int = key(8_190, "Longest request line.", least=512)
    header_bytes_max: int = key(8_190, "Longest header, name and value together.", least=512)
    headers_max: int = key(128, "Most headers of a request.", least=16)
    request_deadline_s: float = key(
        30.0,
        "How long a request may wait for a leader, for another node, or in the queue of publishes.",
        least=0.1,
    )
    role: Role = key(Role.ALL, "Services of a standalone node: all, topics or transactions.")
    drain_s: float = key(
        10.0, "After SIGTERM: how long the node waits for requests in flight.", least=0
    )

    def __post_init__(self) -> None:
        # An address of IPv6 may be written as in a URL.
        object.__setattr__(self, "host", self.host.removeprefix("[").removesuffix("]"))


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Where a standalone node keeps its messages."""

    data_dir: Path = key(Path("data"), "Folder of the LevelDB database; created if missing.")
    block_cache_bytes: int = key(
        32 * _MIB, "Size of LevelDB's cache of uncompressed blocks.", least=0
    )
    write_buffer_bytes: int = key(16 * _MIB, "Size of LevelDB's table in memory.", least=65_536)
    compression: Compression = key(
        Compression.NONE,
        "Compression of blocks: none or snappy. snappy makes files smaller and publishing slower.",
    )
    open_files_max: int = key(1_000, "Most table files that LevelDB keeps open.", least=64)
    probe_interval_s: float = key(
        1.0,
        "After a failed write: how often the node tries whether the disk works again.",
        least=0.01,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsConfig:
    """The limits. They prevent one client from using up a node for all others."""

    body_bytes_max: int = key(
        64 * _MIB, "Largest request body as sent, so compressed; a larger one gets 413.", least=1
    )
    body_inflated_bytes_max: int = key(
        128 * _MIB, "Largest request body after decompression; a larger one gets 413.", least=1
    )
    messages_per_request_max: int = key(
        100_000, "Most messages in one request; more get 413.", least=1
    )
    poll_messages_max: int | None = key(
        None,
        "Most messages of one poll. Default none: some clients treat a short page as the end.",
        least=1,
    )
    browse_messages_max: int = key(10_000, "Largest limit of a browse.", least=1)
    wait_max_s: float = key(60.0, "Longest wait of a long poll.", least=0)
    waiting_polls_max: int = key(
        10_000, "Most long polls and event streams that wait at once.", least=1
    )
    queued_requests_max: int = key(
        4_096, "Most publishes of one topic that wait for the disk; further ones get 503.", least=1
    )
    queued_bytes_max: int = key(
        256 * _MIB, "Most bytes of all waiting publishes of a node; further ones get 503.", least=1
    )
    idempotency_keys_max: int = key(
        100_000,
        "Idempotency keys of one topic kept in memory; the node reads older ones from disk.",
        least=1,
    )
    idempotency_keys_bytes_max: int = key(
        256 * _MIB, "Memory for the idempotency keys of all topics together.", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsConfig:
    """Defaults and limits of topics."""

    topic_ttl_default_s: int = key(
        604_800, "Lifetime of messages in a topic without a ttl.", least=1, most=TTL_S_MAX
    )
    topic_properties_default: Mapping[str, str] = key(
        MappingProxyType({}),
        "Properties of a new topic, for those that its creation does not give (name=value,...).",
    )
    cache_bytes_max: int = key(
        256 * _MIB, "Memory for recent messages of all topics together.", least=0
    )
    idempotency_window_s: float = key(
        600.0,
        "How long an idempotency key counts; at least twice a request's deadline.",
        least=1,
    )
    transaction_life_max_s: int = key(
        90_000,
        "Longest life of a transaction; the broker refuses publishes of an older one.",
        least=1,
    )
    stage_life_s: int = key(
        3_600, "How long a stage takes messages and can be published; then it is removed.", least=1
    )
    cursors_max: int = key(100, "Most named cursors of one topic; further ones get 409.", least=1)
    id_lead_ms_max: int = key(
        1_000, "How far the time in message ids may run ahead of the clock.", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionsConfig:
    """The transaction service. The longest life of a long transaction is `transaction_life_max_s`."""

    transactions_url: str | None = key(
        None,
        "URL of another transaction service, for the clean-up of transactions; none: this cluster's own.",
        form=URL,
    )
    transaction_timeout_default_s: float = key(
        30.0, "Time-out of a short transaction that names none.", least=0.001
    )
    transaction_timeout_max_s: float = key(
        600.0, "Longest time-out of a short transaction.", least=0.001
    )
    long_transaction_timeout_default_s: float = key(
        86_400.0, "Time-out of a long transaction that names none.", least=0.001
    )
    transactions_in_progress_max: int = key(
        4_000,
        "Most transactions in progress, with checkpoints; more get 503, long or of one address from 3/4.",
        least=1,
    )
    transaction_changes_max: int = key(
        10_000, "Most keys in one transaction's change set; more get 413.", least=1
    )
    transaction_changes_bytes_max: int = key(
        _MIB, "Most bytes of these keys; more get 413.", least=1
    )
    change_sets_bytes_max: int = key(
        256 * _MIB, "Memory for the change sets of all transactions; more get 503.", least=1
    )
    transaction_client_characters_max: int = key(
        256, "Longest client name of a transaction, in characters.", least=0
    )
    thrift_port: int | None = key(
        None,
        "Port of Tephra's Thrift service (Tephra's default is 15165); 0 takes a free one; none: off.",
        least=0,
        most=PORT_MAX,
    )
    transactions_reset_allowed: bool = key(
        False,
        "Allow reset and truncate of transactions. They show rolled-back messages; restart without it.",
    )
    transactions_prune_allowed: bool = key(
        False,
        "Let brokers elsewhere prune: allow truncate of given transactions past their longest life.",
    )
    transaction_sweep_interval_s: float = key(
        10.0, "How often the service looks for transactions past their time-out.", least=0.01
    )
    journal_snapshot_edits: int = key(
        50_000, "The service writes a snapshot to its journal after so many changes.", least=100
    )
    journal_snapshot_bytes: int = key(
        16 * _MIB,
        "It also writes one after so many bytes of changes, and at least as many as the last one has.",
        least=65_536,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepConfig:
    """How the sweeper removes expired messages, and messages of earlier generations."""

    sweep_interval_s: float = key(300.0, "Time between two sweeps.", least=0.1)
    sweep_margin_s: float = key(
        60.0, "How long expired messages stay on disk, because clocks of nodes differ.", least=0
    )
    sweep_rest_s: float = key(
        180.0, "After a start or a jump of the clock: how long no sweep begins.", least=0
    )
    sweep_rows_max: int = key(
        2_000, "Most marks that one slice of a sweep removes; a page counts as 100.", least=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsConfig:
    """The log lines of a node."""

    log_level: LogLevel = key(LogLevel.INFO, "Least important level that is written.")
    log_format: LogFormat = key(
        LogFormat.AUTO, "console, json, or auto: console on a terminal, else json."
    )
    log_lines_max: int = key(
        10_000, "Most lines that wait for a slow output; further ones are dropped.", least=1
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsConfig:
    """The metrics of a node."""

    metrics_topics: tuple[str, ...] = key(
        (), "Topics (ns/topic,...) that get a label of their own in metrics.", form=TOPIC
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """How several nodes find each other. Without ZooKeeper a node is standalone."""

    zookeeper_hosts: tuple[str, ...] = key(
        (), "ZooKeeper's servers (host:port,...); empty: standalone.", form=HOST_PORT
    )
    zookeeper_root: str = key("/broker", "Path of this cluster in ZooKeeper.")
    session_timeout_ms: int = key(
        4_000, "ZooKeeper counts a node as dead after it was silent for so long.", least=500
    )
    instance_id: int | None = key(
        None,
        "Instance id of this node, 0 to 255; none takes the lowest free one.",
        least=0,
        most=INSTANCE_ID_MAX,
    )
    advertised_url: str | None = key(
        None, "URL by which other nodes reach this one; none: its host and port.", form=URL
    )
    peer_urls: Mapping[str, str] = key(
        MappingProxyType({}),
        "URLs for other nodes that this node can't reach by their advertised ones (advertised=used,...).",
        form=URL,
    )
    clock_skew_ms_max: int = key(
        2_000, "A node does not lead if its clock differs more from the storage's clock.", least=1
    )

    @property
    def is_on(self) -> bool:
        """True if this node belongs to a cluster."""
        return bool(self.zookeeper_hosts)


@dataclass(frozen=True, slots=True, kw_only=True)
class HBaseConfig:
    """Where a cluster keeps its messages: HBase, through its Thrift-2 gateways."""

    hbase_gateways: tuple[str, ...] = key(
        (), "HBase's Thrift-2 gateways (host:port,...). All of them are equal.", form=HOST_PORT
    )
    hbase_namespace: str = key("default", "Namespace of the tables in HBase.")
    hbase_table_prefix: str = key("broker_", "Prefix of the names of the tables.")
    hbase_regions: int = key(
        16,
        "Number of regions of each new table, at most 256. Regions never split.",
        least=1,
        most=REGIONS_MAX,
    )
    hbase_connections_max: int = key(
        16,
        "Most calls to the gateways in flight, not counting late calls; of those, three times as many.",
        least=1,
    )
    hbase_call_s: float = key(
        25.0, "How long the node waits for the outcome of a change in storage.", least=0.1
    )
    hbase_connect_s: float = key(2.0, "How long opening a connection may take.", least=0.01)
    hbase_idle_s: float = key(
        30.0,
        "A connection that was idle for so long is not used again; gateways close it after 60 s.",
        least=0.1,
    )
    durability: Durability = key(
        Durability.FSYNC,
        "When HBase acknowledges a write. fsync: on disk. flushed: in memory; a power cut may lose it.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """The whole configuration. Its creation checks it, and raises one ConfigError with all problems."""

    server: ServerConfig = field(default_factory=ServerConfig)
    access: AccessConfig = field(default_factory=AccessConfig)
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    topics: TopicsConfig = field(default_factory=TopicsConfig)
    transactions: TransactionsConfig = field(default_factory=TransactionsConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    logs: LogsConfig = field(default_factory=LogsConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    hbase: HBaseConfig = field(default_factory=HBaseConfig)
    tls: TlsConfig = field(default_factory=TlsConfig)

    def __post_init__(self) -> None:
        problems = [
            *_key_problems(self),
            *_contradictions(self),
            *_cluster_problems(self),
            *access_problems(self.access),
            *tls_problems(self.tls, self.cluster.advertised_url),
        ]
        if problems:
            raise ConfigError("\n".join(problems))


class Key(NamedTuple):
    """The declaration of a key, for flags, ``broker config`` and the documentation.

    ``dotted`` is ``section.name``, ``type`` the field's annotation, ``least`` the smallest allowed number.
    """

    dotted: str
    flag: str
    variable: str
    type: Any
    default: Any
    doc: str
    least: float | None

    @property
    def section(self) -> str:
        """The section's name."""
        return self.dotted.partition(".")[0]

    @property
    def name(self) -> str:
        """The key's own name, unique over all sections."""
        return self.dotted.partition(".")[2]


def iter_keys() -> Iterator[Key]:
    """Yield every key, in the order of this file."""
    defaults = Config()
    for section, section_type in get_type_hints(Config).items():
        hints = get_type_hints(section_type)
        for part in fields(section_type):
            yield Key(
                dotted=f"{section}.{part.name}",
                flag="--" + part.name.removesuffix("_s").replace("_", "-"),
                variable=f"BROKER_{section.upper()}__{part.name.upper()}",
                type=hints[part.name],
                default=getattr(getattr(defaults, section), part.name),
                doc=part.metadata["doc"],
                least=part.metadata["least"],
            )


def value_of(config: Config, dotted: str) -> Any:
    """Return the value of the key ``section.name``."""
    section, _, name = dotted.partition(".")
    return getattr(getattr(config, section), name)


def _key_problems(config: Config) -> Iterator[str]:
    """Yield problems of single values: a number out of its bounds, or a text that has not the form of its key."""
    for section in fields(config):
        values = getattr(config, section.name)
        for part in fields(values):
            dotted, value = f"{section.name}.{part.name}", getattr(values, part.name)
            least, most, form = (part.metadata[each] for each in ("least", "most", "form"))
            if isinstance(value, str | Path) and "\0" in str(value):
                yield f"{dotted} = {str(value)!r} has a NUL character"
            elif least is not None and value is not None and not value >= least:
                yield f"{dotted} = {value} must be at least {least:g}"
            elif most is not None and value is not None and value > most:
                yield f"{dotted} = {value} must be at most {most}"
            elif isinstance(value, float) and math.isinf(value):
                yield f"{dotted} = {value} must be finite"
            elif form is not None:
                yield from (f"{dotted}: {problem}" for problem in form.problems(value))


def _contradictions(config: Config) -> Iterator[str]:
    server, limits, topics, port = (
        *(config.server, config.limits, config.topics),
        config.transactions.thrift_port,
    )
    if port and port == server.port:
        yield f"transactions.thrift_port = {port} must differ from server.port"
    if port is not None and server.role is Role.TOPICS:
        yield "transactions.thrift_port: a node with server.role = topics serves no transactions"
    if config.access.access_mode is None and not is_loopback(server.host):
        yield (
            f"access.access_mode must be set, because server.host = {server.host!r} listens beyond this machine: "
            "required (callers have credentials and grants) or open (each client that reaches the port may do everything)"
        )
    yield from _property_problems(topics.topic_properties_default)
    if topics.idempotency_window_s < 2 * server.request_deadline_s:
        yield (
            f"topics.idempotency_window_s = {topics.idempotency_window_s:g} must be at least twice "
            f"server.request_deadline_s = {server.request_deadline_s:g}"
        )
    if limits.body_inflated_bytes_max < limits.body_bytes_max:
        yield "limits.body_inflated_bytes_max must be at least limits.body_bytes_max"
    if limits.queued_bytes_max < limits.body_inflated_bytes_max:
        yield (
            "limits.queued_bytes_max must be at least limits.body_inflated_bytes_max, "
            "or the largest body could never be queued"
        )


def _property_problems(defaults: Mapping[str, str]) -> Iterator[str]:
    """Yield problems of default properties: each would make every creation of a topic fail."""
    where = "topics.topic_properties_default"
    if "ttl" in defaults:
        yield f"{where}: set the ttl with topics.topic_ttl_default_s"
    if "generation" in defaults:
        yield f"{where}: only the broker sets generation"
    size = sum(len(name.encode()) + len(value.encode()) for name, value in defaults.items())
    if size > PROPERTIES_BYTES_MAX:
        yield f"{where}: names and values have {size} bytes; {PROPERTIES_BYTES_MAX} are allowed"
    transactions = defaults.get("transactions", TRANSACTIONS[0])
    if transactions not in TRANSACTIONS:
        yield f"{where}: transactions = {transactions} is not one of {', '.join(TRANSACTIONS)}"


def _cluster_problems(config: Config) -> Iterator[str]:
    cluster, host = config.cluster, config.server.host
    if cluster.zookeeper_hosts and not config.hbase.hbase_gateways:
        yield "hbase.hbase_gateways must be set if cluster.zookeeper_hosts is set"
    if not cluster.zookeeper_root.startswith("/") or cluster.zookeeper_root.endswith("/"):
        yield f"cluster.zookeeper_root = {cluster.zookeeper_root} must be a path like /broker"
    if cluster.is_on and config.server.role is not Role.ALL:
        yield f"server.role = {config.server.role}: a node of a cluster must have the role all"
    if cluster.is_on and cluster.advertised_url is None and host in EVERY_ADDRESS:
        yield (
            f"cluster.advertised_url must be set if server.host = {host!r}: that "
            "address names no machine, so other nodes can't find this one"
        )
