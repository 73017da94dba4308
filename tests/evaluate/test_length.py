"""The length-controlled win rate: known coefficients recovered, symmetries, limits, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from humanline.errors import ConfigError, DataError
from humanline.evaluate import LengthControlled, Regulariser, length_controlled_win_rate, win_rate
from humanline.evaluate.length import _fit, _Rows, is_large_change

COUNT = 300


def logistic(score: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-score))


def rows(seed: int = 0, *, length: float = -1.5, difficulty: float = 0.8, bias: float = 0.4) -> dict[str, Any]:
    """Preferences that follow exactly from known coefficients."""
    random = np.random.default_rng(seed)
    baseline_length = random.integers(100, 2000, COUNT)
    model_length = random.integers(500, 3000, COUNT)
    names = [f"instruction {number}" for number in range(COUNT)]
    difficulties = dict(zip(names, random.normal(size=COUNT).tolist(), strict=True))
    differences = baseline_length - model_length
    score = length * np.tanh(differences / differences.std(ddof=1)) + difficulty * np.array(list(difficulties.values())) + bias
    return {
        "preferences": logistic(score).tolist(),
        "model_length": model_length.tolist(),
        "baseline_length": baseline_length.tolist(),
        "instructions": names,
        "difficulty": difficulties,
    }


def regulariser(length: float = -1.5, difficulty: float = 0.8, count: int = 100) -> Regulariser:
    random = np.random.default_rng(1)
    length_R, difficulty_R = random.normal(size=count), random.normal(size=count)
    preference_R = logistic(length * np.tanh(length_R) + difficulty * difficulty_R)
    return Regulariser(tuple(f"instruction {number}" for number in range(count)), length_R, difficulty_R, preference_R)


def fitted(given: dict[str, Any], **changes: Any) -> LengthControlled:
    return length_controlled_win_rate(**{"resamples": 2, **given, **changes})


def test_known_coefficients_are_recovered() -> None:
    """Noise-free preferences: cross-validation wants the weakest penalty, and the fit finds what they were made of."""
    given = rows()
    found = fitted(given)
    assert found.features == pytest.approx({"length": -1.5, "difficulty": 0.8, "bias": 0.4}, abs=2e-3)
    expected = 100 * logistic(0.8 * np.array(list(given["difficulty"].values())) + 0.4).mean()
    assert found.win_rate == pytest.approx(expected, abs=0.02)
    assert abs(found.win_rate - win_rate(given["preferences"]).win_rate) > 5, "length made a difference to be controlled for"


def test_a_regulariser_that_agrees_leaves_the_coefficients_and_one_that_does_not_moves_them() -> None:
    given = rows()
    agreeing, other = fitted(given, regulariser=regulariser()), fitted(given, regulariser=regulariser(length=-6.0))
    assert agreeing.features == pytest.approx({"length": -1.5, "difficulty": 0.8, "bias": 0.4}, abs=2e-3)
    assert other.features["length"] < agreeing.features["length"] - 0.05
    assert agreeing.regularised and not fitted(given).regularised


def test_regulariser_rows_weigh_a_tenth() -> None:
    """The optimum of Σ w·logloss, w = 1 or 0.1, without penalty: its gradient is 0 at the coefficients found."""
    held, given = regulariser(length=-6.0), rows()
    found = np.array(list(fitted(given, regulariser=held).features.values()))
    differences = np.array(given["baseline_length"]) - np.array(given["model_length"])
    own = np.stack([np.tanh(differences / differences.std(ddof=1)), list(given["difficulty"].values()), np.ones(COUNT)], 1)
    theirs = np.stack([np.tanh(held.length_R), held.difficulty_R, np.zeros(100)], 1)
    gradient = own.T @ (logistic(own @ found) - given["preferences"]) + 0.1 * theirs.T @ (
        logistic(theirs @ found) - held.preference_R
    )
    assert np.abs(gradient).max() < 1e-2, "the largest one row could have is 1"


def test_order_of_rows_changes_no_bit() -> None:
    given, held = rows(), regulariser(length=-3.0)
    order = np.random.default_rng(2).permutation(COUNT)
    shuffled = {name: [given[name][row] for row in order] for name in given if name != "difficulty"}
    shuffled["difficulty"] = dict(reversed(given["difficulty"].items()))
    turned = Regulariser(held.instructions[::-1], held.length_R[::-1], held.difficulty_R[::-1], held.preference_R[::-1])
    assert fitted(shuffled, regulariser=turned, resamples=5) == fitted(given, regulariser=held, resamples=5)


def test_alignment_is_by_instruction_not_by_position() -> None:
    """Missing rows in the middle: difficulties of the others stay theirs."""
    given = rows()
    kept = [row for row in range(COUNT) if row not in (17, 40, 41)]
    fewer = {name: [given[name][row] for row in kept] for name in given if name != "difficulty"}
    assert fitted({**fewer, "difficulty": given["difficulty"]}).features == pytest.approx(
        {"length": -1.5, "difficulty": 0.8, "bias": 0.4}, abs=0.02
    )


def test_seen_from_the_baseline_it_is_the_rest() -> None:
    """Swapping sides turns the sign of difficulty's and the bias's coefficients: both win rates sum to 100."""
    given = rows(seed=3)
    swapped = given | {
        "preferences": [1 - value for value in given["preferences"]],
        "model_length": given["baseline_length"],
        "baseline_length": given["model_length"],
    }
    assert fitted(given).win_rate + fitted(swapped).win_rate == pytest.approx(100, abs=0.01)


def test_a_model_equal_to_its_baseline_has_50() -> None:
    given = rows()
    equal = given | {"preferences": [0.5] * COUNT, "model_length": given["baseline_length"]}
    for held in (None, regulariser(length=-6.0)):
        found = fitted(equal, regulariser=held)
        assert found[:4] == (50.0, None, None, None)
        assert set(found.features.values()) == {0.0}


def test_equal_lengths_leave_the_raw_win_rate() -> None:
    """No difference in length anywhere: nothing to control for. Only the penalty, by then weak, moves it."""
    given = rows(difficulty=0.0) | {"difficulty": None}
    given |= {"model_length": given["baseline_length"], "preferences": [0.75] * (COUNT // 2) + [0.35] * (COUNT // 2)}
    found = fitted(given)
    assert found.win_rate == pytest.approx(win_rate(given["preferences"]).win_rate, abs=0.3)
    assert list(found.features) == ["length", "bias"] and found.features["length"] == 0


def test_all_wins_are_near_100_without_a_word_on_the_console(capfd: pytest.CaptureFixture[str]) -> None:
    found = fitted(rows() | {"preferences": [1.0] * COUNT})
    assert 99 < found.win_rate <= 100 and found[1:4] == (None, None, None)
    assert capfd.readouterr() == ("", "")


def test_a_fit_that_finds_nothing_gives_no_interval() -> None:
    """Ties, whatever the lengths: the best fit has no coefficient, and an interval of width 0 would be a lie."""
    found = fitted(rows() | {"preferences": [0.5] * COUNT})
    assert found[:4] == (50.0, None, None, None)
    assert set(found.features.values()) == {0.0}


def test_the_interval_is_of_resampled_instructions() -> None:
    random = np.random.default_rng(5)
    given = rows()
    given["preferences"] = [float(random.random() < preference) for preference in given["preferences"]]
    found = fitted(given, resamples=40)
    assert found.low is not None and found.high is not None and found.standard_error is not None
    assert found.low < found.win_rate < found.high
    assert 1 < found.standard_error < 6, "about √(p (1 − p)/300) = 2.9 points"
    assert fitted(given, resamples=40) == found


def test_a_soft_preference_is_both_outcomes_in_part() -> None:
    """One feature that is 1: the best log-odds of preferences 0.2 and 0.6 are those of their mean 0.4."""
    ones = _Rows(np.ones((2, 1)), np.array([0.2, 0.6]), np.ones(2), ("a", "b"))
    assert _fit(ones, 1e6)[0] == pytest.approx(np.log(0.4 / 0.6), abs=1e-5)


def test_R37_large_changes_are_told_apart() -> None:
    assert is_large_change(20.0, 30.5) and is_large_change(30.5, 20.0)
    assert not is_large_change(20.0, 30.0)


def test_bad_input_is_named() -> None:
    given = rows()
    with pytest.raises(DataError, match=r"^instruction 'instruction 0' appears twice: expected one row for each\.$"):
        fitted(given | {"instructions": ["instruction 0", *given["instructions"][:-1]]})
    with pytest.raises(
        DataError, match=r"^1 of 300 instructions have no difficulty \(first 'instruction 7'\): expected one for each\."
    ):
        fitted(given | {"difficulty": {name: value for name, value in given["difficulty"].items() if name != "instruction 7"}})
    with pytest.raises(
        DataError, match=r"^every output is 9 characters longer than the baseline's: the effect of length cannot be told"
    ):
        fitted(given | {"model_length": [length + 9 for length in given["baseline_length"]]})
    with pytest.raises(
        DataError, match=r"^instructions, preferences and lengths: \[300, 299, 300, 300\] of them, expected as many"
    ):
        fitted(given | {"preferences": given["preferences"][1:]})
    few = {name: given[name][:4] for name in given if name != "difficulty"}
    with pytest.raises(DataError, match=r"^4 judged instructions: expected at least 5, one for each fold"):
        fitted(few)
    with pytest.raises(ConfigError, match=r"^a regulariser was given without difficulties: its rows need them\."):
        fitted(given | {"difficulty": None}, regulariser=regulariser())
    with pytest.raises(
        DataError, match=r"^a preference is nan: expected a number from 0 \(baseline better\) to 1 \(model better\)\.$"
    ):
        fitted(given | {"preferences": [float("nan"), *given["preferences"][1:]]})
    with pytest.raises(ConfigError, match=r"^resamples is 1: expected a whole number from 2 on\.$"):
        fitted(given, resamples=1)
