"""Extract the cause of a job's death from Spark's long error texts."""

from broker.streams.causes import LINES_MAX, cause_of

BEFORE = "[STREAM_FAILED] Query [id = 27d9, runId = b119] terminated with exception: "
PLAN = "\n=== Streaming Query ===\nIdentifier: dying/sink-1\n\nLogical Plan:\nError: of no one"


def test_an_error_names_the_function_as_the_job_does() -> None:
    text = (
        f"{BEFORE}[PYTHON_EXCEPTION] An exception was thrown: Traceback (most recent call last):\n"
        '  File "passes.py", line 203, in __call__\n    rows += self._rows(read)\n'
        "          ^^^^^^\n"
        "broker.streams.failures.Failed: map-1 failed at the message 0001 (error): ZeroDivisionError.\n"
        f" SQLSTATE: 38000 SQLSTATE: XXKST{PLAN}"
    )
    assert cause_of(text) == "map-1 failed at the message 0001 (error): ZeroDivisionError."


def test_of_several_traces_the_last_error_is_shown_whole() -> None:
    text = (
        "Traceback (most recent call last):\n  one\nValueError: first\n\n"
        "During handling:\n\nTraceback (most recent call last):\n  two\nshop.Wrong: the second\nwith more\n"
    )
    assert cause_of(text) == "shop.Wrong: the second\nwith more"


def test_without_a_trace_sparks_own_error_is_shown() -> None:
    text = f"{BEFORE}[STATE_STORE] The store can't be read. SQLSTATE: 58030{PLAN}"
    assert cause_of(text) == "[STATE_STORE] The store can't be read."


def test_a_trace_without_an_end_is_not_lost() -> None:
    assert cause_of("Traceback (most recent call last):\n  cut").startswith("Traceback")


def test_a_page_is_cut() -> None:
    assert len(cause_of("line\n" * 100).splitlines()) == LINES_MAX
