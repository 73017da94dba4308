"""Win rate by hand, and its symmetries."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from humanline.errors import DataError
from humanline.evaluate import win_rate

PREFERENCES = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, None]), min_size=2, max_size=12).filter(
    lambda values: any(value is not None for value in values)
)


def test_by_hand() -> None:
    """Preferences 1, 0.8, 0.5, 0: mean 57.5 %; 2 wins and half a tie of 4 are 62.5 %; deviations 0.425, 0.225, −0.075, −0.575."""
    found = win_rate([1.0, 0.8, None, 0.5, 0.0])
    spread = math.sqrt((0.425**2 + 0.225**2 + 0.075**2 + 0.575**2) / 3)
    assert found.win_rate == pytest.approx(57.5, abs=1e-12)
    assert found.standard_error == pytest.approx(100 * spread / 2, abs=1e-12)
    assert found.discrete_win_rate == 62.5
    assert found[5:] == (2, 1, 1, 4, 1)


@given(PREFERENCES)
def test_the_baseline_has_the_rest(preferences: list[float | None]) -> None:
    """Seen from the other side: wins are losses, and both win rates sum to 100."""
    other = win_rate([None if value is None else 1 - value for value in preferences])
    own = win_rate(preferences)
    assert own.win_rate + other.win_rate == pytest.approx(100, abs=1e-10)
    assert own.discrete_win_rate + other.discrete_win_rate == 100
    assert (own.wins, own.losses, own.ties) == (other.losses, other.wins, other.ties)


@given(PREFERENCES, st.randoms(use_true_random=False))
def test_order_changes_no_bit(preferences: list[float | None], random: object) -> None:
    shuffled = list(preferences)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert win_rate(shuffled) == win_rate(preferences)


@given(PREFERENCES)
def test_R39_a_missing_verdict_takes_no_part_and_is_counted(preferences: list[float | None]) -> None:
    found = win_rate([*preferences, None, None])
    assert found[:-1] == win_rate(preferences)[:-1]
    assert found.missing == win_rate(preferences).missing + 2


def test_ties_give_50() -> None:
    assert win_rate([0.5] * 7)[:5] == (50.0, 0.0, None, None, 50.0)


def test_bad_input_is_named() -> None:
    with pytest.raises(
        DataError, match=r"^a preference is 1\.5: expected a number from 0 \(baseline better\) to 1 \(model better\)\.$"
    ):
        win_rate([1.5])
    with pytest.raises(DataError, match=r"^none of 2 instructions has a verdict, so there is no win rate\.$"):
        win_rate([None, None])
