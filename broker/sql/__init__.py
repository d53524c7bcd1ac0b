"""SQL databases together with the broker, through SQLAlchemy: one transaction over both, and the outbox.

The extra ``sql`` installs SQLAlchemy. ``SqlRecord`` makes a session a participant in a transaction of the client.
``Outbox`` stores notifications in a program's own SQL transactions, and relays each once to its topic. ``SqlPlace`` keeps
the place of a subscriber in the transaction of its handler.
"""

from broker.errors import importing

with importing("sql"):
    from broker.sql.outbox import Outbox
    from broker.sql.place import SqlPlace
    from broker.sql.record import SqlRecord
    from broker.sql.recovery import Recovered

__all__ = ["Outbox", "Recovered", "SqlPlace", "SqlRecord"]
