"""The table over HBase, through its Thrift-2 gateways.

Where a cell of the port lies in HBase::

    table     one for each space; row key: salt [1] | "ns:topic:" | rest of the key (keys.py)
              (records have no salt: they are few, and lie in one region)
    family h  column h: the head. All heads of a topic lie together, so a scan of them reads no entry
    family e  every other cell, in its own column

The salt is a hash of ``ns:topic:``. So topics spread over all regions, and all rows of one topic lie in one region
of each table, in the order of their keys. Values are stored unchanged. Times are the server's.

==================  ==================================================================================
``table.py``         the port
``requests.py``      the calls to a gateway, as bytes
``thrift.py``        Thrift's binary protocol
``line.py``          one connection: one request at a time, and its answer
``gateways.py``      the choice of a gateway; turns (broker/turns.py), deadlines, the outcome of errors
``schema.py``        the tables: names, salt, creating and checking them
``store.py``         opening all of it from the configuration
==================  ==================================================================================
"""
