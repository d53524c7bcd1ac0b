"""How a failed command ends: its message on standard error, as text or JSON, and its exit code.

Exit codes::

    0    done
    1    refused, or failed: nothing was changed, except by the earlier requests of a command that sends several,
         such as publish --lines
    2    the command line is wrong
    3    outcome unknown: it may have been done, or a part of it
    4    the broker can't be reached, or can't do it now; a later try may succeed
    130  interrupted by Ctrl-C

Advice is a command that the user can copy and run: it names the user's own topic. It is never the command
that has just failed.
"""

from __future__ import annotations

import io
import json
import sys
import traceback
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import click

from broker.cli.command.broker_calls import address
from broker.cli.command.contexts import GivenOptions
from broker.cli.command.output import write_line, write_lines
from broker.config.sections import ConfigError
from broker.errors import BrokerError, Outcome, TaskFailed, Unavailable, UnavailableError
from broker.escapes import escaped
from broker.secret import without_secrets
from broker.standard_streams import OutputFailed, drop_output

FAILED: Final = 1
USAGE: Final = 2
UNKNOWN: Final = 3
UNAVAILABLE: Final = 4
INTERRUPTED: Final = 130

ADVICE: Final = {
    "topic_not_found": "Create it with: broker topics create {topic}{at}",
    "unauthenticated": "Give your token with --token-file FILE, by BROKER_TOKEN_FILE, or in a context: "
    "broker context add NAME --url URL --token-file FILE",
    "topic_exists": "See it with: broker topics show {topic}{at}",
    "bad_name": "Topics are named NAMESPACE/TOPIC.",
    "body_too_large": "Raise the limit with: broker serve --body-bytes-max BYTES",
    "too_many_messages": "Publish fewer messages at a time.",
    "already_published": "Use another --idempotency-key: the first publish was in another transaction, or rolled back.",
    "idempotency_key_reused": "Use another --idempotency-key: other messages were published with this one.",
    "outcome_unknown": "See the topic's newest messages with: broker browse {topic} --desc{at}. "
    "With --idempotency-key it is safe to repeat the same command.",
    "no_leader": "The node's log says more. See the nodes of a cluster with: broker cluster status{at}",
    "overloaded": "Try again a little later.",
    "quota_exceeded": "See all limits with: broker access quotas list{at}",
    "clock_skew": "Correct the clock of that machine, and start its node again.",
    "storage_full": "Free some space on the broker's disk; publishing then continues by itself.",
    "storage_corrupt": "The broker's log says more. Its operator sees the damage with: broker storage verify DIR",
}
"""The advice for each error code of the broker; ``{at}`` stands for the options that name the same broker."""

_NEEDS_AN_EXISTING_TOPIC: Final = {"topics show", "topics set", "topics delete", "stats", "purge"}
"""Commands about an existing topic: if it does not exist, its name is wrong, and the list of topics helps."""

_LOOPBACK: Final = {"localhost", "127.0.0.1", "::1"}
_PORT_DEFAULT: Final = 8080


class NotNow(Exception):
    """A service that this command itself needs (storage, ZooKeeper) is not available now.

    It differs from a broker that can't be reached: there the advice is to start a broker.
    """

    def __init__(self, error: UnavailableError) -> None:
        super().__init__(error.message)
        self.error = error


class Problem(NamedTuple):
    """One way in which a command failed.

    ``advice``, ``details`` and ``more``, the lines after the first one of a message, may be empty.
    """

    code: str
    message: str
    exit_code: int
    retriable: bool = False
    outcome: Outcome = "refused"
    advice: str = ""
    details: str = ""
    more: str = ""

    def text(self) -> str:
        """Return the text for people."""
        # A line end in a broker's message may be forged: the message is one line.
        told = f"broker: {escaped(self.message)}"
        lines = (self.details.rstrip(), told, self.more, self.advice)
        return "\n".join(line for line in lines if line)

    def json(self) -> str:
        """Return the JSON for machines, on one line."""
        known: dict[str, object] = {
            "code": self.code,
            "message": f"{self.message}\n{self.more}" if self.more else self.message,
            "retriable": self.retriable,
            "outcome": self.outcome,
        }
        return json.dumps({**known, "details": self.details} if self.details else known)


def exit_code(error: BrokerError) -> int:
    """Return the exit code of an error."""
    if error.outcome == "unknown":
        return UNKNOWN
    return UNAVAILABLE if isinstance(error, UnavailableError) else FAILED


