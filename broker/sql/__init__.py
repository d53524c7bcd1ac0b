"""SQL databases beside the broker, through SQLAlchemy: one transaction over both, and the outbox.

The extra ``sql`` brings SQLAlchemy. ``SqlRecord`` lets a session take part in a transaction of the client;
``Outbox`` writes notifications in a program's own SQL transactions and relays them to topics, each once.
"""

from broker.sql.outbox import Outbox
from broker.sql.record import SqlRecord
from broker.sql.recovery import Recovered

__all__ = ["Outbox", "Recovered", "SqlRecord"]
