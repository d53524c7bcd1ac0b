"""The client: what applications import.

``Client`` for asyncio, ``SyncClient`` for everything else; both speak to this broker and to the
original. Errors are those of ``broker.errors``, by name.
"""

from broker.client.aio import Client
from broker.client.cursors import Cursor, CursorLag
from broker.client.leaders import Leader
from broker.client.reading import Reading
from broker.client.retrying import Trouble
from broker.client.stage import Stage
from broker.client.subscriber import TailOptions
from broker.client.sync import SyncClient, SyncReading, SyncStage, SyncTransactionPublisher
from broker.client.transaction import TransactionPublisher
from broker.client.transactions import TransactionService
from broker.client.values import (
    Browsed,
    BrowsePage,
    NewMessage,
    Published,
    Settings,
    TopicInfo,
    TopicRange,
)
from broker.errors import (
    BadName,
    BadRequest,
    BodyTooLarge,
    BrokerError,
    ChangesTooLarge,
    CursorMoved,
    Forbidden,
    IdempotencyKeyReused,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PayloadsSealed,
    RequestError,
    StorageFull,
    TooManyCursors,
    TooManyMessages,
    TopicExists,
    TopicNotFound,
    TransactionConflict,
    TransactionNotInProgress,
    TransactionTooOld,
    Unavailable,
    UnavailableError,
)
from broker.model import Message, Snapshot, TopicId

__all__ = [
    "BadName",
    "BadRequest",
    "BodyTooLarge",
    "BrokerError",
    "BrowsePage",
    "Browsed",
    "ChangesTooLarge",
    "Client",
    "Cursor",
    "CursorLag",
    "CursorMoved",
    "Forbidden",
    "IdempotencyKeyReused",
    "Leader",
    "Message",
    "NewMessage",
    "NotFound",
    "OutcomeUnknown",
    "Overloaded",
    "PayloadsSealed",
    "Published",
    "Reading",
    "RequestError",
    "Settings",
    "Snapshot",
    "Stage",
    "StorageFull",
    "SyncClient",
    "SyncReading",
    "SyncStage",
    "SyncTransactionPublisher",
    "TailOptions",
    "TooManyCursors",
    "TooManyMessages",
    "TopicExists",
    "TopicId",
    "TopicInfo",
    "TopicNotFound",
    "TopicRange",
    "TransactionConflict",
    "TransactionNotInProgress",
    "TransactionPublisher",
    "TransactionService",
    "TransactionTooOld",
    "Trouble",
    "Unavailable",
    "UnavailableError",
]
