from pathlib import Path

from chaos.synced import Disk, cut_copy, replay, traced

LOG = "/d/db/000003.log"


def line(pid: int, text: str) -> str:
    return f"{pid} {text}\n"


def test_only_bytes_written_before_a_sync_began_are_synced() -> None:
    disk = replay(
        [
            line(1, f"write(7<{LOG}>, ..., 100) = 100"),
            line(1, f"fdatasync(7<{LOG}>) = 0"),
            line(1, f"write(7<{LOG}>, ..., 50) = 20"),
        ]
    )
    assert (disk.written[LOG], disk.synced[LOG]) == (120, 100)
    assert disk.syncs_of(".log") == 1


def test_a_write_during_a_sync_is_not_covered_by_it() -> None:
    disk = replay(
        [
            line(1, f"write(7<{LOG}>, ..., 100) = 100"),
            line(1, f"fdatasync(7<{LOG}> <unfinished ...>"),
            line(2, f"write(7<{LOG}>, ..., 50) = 50"),
            line(1, "<... fdatasync resumed>) = 0"),
        ]
    )
    assert (disk.written[LOG], disk.synced[LOG]) == (150, 100)


def test_a_failed_or_unfinished_call_does_not_count() -> None:
    disk = replay(
        [
            line(1, f"write(7<{LOG}>, ..., 100) = 100"),
            line(1, f"fdatasync(7<{LOG}>) = -1 EIO (Input/output error)"),
            line(2, f"write(7<{LOG}>, ..., 100) = -1 ENOSPC (No space left on device)"),
            line(1, f"fdatasync(7<{LOG}> <unfinished ...>"),
            line(2, "+++ killed by SIGKILL +++"),
        ]
    )
    assert (disk.written, disk.synced) == ({LOG: 100}, {})


def test_a_renamed_file_keeps_its_counts() -> None:
    disk = replay(
        [
            line(1, "write(7</d/new>, ..., 10) = 10"),
            line(1, "fsync(7</d/new>) = 0"),
            line(1, 'rename("/d/new", "/d/old") = 0'),
            line(1, 'unlink("/d/gone") = 0'),
        ]
    )
    assert disk.synced == {"/d/old": 10}


def test_a_cut_copy_has_the_synced_bytes_alone(tmp_path: Path) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    for name in ("synced", "never", "before"):
        (directory / name).write_bytes(b"0123456789")
    disk = Disk(
        written={str(directory / "synced"): 10, str(directory / "never"): 10},
        synced={str(directory / "synced"): 4},
    )
    cut_copy(directory, disk, tmp_path / "copy")
    found = {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()}
    assert found == {"synced": b"0123", "never": b"", "before": b"0123456789"}


def test_the_command_is_traced_with_its_children(tmp_path: Path) -> None:
    command = traced(tmp_path / "trace", ["program", "argument"])
    assert command[0] == "strace"
    assert "-f" in command
    assert command[-2:] == ["program", "argument"]
