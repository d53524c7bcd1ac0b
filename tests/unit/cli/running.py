"""Run a command in the process of the test."""

import pytest

from broker.cli import app


def run(capsys, *words):
    """Run the command line. Return its exit code, its output, and its text on standard error."""
    with pytest.raises(SystemExit) as left:
        app.run(list(words))
    told = capsys.readouterr()
    return left.value.code, told.out, told.err
