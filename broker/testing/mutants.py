"""Mutants: the product without one of its guards, each by one patched function.

A guard is a rule that a careless change could drop (docs/internals/guards.md). The product has no switch for
any; a mutant takes one away in this process, and a test must find that::

    with mutated("dedupe"):
        ...

    python -m broker.testing.mutants dedupe serve --port 8080        the command ``broker`` without it
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from broker.testing import mutants_routing

MUTANTS: Final = {**mutants_routing.MUTANTS}
NAMES: Final = frozenset(MUTANTS)


@contextmanager
def mutated(name: str) -> Generator[None]:
    """Take a guard away in this block. Raises KeyError: there is no such one."""
    with MUTANTS[name]():
        yield


def main(arguments: list[str]) -> int | None:
    """Run the command ``broker`` without a guard."""
    from broker.cli.app import main as broker  # noqa: PLC0415 - Tests of parts need no command line.

    name, *rest = arguments
    with mutated(name):
        return broker(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
