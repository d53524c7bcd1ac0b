"""Send very many almost valid requests to a broker in its own process.

::

    grammar ──▶ case ──▶ mutation ──▶ bytes ──▶ connections ──▶ broker
       ▲                    ▲                     │
       └── routes           └────── corpus ◀──────┘  new answers

A *case* is one request as values. The grammar makes valid and almost valid cases for every route of the interface,
with the project's own encoders. A mutation changes some bytes of a case or of its encoding. A new answer is one whose
route, status, error and error text (without numbers and names) were not seen before. Its case joins the corpus. Half of
all later cases are mutations of the corpus. So the answers guide the search. ``grow`` guides it by the lines of code
that a case reaches. That is too slow for a million requests, so ``grow`` saves its cases as the corpus with which each
run begins.
"""