def problem_of(error: BaseException, given: GivenOptions) -> Problem:  # noqa: PLR0911 - A table.
    """Return an error as the problem that the user sees."""
    match error:
        case BrokerError():
            return _refused(error, advice(error, given))
        case NotNow():
            return _refused(error.error, "")
        case click.UsageError():
            return Problem("usage", error.format_message(), error.exit_code)
        case TaskFailed():
            code = UNKNOWN if error.outcome == "unknown" else FAILED
            return _of_lines("failed", error.message, code, error.outcome)
        case click.ClickException():
            return _of_lines("failed", error.format_message(), error.exit_code)
        case ConfigError():
            return _of_lines("config", str(error), USAGE)
        case click.Abort() | KeyboardInterrupt():
            return Problem("interrupted", "interrupted", INTERRUPTED, outcome="unknown")
        case OutputFailed():
            return Problem("output", error.strerror or "", UNKNOWN, outcome="unknown")
        case OSError():
            return Problem("io", str(error), UNKNOWN, outcome="unknown", more=_notes(error))
        case _:
            message = without_secrets(f"unexpected: {type(error).__name__}: {error}")
            trace = without_secrets("".join(traceback.format_exception(error)))
            return Problem("internal", message, UNKNOWN, outcome="unknown", details=trace)


def _of_lines(code: str, text: str, exits: int, outcome: Outcome = "refused") -> Problem:
    first, _, more = text.partition("\n")
    return Problem(code, first, exits, outcome=outcome, more=more)


def _refused(error: BrokerError, advised: str) -> Problem:
    code = exit_code(error)
    more = _notes(error)
    return Problem(
        error.code, error.message, code, error.retriable, error.outcome, advised, more=more
    )


def _notes(error: BaseException) -> str:
    return "\n".join(getattr(error, "__notes__", ()))


def advice(error: BrokerError, given: GivenOptions) -> str:
    """Return advice for an error; empty if its message is enough."""
    if type(error) is Unavailable:
        return _reach_advice(given)
    if error.code == "topic_not_found" and given.command in _NEEDS_AN_EXISTING_TOPIC:
        return _list_advice(given)
    if given.target is None and error.code == "storage_corrupt":
        return ""  # A command that opens the store itself, and knows more.
    text = ADVICE.get(error.code, "")
    if given.command and f"broker {given.command}" in text:
        return ""  # This command has just failed.
    return text.replace("{topic}", given.topic_name).replace("{at}", _at(given))


def _at(given: GivenOptions) -> str:
    """Return the options with which another command reaches the same broker."""
    if given.typed_context:
        return f" --context {given.typed_context}"
    return f" --url {given.typed_url}" if given.typed_url else ""


def _list_advice(given: GivenOptions) -> str:
    namespace = given.topic_name.partition("/")[0]
    which = "" if namespace == "NS" else f" {namespace}"
    return f"See all topics with: broker topics list{which}{_at(given)}"


def _reach_advice(given: GivenOptions) -> str:
    """Return advice on how to reach a broker: give another address, or start a broker at this one."""
    target = given.target
    if target is None:
        return ""
    if target.context:
        first = f"Tried {address(target.url, target)}; see: broker context show {target.context}"
    else:
        first = f"Tried {target.url} ({target.source})."
    return f"{first}\nIf a broker runs elsewhere, name it: --url http://HOST:PORT{_serve_advice(target.url)}"


def _serve_advice(url: str) -> str:
    """Return advice on how to start a broker at an address; empty if it is not on this machine."""
    parts = urlsplit(url)
    if "," in url or parts.scheme != "http" or parts.hostname not in _LOOPBACK:
        return ""
    port = parts.port or 80
    own = "" if port == _PORT_DEFAULT else f" --port {port}"
    return f"; start one here with: broker serve{own}"


def ending(work: Callable[[], int], given: GivenOptions) -> int:
    """Run the work, and return its exit code, also after an error."""
    try:
        code = work()
        sys.stdout.flush()
    except click.exceptions.Exit as left:  # After --help, for example.
        return left.exit_code
    except BrokenPipeError:
        drop_output()
        return 0
    except OutputFailed as error:
        drop_output()
        return _report(error, given)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - Reported, with its traceback.
        return _report(error, given)
    return code


def _report(error: BaseException, given: GivenOptions) -> int:
    problem = problem_of(error, given)
    if given.as_json:
        write_line(problem.json(), err=True)
    elif isinstance(error, click.UsageError):
        usage = io.StringIO()
        error.show(usage)  # With the command's usage.
        write_lines(usage.getvalue().rstrip("\n"), err=True)
    elif problem.exit_code == INTERRUPTED:
        write_line(err=True)  # Ends the line on which the terminal shows ^C.
    else:
        write_lines(problem.text(), err=True)
    return problem.exit_code
