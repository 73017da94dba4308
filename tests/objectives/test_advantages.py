"""Advantages of GRPO: rewards against their own group, and the rewards that carry no information."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import accumulate

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from humanline.objectives import GRPO, Facts
from humanline.objectives.groups import advantages

NAN = math.nan
MakeFacts = Callable[..., Facts]


def of(*groups: list[float], scale: str = "std", dtype: torch.dtype = torch.float64) -> list[list[float]]:
    """Advantages, group by group."""
    group_B = torch.tensor([index for index, group in enumerate(groups) for _ in group])
    reward_B = torch.tensor([reward for group in groups for reward in group], dtype=dtype)
    result = advantages(reward_B, group_B, scale)  # type: ignore[arg-type]
    assert result.advantage_B.dtype is dtype
    ends = list(accumulate(map(len, groups)))
    return [result.advantage_B[end - len(group) : end].tolist() for end, group in zip(ends, groups, strict=True)]


def test_unbiased_standard_deviation_with_its_epsilon() -> None:
    """Rewards 1, 2, 6: mean 3, squares 4 + 1 + 9 = 14 over n − 1 = 2, std √7 = 2.64575131; divided by 2.64585131.

    −2, −1, 3 → −0.75590037, −0.37795018, 1.13385056. A second group of 0, 1: ±0.5/(0.70710678 + 0.0001) = ±0.70700680.
    """
    first, second = of([1.0, 2.0, 6.0], [0.0, 1.0])
    assert first == pytest.approx([-0.75590037, -0.37795018, 1.13385056], abs=1e-8)
    assert second == pytest.approx([-0.70700680, 0.70700680], abs=1e-8)


def test_scale_none_leaves_the_division_out() -> None:
    assert of([1.0, 2.0, 6.0], scale="none") == [[-2.0, -1.0, 3.0]]


@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_R23_equal_rewards_have_advantage_zero_exactly(scale: str, dtype: torch.dtype) -> None:
    """The mean of three times 0.1 is 0.10000000000000002 in float64; over std + 1e-4 that would be −1.4e-13, not 0."""
    equal = of([0.1] * 3, [0.7] * 7, [1e6 + 0.1] * 5, [-3.3], scale=scale, dtype=dtype)
    assert equal == [[0.0] * 3, [0.0] * 7, [0.0] * 5, [0.0]]


def test_R26_unscored_completions_take_no_part() -> None:
    """NaN stays out of mean, count and std: 1, 2, 6 keep their values. A lone scored completion is a group of one."""
    alone = of([1.0, 2.0, 6.0])[0]
    mixed, lone, none_scored = of([1.0, NAN, 2.0, 6.0, NAN], [NAN, 5.0], [NAN, NAN])
    assert mixed == [alone[0], 0.0, alone[1], alone[2], 0.0]
    assert lone == [0.0, 0.0]
    assert none_scored == [0.0, 0.0]


def test_which_groups_count_as_equal_and_as_scored() -> None:
    result = advantages(torch.tensor([1.0, NAN, 1.0, 0.0, 2.0, NAN, 4.0]), torch.tensor([0, 0, 0, 1, 1, 2, 3]))
    assert result.equal_B.tolist() == [True, True, True, False, False, True, True]
    assert result.scored_B.tolist() == [True, False, True, True, True, False, True]


def test_no_rows_give_no_advantages() -> None:
    result = advantages(torch.zeros(0), torch.zeros(0, dtype=torch.long))
    assert [len(values) for values in result] == [0, 0, 0]


@given(st.lists(st.floats(-100, 100), min_size=2, max_size=9), st.floats(-1000, 1000), st.floats(0.01, 100))
def test_advantages_sum_to_zero_and_ignore_shifts_and_order(rewards: list[float], shift: float, factor: float) -> None:
    """Σ A = 0; adding a constant to all rewards changes nothing; scale none is linear; reversing reverses."""
    plain = of(rewards, scale="none")[0]
    assert sum(plain) == pytest.approx(0.0, abs=1e-10 * max(1.0, *map(abs, rewards)))
    assert of([reward + shift for reward in rewards], scale="none")[0] == pytest.approx(plain, abs=1e-9)
    assert of([reward * factor for reward in rewards], scale="none")[0] == pytest.approx(
        [value * factor for value in plain], abs=1e-9
    )
    assert of(rewards[::-1])[0] == pytest.approx(of(rewards)[0][::-1], abs=1e-8)


def evaluate(objective: GRPO, rewards: list[float], log_ratio: float) -> tuple[float, float, Tensor, dict[str, float]]:
    """One group of single-token completions, all at the same log-ratio: loss, weight, gradient, metrics (0/0 = NaN)."""
    count = len(rewards)
    ratio_BT = torch.full((count, 1), log_ratio, dtype=torch.float64, requires_grad=True)
    mask_BT, group_B = torch.ones(count, 1, dtype=torch.bool), torch.zeros(count, dtype=torch.long)
    facts = Facts(mask_BT, group_B, torch.tensor(rewards, dtype=torch.float64), ratio_BT, torch.zeros(()))
    loss = objective.loss(ratio_BT, facts)
    loss.total.backward()
    assert ratio_BT.grad is not None
    metrics = {name: (value / weight).item() for name, (value, weight) in loss.metrics.items()}
    return loss.total.item(), objective.weight(mask_BT, group_B, facts.feedback_B).item(), ratio_BT.grad, metrics


def test_R23_equal_rewards_pull_only_through_the_kl_term() -> None:
    """Rewards 1, 1, 1, 1. β = 0: loss and gradient exactly 0. β = 0.1, d = 0.5: 0.1 (1 − e^−0.5) = 0.03934693 on each token.

    `frac_zero_std_groups` says so; `skip_equal_groups` takes the group out of loss, gradient and weight.
    """
    total, weight, gradient_BT, metrics = evaluate(GRPO(), [1.0] * 4, 0.5)
    assert (total, weight, metrics["frac_zero_std_groups"], metrics["reward"]) == (0.0, 4, 1.0, 1.0)
    assert (gradient_BT == 0).all()
    _, _, gradient_BT, _ = evaluate(GRPO(beta=0.1), [1.0] * 4, 0.5)
    assert gradient_BT.flatten().tolist() == pytest.approx([0.03934693] * 4, abs=1e-8)
    for aggregate in ("token", "sequence", "constant"):
        total, weight, gradient_BT, metrics = evaluate(
            GRPO(beta=0.1, skip_equal_groups=True, aggregate=aggregate),  # type: ignore[arg-type]
            [1.0] * 4,
            0.5,
        )
        assert (total, weight, metrics["frac_zero_std_groups"]) == (0.0, 0, 1.0)
        assert (gradient_BT == 0).all()


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_R26_an_unscored_completion_is_not_there(aggregate: str) -> None:
    """Rewards 0, NaN, 1 give loss, weight, gradient and metrics of 0, 1; the unscored one has gradient 0, KL term included."""
    objective = GRPO(beta=0.1, aggregate=aggregate)  # type: ignore[arg-type]
    total, weight, gradient_BT, metrics = evaluate(objective, [0.0, 1.0], 0.1)
    with_total, with_weight, with_gradient_BT, with_metrics = evaluate(objective, [0.0, NAN, 1.0], 0.1)
    assert (with_total, with_weight, with_metrics) == (total, weight, metrics)
    assert torch.equal(with_gradient_BT[[0, 2]], gradient_BT)
    assert with_gradient_BT[1].item() == 0.0
    total, weight, gradient_BT, metrics = evaluate(objective, [NAN, NAN], 0.1)
    assert (total, weight, gradient_BT.abs().sum().item()) == (0.0, 0, 0.0)
    assert math.isnan(metrics["reward"]), "no reward is no number: 0/0 over the step, never a 0"
