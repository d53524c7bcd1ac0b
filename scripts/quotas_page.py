"""The page of quotas, made from the table of their kinds."""

from __future__ import annotations

from typing import Final

from broker.access.quotas import KINDS

_HEAD: Final = """
# Quotas

A quota bounds what one principal uses, or what is done with one topic, so that a program that runs wild takes nothing from
others. Quotas count if `access_mode = required`; they can be set before. Without quotas nothing is counted.

```sh
broker access quotas set alice publish_requests_s=100 publish_bytes_s=10MB waits=50
broker access quotas set '*' in_flight=200 connections=100        # each principal without a limit of its own
broker access quotas set topic:audit/logins stored_bytes=5GB
broker access quotas list
broker access quotas remove alice
```

`set` replaces all limits of a name. A limit belongs to a principal, to `*`, to `topic:NAMESPACE/TOPIC`, to
`topic:NAMESPACE/*`, or to `topic:*`. For each kind the most exact name decides; `none` (`null` in JSON) means no limit, although
a less exact name has one. A change counts within two seconds on every node. `GET /v1/access/quotas` lists all limits. `PUT
/v1/access/quotas/{name}` replaces those of a name, with a body such as `{"limits": {"waits": 50}}`; `DELETE` removes them. All of
this needs the action `access`.

A request over a quota gets 429 [`quota_exceeded`](errors.md): it had no effect. `Retry-After` tells when to try again; the
Python client does that by itself within its deadline. `broker_quota_refused_total{kind}` counts refusals. A refusal waits for
a quarter of a second, so that a program that repeats its requests at once takes no time of others.

| quota | of | counts | how exactly |
|---|---|---|---|
"""

_FOOT: Final = """
## Rates

A rate is a token bucket that holds what one second brings. So a caller may use at once what it saved in the last second, and
over a longer time never more than the rate. An amount that is larger than a full bucket passes, and must be paid for before
the next one passes: a limit of 1 MB/s takes a body of 8 MB, and then nothing for 8 seconds.

* The size of a reply is known only when it is made. A reader may ask while it owes nothing, and pays for what it gets. An event
  stream, and a bulk read, pause instead of ending.
* The caller of a request is charged by the node that the request reaches, also if that node forwards it; the topic's leader
  charges the topic. No request is charged twice. If a topic refuses a publish, the caller has paid for the attempt.
* In a cluster of N nodes each node allows one Nth of a principal's rate, so that all together allow no more. A client that
  talks to one leader alone gets that part. So choose a limit for clients that use all nodes, or a higher one.
* When a node joins or leaves, the parts change at once.
* A call within a node's own process, and a call to the Thrift port, is not charged.
"""


def quotas_page() -> str:
    """Return ``docs/reference/quotas.md``."""
    rows = "".join(
        f"| `{kind}` | {_owners(facts.of_principals, facts.of_topics)} | {facts.doc} | {facts.exactness} |\n"
        for kind, facts in KINDS.items()
    )
    return _HEAD + rows + _FOOT


def _owners(of_principals: bool, of_topics: bool) -> str:
    owners = (("a principal", of_principals), ("a topic", of_topics))
    return ", ".join(name for name, has in owners if has)
