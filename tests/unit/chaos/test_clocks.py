import os
import subprocess
import sys
from pathlib import Path

from broker.clock import SystemClock
from chaos.clocks import ClockOffsets, sweep

SAY = "import sys, time\nfor line in sys.stdin: print(time.time(), flush=True)"
TOLERANCE_S = 600
"""A loaded machine may answer late. The steps of the clock are much longer."""


def test_a_clock_is_set_while_its_process_runs(tmp_path: Path) -> None:
    clocks = ClockOffsets(tmp_path / "clocks")
    environment = {**os.environ, **clocks.environment("broker-1")}
    with subprocess.Popen(
        [sys.executable, "-c", SAY],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for offset_s in (0, 3600, -7200.5, 0):
            clocks.set("broker-1", offset_s)
            assert clocks.offset_s("broker-1") == offset_s
            assert clocks.environment("broker-1").items() <= environment.items()
            process.stdin.write("\n")
            process.stdin.flush()
            off_s = float(process.stdout.readline()) - SystemClock().now_ms() / 1000
            assert abs(off_s - offset_s) < TOLERANCE_S
        process.stdin.close()


def test_what_killed_processes_left_is_swept(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    for name in (f"faketime_shm_{ended.pid}", f"sem.faketime_sem_{ended.pid}"):
        (tmp_path / name).touch()
    kept = [f"faketime_shm_{os.getpid()}", f"sem.faketime_sem_{os.getpid()}", f"other_{ended.pid}"]
    for name in kept:
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted(kept)
