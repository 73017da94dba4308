"""The learning rate is a pure function of the step; AdamW gets the settings it is given."""

from __future__ import annotations

import pytest

from builders import tiny_llama
from humanline.config import OptimizerConfig
from humanline.loop import adamw, learning_rate


def rates(schedule: str, warmup: float, last: int) -> list[float]:
    config = OptimizerConfig(lr=1.0, schedule=schedule, warmup=warmup)
    return [learning_rate(config, t, last) for t in range(1, last + 1)]


def test_schedules_by_hand():
    """Two warm-up steps to the peak, then four steps: constant, 1 − i/4, ½ (1 + cos(π i/4)). No step is wasted at rate 0."""
    assert rates("constant", 2, 6) == [0.5, 1, 1, 1, 1, 1]
    assert rates("linear", 2, 6) == pytest.approx([0.5, 1, 1, 0.75, 0.5, 0.25])
    assert rates("cosine", 2, 6) == pytest.approx([0.5, 1, 1, 0.853553, 0.5, 0.146447], abs=1e-6)
    assert rates("linear", 0, 2) == [1, 0.5]


def test_a_warm_up_below_1_is_a_share_of_all_steps():
    assert rates("constant", 0.5, 4) == [0.5, 1, 1, 1]
    assert rates("constant", 0, 2) == [1, 1]


def test_adamw_uses_eps_betas_and_decays_matrices_only():
    optimizer = adamw(tiny_llama(), OptimizerConfig(lr=0.1, betas=(0.8, 0.95), eps=1e-5, weight_decay=0.3))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.3, 0.0]
    for group, dimensions in zip(optimizer.param_groups, ({2}, {1}), strict=True):
        assert {parameter.ndim for parameter in group["params"]} == dimensions
        assert (group["betas"], group["eps"], group["lr"]) == ((0.8, 0.95), 1e-5, 0.1)
