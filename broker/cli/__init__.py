"""The command line, ``broker``.

Each group of commands has one module; ``app`` gathers them. Commands only translate: the command line
into calls of the client (or of the node), answers into text or JSON, errors into exit codes.
"""

from __future__ import annotations

import sys

from broker.errors import install_command
from broker.standard_streams import open_standard_streams


def main() -> None:
    """Run the command line in this process, and exit."""
    open_standard_streams()
    try:
        from broker.cli.app import run  # noqa: PLC0415 - The extra may be missing.
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("broker"):
            raise
        sys.exit(
            f"broker: the command line needs the package {error.name!r} of the extra 'server': "
            f"{install_command('server')}"
        )
    run()
