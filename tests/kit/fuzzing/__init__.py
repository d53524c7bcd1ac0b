"""Requests that are almost right, very many of them, against a broker in a process of its own.

::

    grammar ──▶ case ──▶ mutation ──▶ bytes ──▶ lanes ──▶ broker
       ▲                    ▲                     │
       └── routes           └────── corpus ◀──────┘  answers that were never seen

A *case* is one request as values. The grammar makes valid and almost valid cases for every route of the
interface, with the project's own encoders. A mutation changes some bytes of a case, or of what it becomes
on the wire. A case whose answer was never seen before (the route, the status, the error and its text
without numbers and names) joins the corpus, from which half of all further cases grow. So the answers guide
the search; ``grow`` guides it by the lines of code that a case reaches, which is too slow for a million of
requests, and keeps what it finds as the corpus with which each run begins.
"""
