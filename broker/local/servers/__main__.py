"""``python -m broker.local.servers fetch hbase``: fetch the server of clusters on this machine, once."""

from __future__ import annotations

import argparse
import sys

from broker.local.servers.downloads import RECIPES, fetch_all
from broker.standard_streams import open_standard_streams


def main() -> int:
    """Return 0 if it was fetched, else 1; a line that begins with MISSING says why."""
    parser = argparse.ArgumentParser(prog="python -m broker.local.servers", description=__doc__)
    parser.add_argument("command", choices=["fetch"])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RECIPES))
    given = parser.parse_args()
    if unknown := set(given.names) - RECIPES.keys():
        parser.error(f"no such server: {', '.join(unknown)} (choose from {', '.join(RECIPES)})")
    return 1 if fetch_all(RECIPES) else 0


if __name__ == "__main__":
    open_standard_streams()
    sys.exit(main())
