"""``python -m tests.kit.servers fetch [NAME …]``: fetch the servers that tests and benchmarks need."""

from __future__ import annotations

import argparse
import os
import sys

from broker.local.servers.downloads import fetch_all
from tests.kit.servers.recipes import ALL


def main(arguments: list[str] | None = None) -> int:
    """Fetch the named servers; without a name, all of them.

    Returns:
        0 if all servers were fetched, else 1; lines that begin with MISSING name the others.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.kit.servers", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="fetch servers into the cache; idempotent")
    fetching.add_argument("names", nargs="*", metavar="NAME", help=", ".join(ALL))
    fetching.add_argument(
        "--if-possible",
        action="store_true",
        help="exit 0 even if a server is missing (its tests are skipped), unless CI=true",
    )
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(ALL))
    if unknown:
        parser.error(f"no such server: {', '.join(unknown)} (choose from {', '.join(ALL)})")
    missing = fetch_all({name: ALL[name] for name in given.names or ALL})
    tolerated = given.if_possible and os.environ.get("CI") != "true"
    return 1 if missing and not tolerated else 0


if __name__ == "__main__":
    sys.exit(main())
