"""A rowlog's worker process (chaos/rowlog_worker.py) in a local cluster. Faults kill and pause it like a node.

It writes the calls of its listeners to its log. A call in flight at a kill or pause does not count, so this
module reports each kill and pause to its owner.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from broker.local.member import Member
from broker.local.plan import ListenAddress, ProcessKind, Program
from broker.local.servers.process import HOST

READY: Final = '"kind": "ready"'


class ProcessorMember(Member):
    """A worker process of a rowlog.

    Args:
        name: its name in the cluster.
        folder: the cluster's folder.
        given: its settings.
        halted: called with its name when it is killed, paused or started; from any thread.
    """

    def __init__(
        self, name: str, folder: Path, given: Mapping[str, Any], halted: Callable[[str], None]
    ) -> None:
        """Describe the process; do not start it."""
        file = str(folder / f"{name}.json")
        argv = (sys.executable, "-m", "chaos.rowlog_worker", name, f"@{file}")
        program = Program(
            name,
            ProcessKind.PROCESSOR,
            ListenAddress(name, HOST, 0),
            argv,
            {file: json.dumps(dict(given))},
        )
        super().__init__(program, folder, self._is_ready, {})
        self._halted = halted
        self._from = 0

    @override
    def launch(self) -> None:
        self._halted(self.name)
        self._from = self.log_path.stat().st_size if self.log_path.exists() else 0
        super().launch()

    @override
    def pause(self) -> None:
        super().pause()
        self._halted(self.name)

    @override
    def _end(self, number: signal.Signals, grace_s: float) -> None:
        super()._end(number, grace_s)
        self._halted(self.name)

    def _is_ready(self) -> bool:
        with self.log_path.open() as lines:
            lines.seek(self._from)
            return READY in lines.read()
