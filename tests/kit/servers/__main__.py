"""``python -m tests.kit.servers fetch [NAME …]``: fetch the servers that tests and benchmarks need."""

import sys

from broker.local.servers.__main__ import main
from tests.kit.servers.recipes import ALL

if __name__ == "__main__":
    sys.exit(main(recipes=ALL, prog="python -m tests.kit.servers"))
