"""Read and write the headers that a node adds to a forwarded request.

::

    Broker-From: 7/5f2c…              instance and incarnation of the sender
    Broker-Signature: 9a41…           HMAC-SHA256 over the request, with the key of the cluster
    Broker-Number: 17                 the sender's number for this request; no number comes twice
    Broker-Principal: ann;ops         the caller, as the sender knows it: its name, and its groups
    Broker-Body: 12;5ff1…             the body's length, and its SHA-256 if it is at most 64 KiB
    Broker-Protocol: 2                the version of these headers
    Broker-Deadline: 1790000000123    guarded wall clock of the sender, ms
    Broker-Epoch: 12                  the leader's epoch, as far as the sender knows it
    Broker-Key: 77c0…                 the sender's idempotency key, if the client gave none
    Broker-Attempt: 1                 1 plus the number of earlier attempts that may have been done; from
                                      2 on the leader looks up the key in storage
    Broker-Lane: 31;4;4               lane, number, lowest number not resolved yet (see ``lanes``)

A release that changes these headers takes the next number of the protocol. A node may send this protocol to a node with a
greater number. Protocol 1 is not served: there each request carried the secret itself, so that a reader of one request
could write others. While nodes of both releases run, a request at an old node for a topic of a new node waits for a leader.

The signature covers the method, the target, the URL of the receiver, the headers above, and the headers that change what a
request means. So a signature is of no use at another node, for another request, or after its deadline; and a number counts
once. The caller's own credentials are not sent. The signature does not hide anything, and it covers only the length of a
larger body: TLS between the nodes does both.

Inside a node a deadline is a time of its monotonic clock. Between nodes it is a time of the guarded wall clock. It is
absolute, so that the leader refuses a late copy even if the network delayed it for long::

    sender    monotonic deadline ──▶ now_ms + the time left      Broker-Deadline
    leader    Broker-Deadline - now_ms ──▶ monotonic deadline    past it: refused, nothing done

Each node's clock differs from the storage's by ``clock_skew_ms_max`` at most, so two nodes' clocks differ by twice that
at most. So a leader may begin a request up to this time after its sender gave up. That is safe: the sender has then
answered *unknown*, never *refused*. Conversely, if the leader's clock is ahead by more than the time left, it refuses a
request that its sender still waits for. This loses nothing, because nothing was done. A leader that tolerated late
requests would also accept late copies. After such a refusal the leader compares its clock with the storage's
(api/routed.py). If its clock is off by more, it leaves the membership.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from broker.errors import BadRequest, Forbidden, NoLeader, Overloaded
from broker.operations.parameters import (
    KEY as CLIENT_KEY,
)
from broker.operations.parameters import (
    PRODUCER_ID,
    PRODUCER_NUMBER,
    REQUEST_TIMEOUT_S_MAX,
)
from broker.places import GENERATION_HEADER
from broker.principal import ANYONE, Principal

PROTOCOL: Final = 2

FROM: Final = "Broker-From"
SIGNATURE: Final = "Broker-Signature"
NUMBER: Final = "Broker-Number"
PRINCIPAL: Final = "Broker-Principal"
BODY: Final = "Broker-Body"
VERSION: Final = "Broker-Protocol"
DEADLINE: Final = "Broker-Deadline"
EPOCH: Final = "Broker-Epoch"
KEY: Final = "Broker-Key"
ATTEMPT: Final = "Broker-Attempt"
LANE: Final = "Broker-Lane"
SIGNED: Final = (
    *(FROM, VERSION, DEADLINE, EPOCH, KEY, ATTEMPT, LANE, NUMBER, PRINCIPAL, BODY),
    *("Content-Type", "Accept", GENERATION_HEADER, CLIENT_KEY.name, PRODUCER_ID, PRODUCER_NUMBER),
)
"""The headers that the signature covers, also those that are absent."""
NAMES: Final = (
    SIGNATURE,
    FROM,
    VERSION,
    DEADLINE,
    EPOCH,
    KEY,
    ATTEMPT,
    LANE,
    NUMBER,
    PRINCIPAL,
    BODY,
)
DIGESTED_BYTES_MAX: Final = 64 * 1024
"""The largest body whose digest is signed, so that the event loop hashes for less than 0.1 ms."""

_FROM = re.compile(r"(\d{1,3})/([0-9A-Za-z._-]{1,128})")
_LANE = re.compile(r"(\d{1,18});(\d{1,18});(\d{1,18})")
_NUMBER = re.compile(r"\d{1,18}")
_KEY = re.compile(r"[0-9a-f]{1,64}")


class Sender(NamedTuple):
    """One incarnation of a node."""

    instance: int
    incarnation: str


class LaneTicket(NamedTuple):
    """A request's place in its lane. ``lowest`` was the lowest unresolved number when the request was sent."""

    lane: int
    number: int
    lowest: int


