"""``python -m broker.local run NAME --dir DIR``: become a process of a cluster on this machine."""

import argparse
from pathlib import Path

from broker.local.member import run

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m broker.local", description=__doc__)
    parser.add_argument("command", choices=["run"])
    parser.add_argument("name")
    parser.add_argument("--dir", type=Path, required=True)
    given = parser.parse_args()
    run(given.dir.resolve(), given.name)
