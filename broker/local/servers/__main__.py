"""``python -m broker.local.servers fetch [NAME …]``: fetch the servers of clusters on this machine."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping

from broker.escapes import escaped_lines
from broker.local.servers import downloads
from broker.local.servers.cache_folder import ServerMissing, cache_folder
from broker.standard_streams import open_standard_streams


def main(
    arguments: list[str] | None = None,
    recipes: Mapping[str, downloads.Recipe] = downloads.RECIPES,
    prog: str = "python -m broker.local.servers",
) -> int:
    """Fetch the named servers of ``recipes``; without a name, all of them.

    Returns:
        0 if all servers were fetched, else 1; lines that begin with MISSING name the others.
    """
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="fetch servers into the cache; idempotent")
    fetching.add_argument("names", nargs="*", metavar="NAME", help=", ".join(recipes))
    fetching.add_argument(
        "--if-possible",
        action="store_true",
        help="exit 0 even if a server is missing (its tests are skipped), unless CI=true",
    )
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(recipes))
    if unknown:
        parser.error(f"no such server: {', '.join(unknown)} (choose from {', '.join(recipes)})")
    missing = _fetch_all({name: recipes[name] for name in given.names or recipes})
    tolerated = given.if_possible and os.environ.get("CI") != "true"
    return 1 if missing and not tolerated else 0


def _fetch_all(recipes: Mapping[str, downloads.Recipe]) -> list[str]:
    _say(f"servers are kept in {cache_folder()}")
    missing = []
    for name, recipe in recipes.items():
        try:
            downloads.fetch(name, recipe, _say)
        except ServerMissing as error:
            missing.append(name)
            _say(f"MISSING {name}: {error}")
    return missing


def _say(line: str) -> None:
    sys.stdout.write(escaped_lines(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    open_standard_streams()
    sys.exit(main())