class Repeat(NamedTuple):
    """The properties that make a write repeatable. ``key`` is None if the client sent one, or the write needs none."""

    key: str | None = None
    attempt: int = 1
    epoch: int | None = None

    @property
    def is_fresh(self) -> bool:
        """Return whether the leader need not look this key up.

        The sender has just made it, and the leader refuses copies of an earlier epoch.
        """
        return self.key is not None and self.attempt == 1 and self.epoch is not None


class NodeHeaders(NamedTuple):
    """All that a node adds to a request that it forwards."""

    sender: Sender
    deadline_ms: int
    repeat: Repeat = Repeat()
    ticket: LaneTicket | None = None
    principal: Principal = ANYONE
    number: int = 0

    def format(self) -> dict[str, str]:
        """Return the headers, without a signature."""
        repeat, ticket = self.repeat, self.ticket
        headers = {
            FROM: f"{self.sender.instance}/{self.sender.incarnation}",
            NUMBER: str(self.number),
            PRINCIPAL: _formatted(self.principal),
            VERSION: str(PROTOCOL),
            DEADLINE: str(self.deadline_ms),
            ATTEMPT: str(repeat.attempt),
        }
        if repeat.key is not None:
            headers[KEY] = repeat.key
        if repeat.epoch is not None:
            headers[EPOCH] = str(repeat.epoch)
        if ticket is not None:
            headers[LANE] = f"{ticket.lane};{ticket.number};{ticket.lowest}"
        return headers


class Envelope(NamedTuple):
    """The parts of a request that its signature covers beside the headers: the receiver's URL, the method, the raw path with the query."""

    url: str
    method: str
    target: str

    def signed(self, headers: Mapping[str, str], body: bytes, secret: str) -> dict[str, str]:
        """Return a request's headers with those of its body and its signature."""
        whole = {**headers, BODY: _told_body(body)}
        whole[SIGNATURE] = self.signature(whole, secret)
        return whole

    def signature(self, headers: Mapping[str, str], secret: str) -> str:
        """Return the signature of a request with these headers. No value has a line end, so no two requests look alike."""
        lines = [*self, *(_line(headers.get(name)) for name in SIGNED)]
        text = "\n".join(lines).encode("utf-8", "surrogateescape")
        return hmac.digest(secret.encode(), text, "sha256").hex()

    def check(self, headers: Mapping[str, str], secret: str) -> None:
        """Return if a node of this cluster signed the request for this receiver. Raises Forbidden."""
        given = headers.get(SIGNATURE, "").encode("utf-8", "replace")
        # compare_digest accepts bytes, or text that is only ASCII.
        if not hmac.compare_digest(given, self.signature(headers, secret).encode()):
            raise Forbidden("Only nodes of this cluster may send the headers of nodes.")


def _line(value: str | None) -> str:
    return "-" if value is None else f"={value.strip()}"


def _told_body(body: bytes) -> str:
    digest = hashlib.sha256(body).hexdigest() if len(body) <= DIGESTED_BYTES_MAX else ""
    return f"{len(body)};{digest}"


