from chaos.packets import counted, ruleset


def test_packets_to_some_ports_are_lost_and_counted() -> None:
    rules = ruleset("chaos_1", [28001, 28002], 20, "up")
    assert "table inet chaos_1 {" in rules
    assert "tcp dport { 28001, 28002 } numgen random mod 100 < 20 counter drop" in rules
    assert "sport" not in rules


def test_both_directions_are_two_rules_and_no_ports_none() -> None:
    both = ruleset("chaos_1", [28001], 5)
    assert "dport" in both
    assert "sport" in both
    assert "drop" not in ruleset("chaos_1", [], 5)


def test_counters_are_added_up() -> None:
    def rule(packets: int) -> dict[str, object]:
        return {"rule": {"expr": [{"match": {}}, {"counter": {"packets": packets, "bytes": 1}}]}}

    assert counted({"nftables": [{"metainfo": {}}, {"table": {}}, rule(3), rule(4)]}) == 7
    assert counted({"nftables": []}) == 0
