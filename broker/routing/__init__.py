"""Forward requests between nodes: any node takes any request, and the topic's leader answers it.

::

    client ──▶ node ──here?──▶ handler
                 │ ▲
     another node │ look up the leader again: nothing was sent, 421, no leader
                 ▼ │
              forward ──▶ leader: secret, protocol, deadline, lane, epoch ──▶ handler

The decisions are pure (``nodeheaders``, ``lanes``, ``decisions``). Around them are the connections to
the other nodes (``peers``), the path of one request (``routing``), and the admission of requests from other nodes
(``peer_requests``).
"""
