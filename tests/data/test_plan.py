"""Row order, mismatched pairs and shares are pure functions with the promised properties."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from humanline.data.plan import Plan, mismatch, share


def test_R22_each_epoch_visits_every_row_once_in_a_new_seeded_order():
    plan = Plan(rows=10, batch_size=4, seed=1, shuffle=True)
    epochs = [np.concatenate([plan.step(t) for t in range(1 + 3 * e, 4 + 3 * e)]) for e in range(3)]
    assert all(sorted(epoch) == list(range(10)) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])
    assert [len(plan.step(t)) for t in (1, 2, 3)] == [4, 4, 2]
    assert np.array_equal(plan.step(5), Plan(10, 4, 1, True).step(5))
    assert not np.array_equal(plan.step(1), Plan(10, 4, 2, True).step(1))


def test_R22_a_sorted_file_does_not_leave_one_class_per_step():
    """100 desirable then 100 undesirable rows: with steps of 20 every step of the epoch holds both."""
    plan = Plan(rows=200, batch_size=20, seed=0, shuffle=True)
    assert all(0 < (plan.step(t) < 100).sum() < 20 for t in range(1, 11))


def test_file_order_without_shuffling():
    plan = Plan(rows=5, batch_size=2, seed=0, shuffle=False)
    assert [plan.step(t).tolist() for t in range(1, 5)] == [[0, 1], [2, 3], [4], [0, 1]]


def test_total_steps():
    plan = Plan(rows=10, batch_size=4, seed=0, shuffle=True)
    assert (plan.total_steps(None, 1.0), plan.total_steps(None, 2.0), plan.total_steps(None, 0.5), plan.total_steps(7, 1.0)) == (
        3,
        6,
        2,
        7,
    )


@given(st.lists(st.sampled_from("abcdef"), max_size=24))
def test_R24_no_prompt_meets_its_own_completion(keys: list[str]):
    """Every row has a partner of another prompt whenever no prompt has more than half of the rows; partners are never reused."""
    partner = mismatch(keys)
    if len(set(keys)) < 2:
        assert partner == []
        return
    used = [j for j in partner if j >= 0]
    assert len(partner) == len(keys) and len(set(used)) == len(used)
    assert all(keys[i] != keys[j] for i, j in enumerate(partner) if j >= 0)
    largest = max(keys.count(key) for key in keys)
    assert len(used) == (len(keys) if 2 * largest <= len(keys) else 2 * (len(keys) - largest))


@given(st.permutations(["a", "b", "c", "d", "e"]))
def test_mismatch_does_not_depend_on_the_order_of_rows(keys: list[str]):
    pairs = {(key, keys[j]) for key, j in zip(keys, mismatch(keys), strict=True)}
    assert pairs == {("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "a")}


@given(st.lists(st.integers(1, 100), max_size=30), st.integers(1, 5))
def test_share_covers_every_group_once_and_is_balanced(costs: list[int], world: int):
    parts = share(costs, world)
    assert sorted(i for part in parts for i in part) == list(range(len(costs)))
    loads = [sum(costs[i] for i in part) for part in parts]
    assert max(loads) - min(loads) <= max(costs, default=0)
