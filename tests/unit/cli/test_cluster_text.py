import pytest

from broker.cli.cluster_text import ProgressLine, storage_text


def storage(calls: int, errors: int, success: str | None, failure: str | None) -> dict[str, object]:
    return {
        "calls": calls,
        "errors": errors,
        "last_success": success,
        "last_failure": failure,
        "last_error": None,
    }


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (storage(0, 0, None, None), "no calls yet"),
        (storage(5, 0, "2026-01-01T00:00:00.000Z", None), "answers, 0 of 5 failed"),
        (storage(1, 1, None, "2026-01-01T00:00:00.000Z"), "failing, 1 of 1 failed"),
        (
            storage(5, 1, "2026-01-01T00:00:01.000Z", "2026-01-01T00:00:00.000Z"),
            "answers, 1 of 5 failed",
        ),
        (
            storage(5, 1, "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.001Z"),
            "failing, 1 of 5 failed",
        ),
    ],
)
def test_the_text_about_storage(told: dict[str, object], text: str) -> None:
    assert storage_text(told) == text


def test_progress_on_a_terminal_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    progress = ProgressLine(silent=False)
    for text in ("ten left", "ten left", "one"):
        progress(text)
    progress.end()
    assert capsys.readouterr().err == "\rten left\rone     \n"


def test_silent_progress_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    progress = ProgressLine(silent=True)
    progress("half")
    progress.end()
    assert capsys.readouterr().err == ""
