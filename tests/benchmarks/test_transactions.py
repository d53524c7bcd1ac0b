import json
from pathlib import Path

import pytest

from benchmarks.transactions import __main__ as transactions
from benchmarks.transactions import page
from broker.local.servers import ServerMissing


def test_the_quick_form_measures_and_makes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise ServerMissing("Tephra is not measured here")

    monkeypatch.setattr(transactions, "TephraClient", missing)
    out = tmp_path / "figures.json"
    # A figure may miss its bound here, because other tests run at the same time.
    assert transactions.main(["--quick", "--json", str(out)]) in {0, 1}
    results = json.loads(out.read_text())
    letters = [question["letter"] for question in results["questions"]]
    assert letters == ["rate", "service", "seen"]
    for question in results["questions"]:
        for series in question["series"]:
            assert series["absent"] or series["runs"][0]["p50_ms"] is not None
    made = page.as_markdown(results)
    assert "A quick look" in made
    assert "not measured: Tephra's server" in made
