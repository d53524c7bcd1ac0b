"""The table over HBase, through its Thrift-2 gateways.

How a cell of the port lies there::

    table     one for each space; salt [1] | "ns:topic:" | rest of the key as keys.py has it
              (records have no salt: they are few, and lie in one region)
    family h  column h: the head. All heads of a topic lie together: a scan of them reads no entry
    family e  every other cell, by its own column

The salt is a hash of ``ns:topic:``. So topics spread over all regions, and everything of one topic lies in one
region of each table, in the order of its keys. Values are as the broker gives them. Times are the server's.

==================  ==================================================================================
``table.py``         the port
``requests.py``      what is said to a gateway, as bytes
``thrift.py``        Thrift's binary protocol
``line.py``          a connection: a request, its answer
``gateways.py``      which gateway is asked, in whose turn (broker/turns.py); deadlines, what an error means
``schema.py``        the tables: names, salt, making and checking them
``store.py``         all of it by the configuration
==================  ==================================================================================
"""
