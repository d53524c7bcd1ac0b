"""The client library: applications import from here.

Asyncio programs use ``Client``; all other programs use ``SyncClient``. Both work with this broker and
with the original one. They raise the errors of ``broker.errors``.
"""

from broker.client.aio import Client
from broker.client.cursors import Cursor, CursorLag
from broker.client.handler import HandlerFailed, Reject, RetryLater
from broker.client.letter_calls import DeadLetterCalls, OpenLetter
from broker.client.node_directory import Leader
from broker.client.place_store import PlaceStore
from broker.client.range_read import Reading
from broker.client.retrier import Trouble
from broker.client.stage import Stage
from broker.client.subscriber import Subscriber
from broker.client.subscription import SubscriberOptions
from broker.client.sync import SyncClient, SyncReading, SyncStage
from broker.client.sync_subscriber import SyncDeadLetterCalls, SyncSubscriber
from broker.client.tail import TailOptions
from broker.client.transaction_aware import (
    AnyTransactionService,
    DecidingAware,
    ParticipantFailed,
    TransactionAware,
    Undoable,
)
from broker.client.transaction_block import Transaction
from broker.client.transaction_context import TransactionContext
from broker.client.transaction_publisher import TransactionPublisher
from broker.client.transaction_sync import (
    SyncTransaction,
    SyncTransactionPublisher,
    SyncTransactionService,
)
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
    AlreadyPublished,
    BadName,
    BadRequest,
    BodyTooLarge,
    BrokerError,
    ChangesTooLarge,
    CursorMoved,
    Forbidden,
    IdempotencyKeyReused,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    PayloadsSealed,
    QuotaExceeded,
    RequestError,
    StorageFull,
    TooManyCursors,
    TooManyMessages,
    TopicExists,
    TopicNotFound,
    TopicRecreated,
    TransactionConflict,
    TransactionFenced,
    TransactionNotInProgress,
    TransactionTooOld,
    Unauthenticated,
    Unavailable,
    UnavailableError,
)
from broker.model import Message, Snapshot, TopicId
from broker.places import Place

__all__ = [
    "AlreadyPublished",
    "AnyTransactionService",
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
    "DeadLetterCalls",
    "DecidingAware",
    "Forbidden",
    "HandlerFailed",
    "IdempotencyKeyReused",
    "Leader",
    "Message",
    "NewMessage",
    "NotAllowed",
    "NotFound",
    "OpenLetter",
    "OutcomeUnknown",
    "Overloaded",
    "ParticipantFailed",
    "PayloadsSealed",
    "Place",
    "PlaceStore",
    "Published",
    "QuotaExceeded",
    "Reading",
    "Reject",
    "RequestError",
    "RetryLater",
    "Settings",
    "Snapshot",
    "Stage",
    "StorageFull",
    "Subscriber",
    "SubscriberOptions",
    "SyncClient",
    "SyncDeadLetterCalls",
    "SyncReading",
    "SyncStage",
    "SyncSubscriber",
    "SyncTransaction",
    "SyncTransactionPublisher",
    "SyncTransactionService",
    "TailOptions",
    "TooManyCursors",
    "TooManyMessages",
    "TopicExists",
    "TopicId",
    "TopicInfo",
    "TopicNotFound",
    "TopicRange",
    "TopicRecreated",
    "Transaction",
    "TransactionAware",
    "TransactionConflict",
    "TransactionContext",
    "TransactionFenced",
    "TransactionNotInProgress",
    "TransactionPublisher",
    "TransactionService",
    "TransactionTooOld",
    "Trouble",
    "Unauthenticated",
    "Unavailable",
    "UnavailableError",
    "Undoable",
]