def check_body(headers: Mapping[str, str], body: bytes) -> None:
    """Return if a body is the one whose length and digest its sender signed. Raises Forbidden."""
    if headers.get(BODY) != _told_body(body):
        raise Forbidden(f"The body is not the one that {BODY} tells.")


@lru_cache(1024)
def _formatted(principal: Principal) -> str:
    names = (principal.name, *sorted(principal.groups))
    return ";".join(quote(name, safe="*@") for name in names)


@lru_cache(1024)
def _principal(text: str) -> Principal:
    name, *groups = map(unquote, text.split(";"))
    return Principal(name, frozenset(groups))


def are_there(headers: Mapping[str, str]) -> bool:
    """Return whether a request claims to come from a node."""
    for name in NAMES:  # noqa: SIM110 - A generator would take twice as long, for each request.
        if name in headers:
            return True
    return False


def parse(headers: Mapping[str, str]) -> NodeHeaders:
    """Read the headers of a request whose signature was checked; ``headers`` ignore case.

    Raises:
        NoLeader: this node does not serve the sender's protocol; nothing was done.
        BadRequest: a header can't be read.
    """
    protocol = _number(headers, VERSION)
    if protocol != PROTOCOL:
        raise NoLeader(f"This node serves the node protocol {PROTOCOL}, not {protocol}.")
    sender = _FROM.fullmatch(headers.get(FROM, ""))
    deadline_ms = _number(headers, DEADLINE)
    number = _number(headers, NUMBER)
    if sender is None or deadline_ms is None or number is None:
        raise BadRequest(f"{FROM}, {DEADLINE} and {NUMBER} must be present and valid.")
    key = headers.get(KEY)
    if key is not None and not _KEY.fullmatch(key):
        raise BadRequest(f"{KEY} must be hexadecimal.")
    attempt = _number(headers, ATTEMPT) or 1
    return NodeHeaders(
        Sender(int(sender[1]), sender[2]),
        deadline_ms,
        Repeat(key, attempt, _number(headers, EPOCH)),
        _ticket(headers),
        _principal(headers.get(PRINCIPAL, "")),
        number,
    )


def check_serves(protocol: int) -> None:
    """Return if a node of ``protocol`` serves this protocol, else raise NoLeader."""
    if protocol < PROTOCOL:
        raise NoLeader(f"The leader uses protocol {protocol}, which this node does not know.")


def _number(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name)
    if text is None:
        return None
    if not _NUMBER.fullmatch(text):
        raise BadRequest(f"{name} must be a whole number, not {text!a:.80}.")
    return int(text)


def _ticket(headers: Mapping[str, str]) -> LaneTicket | None:
    text = headers.get(LANE)
    if text is None:
        return None
    match = _LANE.fullmatch(text)
    if match is None:
        raise BadRequest(f"{LANE} must be three numbers, not {text!a:.80}.")
    ticket = LaneTicket(*map(int, match.groups()))
    if ticket.lowest > ticket.number:
        raise BadRequest(
            f"{LANE}: the lowest unresolved number, {ticket.lowest}, is above the request's own, {ticket.number}."
        )
    return ticket


def on_the_wire_ms(deadline: float, monotonic: float, now_ms: int) -> int:
    """Return a monotonic deadline as a time of the guarded wall clock, rounded up."""
    return now_ms + math.ceil((deadline - monotonic) * 1000)


def from_the_wire(deadline_ms: int, monotonic: float, now_ms: int) -> float:
    """Return another node's deadline in monotonic seconds of this node.

    Raises:
        Overloaded: it has passed.
    """
    left_s = min((deadline_ms - now_ms) / 1000, REQUEST_TIMEOUT_S_MAX)
    if left_s <= 0:
        raise Overloaded(
            "By the leader's clock, the request's deadline passed before the request arrived."
        )
    return monotonic + left_s
