"""``python -m tests.kit.fuzzing PORT``: send requests to a broker, and print the findings as JSON."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import uvloop

from tests.kit.fuzzing.corpus import load, save
from tests.kit.fuzzing.run import Run, prepare


async def _run(arguments: argparse.Namespace) -> int:
    cases = [] if arguments.corpus is None else load(arguments.corpus)
    run = Run(arguments.port, arguments.seed, cases)
    await prepare(arguments.port)
    found = await run.send(arguments.requests)
    if arguments.keep is not None:
        save(arguments.keep, run.corpus.cases, arguments.keep_bytes_max)
    json.dump(vars(found), sys.stdout, indent=1)
    return 1 if found.problems else 0


def main() -> int:
    """Run the fuzzer; return 1 if it found a problem."""
    parser = argparse.ArgumentParser(prog="python -m tests.kit.fuzzing", description=__doc__)
    parser.add_argument("port", type=int, help="the broker's port on loopback")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", type=Path, help="a file of cases to begin with")
    parser.add_argument("--keep", type=Path, help="a file for the cases with new answers")
    parser.add_argument("--keep-bytes-max", type=int, default=150_000)
    return uvloop.run(_run(parser.parse_args()))


if __name__ == "__main__":
    sys.exit(main())
