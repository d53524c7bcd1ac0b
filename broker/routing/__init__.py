"""Forward requests between nodes: any node takes any request, and the topic's leader answers it.

::

    client ──▶ node ──here?──▶ handler
                 │ ▲
          elsewhere │ look again: nothing was sent, 421, no leader
                 ▼ │
              forward ──▶ leader: secret, protocol, deadline, lane, epoch ──▶ handler

The decisions are pure (``nodeheaders``, ``deadlines``, ``lanes``, ``deciding``). Around them are the connections to
the other nodes (``peers``), the path of one request (``service``), and the admission of requests from other nodes
(``receiving``).
"""
