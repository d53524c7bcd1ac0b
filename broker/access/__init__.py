"""Access: which caller may do what.

::

    credentials ──▶ Gate.identify ──▶ principal ──▶ Gate.authorize(action, topic) ──▶ handler
                        ▲                                ▲
                     tokens          grants, roles ──────┘        Rules: one snapshot, read anew after each change
                        └─────── records under access/ ──┘        (AccessRecords)

A request reads no storage for it: each node keeps all rules in memory. A change raises a counter, and each node looks at
the counter every second. So a change has its effect on every node within two seconds.
"""
