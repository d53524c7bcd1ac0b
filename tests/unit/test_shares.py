from broker.shares import has_share


def test_each_caller_leaves_a_quarter_of_what_it_finds() -> None:
    taken, most, held = 0, 4_000, []
    for _ in range(6):
        mine = 0
        while has_share(mine, taken, most):
            mine, taken = mine + 1, taken + 1
        held.append(mine)
    assert held == [3_000, 750, 188, 47, 12, 3]
    assert not has_share(0, most, most)
