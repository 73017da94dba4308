"""Length-controlled win rate: what the win rate would be if the model's outputs were as long as the baseline's.

Source: Dubois et al. 2024, *Length-Controlled AlpacaEval* (arXiv 2404.04475), as published with `alpaca_eval`: the preference for the
model is a logistic function, without intercept, of

    length       tanh((baseline's characters − model's) / their standard deviation over the instructions)
    difficulty   how the instruction shifts preferences, from a table that was fitted once over many models
    bias         1: how good the model is

with an L1 penalty whose strength is chosen by 5-fold cross-validation; the win rate is the mean prediction with length 0. Rows of the
baseline against versions of itself that were told to be short or long, bias 0, join the fit with weight 0.1 each. They hold the
effect of length to one that is about length alone, and are called the regulariser.

Not upstream's: difficulty is looked up by instruction, never by row position; all rows of an instruction are in one fold; an interval.
N judged instructions · R regulariser rows · F features.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from humanline.data.record import shown
from humanline.errors import ConfigError, DataError
from humanline.evaluate.statistics import interval, redraws
from humanline.evaluate.winrate import check_preferences

Instruction = Hashable
"""whatever names an instruction: its text, or its number"""
FOLDS = 5
STRENGTHS = np.logspace(-4, 4, 10)
"""inverse strengths of the penalty among which cross-validation chooses"""
REGULARISER_WEIGHT = 0.1
"""of a regulariser row beside a judged one: upstream's λ = 0.2 shared by two rows an instruction"""
LARGE = 10.0
"""points: a correction beyond this is more often a fault of the fit than of the judge"""


@dataclass(frozen=True)
class Regulariser:
    """The baseline against short and long versions of itself, R rows."""

    instructions: tuple[Instruction, ...]
    length_R: np.ndarray
    """standardised: (baseline's characters − other's) / standard deviation"""
    difficulty_R: np.ndarray
    preference_R: np.ndarray
    """for the other, in [0, 1]"""


class LengthControlled(NamedTuple):
    """In percent where not said otherwise."""

    win_rate: float
    standard_error: float | None
    """of the bootstrap over instructions, the strength of the penalty held; None where no coefficient is other than 0, and
    where all preferences are equal: a width of 0 would be a lie"""
    low: float | None
    high: float | None
    features: dict[str, float]
    """coefficient of each feature, log-odds"""
    inverse_strength: float | None
    """C of the penalty that cross-validation chose"""
    regularised: bool
    """with regulariser rows; without, the number does not compare with published ones"""


def length_controlled_win_rate(
    preferences: Sequence[float],
    *,
    model_length: Sequence[int],
    baseline_length: Sequence[int],
    instructions: Sequence[Instruction],
    difficulty: Mapping[Any, float] | None = None,
    regulariser: Regulariser | None = None,
    seed: int = 0,
    resamples: int = 500,
) -> LengthControlled:
    """preferences: of judged instructions, see `win_rate`. Lengths in characters. The order of rows changes nothing.

    Without `difficulty` the fit has no such feature, and takes no regulariser. A model whose outputs are the baseline's (all ties,
    all lengths equal) has 50 by construction. Raises `DataError` for repeated instructions, one without difficulty, fewer than `FOLDS`
    instructions, and length differences that are all the same, which no fit can tell from the model's quality.
    """
    if resamples < 2:
        raise ConfigError(f"resamples is {resamples}: expected a whole number from 2 on.")
    check_preferences(preferences)
    counts = [len(column) for column in (instructions, preferences, model_length, baseline_length)]
    if len(set(counts)) > 1:
        raise DataError(f"instructions, preferences and lengths: {counts} of them, expected as many of each.")
    differences = [baseline - model for model, baseline in zip(model_length, baseline_length, strict=True)]
    order = check_length_control(instructions, difficulty=difficulty, regulariser=regulariser, differences=differences)
    preference_N = np.array([preferences[row] for row in order], np.float64)
    difference_N = np.array([differences[row] for row in order], np.float64)
    names = [instructions[row] for row in order]
    features = ("length", "difficulty", "bias") if difficulty is not None else ("length", "bias")
    if not difference_N.any() and (preference_N == 0.5).all():
        return LengthControlled(50.0, None, None, None, dict.fromkeys(features, 0.0), None, regulariser is not None)
    spread = difference_N.std(ddof=1)
    columns = [np.tanh(difference_N / spread) if spread else difference_N, np.ones(len(names))]
    if difficulty is not None:
        columns.insert(1, np.array([difficulty[name] for name in names], np.float64))
    return _fitted(np.stack(columns, 1), preference_N, names, regulariser, features, seed, resamples)


def check_length_control(
    instructions: Sequence[Instruction],
    *,
    difficulty: Mapping[Any, float] | None,
    regulariser: Regulariser | None,
    differences: Sequence[int] | None,
) -> list[int]:
    """What can be told before anything is judged: raises as `length_controlled_win_rate` would. Returns rows in instruction order.

    differences: the baseline's characters less the model's; None = not known yet.
    """
    if regulariser is not None and difficulty is None:
        raise ConfigError("a regulariser was given without difficulties: its rows need them. Give both, or neither.")
    repeated = [name for name, count in Counter(instructions).items() if count > 1]
    if repeated:
        raise DataError(f"instruction {shown(repeated[0])} appears twice: expected one row for each.")
    if len(instructions) < FOLDS:
        raise DataError(
            f"{len(instructions)} judged instructions: expected at least {FOLDS}, one for each fold of the cross-validation."
        )
    missing = [name for name in instructions if difficulty is not None and name not in difficulty]
    if missing:
        raise DataError(
            f"{len(missing)} of {len(instructions)} instructions have no difficulty (first {shown(missing[0])}): expected one for each.\n"
            "  Use a table of these instructions, or none."
        )
    if differences is not None and differences[0] != 0 and len(set(differences)) == 1:
        by = differences[0]
        raise DataError(
            f"every output is {abs(by)} characters {'shorter' if by > 0 else 'longer'} than the baseline's: the effect of length cannot be "
            "told from the model's own. Only the raw win rate can be had."
        )
    # In the order of their names, so that the order in which rows came plays no part.
    return sorted(range(len(instructions)), key=lambda row: repr(instructions[row]))


def is_large_change(raw: float, controlled: float) -> bool:
    """Whether raw and length-controlled win rate lie so far apart that the fit wants a look."""
    return abs(raw - controlled) > LARGE


def _fitted(
    features_NF: np.ndarray,
    preference_N: np.ndarray,
    names: Sequence[Instruction],
    regulariser: Regulariser | None,
    labels: Sequence[str],
    seed: int,
    resamples: int,
) -> LengthControlled:
    rows = _Rows(features_NF, preference_N, np.ones(len(names)), tuple(names))
    held = _held(regulariser)
    strength = _best_strength(_joined(rows, held))
    coefficients = _fit(_joined(rows, held), strength)
    without_length = features_NF.copy()
    without_length[:, labels.index("length")] = 0
    drawn = [
        100 * _predicted(without_length[index], _fit(_joined(rows.at(index), held), strength)).mean()
        for part in redraws(len(names), seed=seed, resamples=resamples)
        for index in part
    ]
    low, high = interval(np.array(drawn))
    nothing = not coefficients.any() or preference_N.min() == preference_N.max()
    return LengthControlled(
        100 * math.fsum(_predicted(without_length, coefficients)) / len(names),
        None if nothing else float(np.std(drawn, ddof=1)),
        None if nothing else low,
        None if nothing else high,
        dict(zip(labels, coefficients.tolist(), strict=True)),
        strength,
        regulariser is not None,
    )


class _Rows(NamedTuple):
    """Weighted rows of a fit."""

    features: np.ndarray
    preference: np.ndarray
    weight: np.ndarray
    names: tuple[Instruction, ...]

    def at(self, index: np.ndarray) -> _Rows:
        return _Rows(self.features[index], self.preference[index], self.weight[index], ())


def _held(regulariser: Regulariser | None) -> _Rows | None:
    if regulariser is None:
        return None
    order = sorted(
        range(len(regulariser.instructions)), key=lambda row: (repr(regulariser.instructions[row]), regulariser.length_R[row])
    )
    no_bias = np.zeros(len(order))  # it is the baseline itself
    features = np.stack([np.tanh(regulariser.length_R[order]), regulariser.difficulty_R[order], no_bias], 1)
    names = tuple(regulariser.instructions[row] for row in order)
    return _Rows(features, regulariser.preference_R[order], np.full(len(order), REGULARISER_WEIGHT), names)


def _joined(rows: _Rows, held: _Rows | None) -> _Rows:
    if held is None:
        return rows
    return _Rows(
        np.concatenate([held.features, rows.features]),
        np.concatenate([held.preference, rows.preference]),
        np.concatenate([held.weight, rows.weight]),
        held.names + rows.names,
    )


def _best_strength(rows: _Rows) -> float:
    """The inverse strength with the lowest mean log-loss on held-out folds; the strongest penalty of equals."""
    fold_of = {name: position % FOLDS for position, name in enumerate(sorted(set(rows.names), key=repr))}
    fold = np.array([fold_of[name] for name in rows.names])

    def held_out_loss(strength: float) -> float:
        losses = []
        for number in range(FOLDS):
            out = fold == number
            predicted = _predicted(rows.features[out], _fit(rows.at(np.flatnonzero(~out)), strength)).clip(1e-15, 1 - 1e-15)
            loss = -(rows.preference[out] * np.log(predicted) + (1 - rows.preference[out]) * np.log1p(-predicted))
            losses.append((rows.weight[out] * loss).mean())
        return float(np.mean(losses))

    return float(min(STRENGTHS, key=held_out_loss))


def _predicted(features: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Logistic function of the linear score, without overflow."""
    predicted: np.ndarray = np.exp(-np.logaddexp(0, -(features @ coefficients)))
    return predicted


def _fit(rows: _Rows, strength: float) -> np.ndarray:
    """Coefficients, [F]. A preference p is two rows: one won with weight p, one lost with weight 1 − p.

    Both weights stay above 0, since liblinear wants both outcomes to occur.
    """
    import sklearn
    from sklearn.linear_model import LogisticRegression

    # The name of the L1 penalty changed; the old one warns in 1.8 and is gone in 1.10.
    renamed = tuple(int(part) for part in sklearn.__version__.split(".")[:2]) >= (1, 8)
    penalty: dict[str, Any] = {"l1_ratio": 1.0} if renamed else {"penalty": "l1"}
    model = LogisticRegression(
        C=strength, fit_intercept=False, solver="liblinear", tol=1e-6, max_iter=10_000, random_state=0, **penalty
    )
    features = np.concatenate([rows.features, rows.features])
    outcome = np.repeat([1, 0], len(rows.features))
    won = rows.preference.clip(1e-12, 1 - 1e-12)
    weight = np.concatenate([rows.weight * won, rows.weight * (1 - won)])
    coefficients: np.ndarray = model.fit(features, outcome, sample_weight=weight).coef_[0]
    return coefficients
