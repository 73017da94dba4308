"""What must not change a loss: the order of groups, the split into micro-batches, padding, and rows or tokens that do not count.

Everything in float64, so that equal means equal to 1e-12.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from humanline.limit import Clip, Limiter, Off, Reject
from humanline.objectives import DPO, GRPO, IPO, KTO, SFT, Facts, Objective, SimPO

NAN = math.nan
WITH_REFERENCE: list[Objective] = [
    DPO(),
    DPO(label_smoothing=0.2),
    IPO(),
    KTO(undesirable_weight=1.4),
    GRPO(),
    GRPO(beta=0.1),
    GRPO(beta=0.1, aggregate="sequence"),
    GRPO(aggregate="constant", scale="none", skip_equal_groups=True),
]
LIMITERS: list[Limiter] = [Off(), Clip(low=-0.5, high=0.4), Reject(scale_policy=1.2, scale_reference=1.2)]
COMBINATIONS = [(objective, limiter) for objective in WITH_REFERENCE for limiter in LIMITERS]
COMBINATIONS += [(objective, Off()) for objective in (SimPO(), SFT())]
GARBAGE = [-1e30, 1e30, 200.0, -math.inf, math.inf, NAN]

LENGTHS = {
    "pair": [[3, 2], [4, 1], [2, 2]],
    "label": [[3], [1], [4], [2]],
    "group": [[3, 2, 4], [1, 2], [5], [2, 3, 1, 4], [2, 2]],
    "chat": [[3], [4], [1]],
}
FEEDBACK = {
    "pair": [[1.0, 0.0]] * 3,
    "label": [[1.0], [0.0], [1.0], [0.0]],
    "group": [[0.2, 1.0, 0.5], [NAN, NAN], [0.3], [1.0, 0.0, NAN, 2.0], [0.1, 0.1]],
    "chat": [[1.0]] * 3,
}


class Group(NamedTuple):
    """Per completion: log-ratios, log-ratios before syncing (of the KL term), uniform draws [2, T], and the feedback."""

    ratios: list[Tensor]
    log_ratios: list[Tensor]
    uniforms: list[Tensor]
    feedback: list[float]


class Result(NamedTuple):
    loss: float
    gradients: list[Tensor]
    """d(loss)/d(log-ratio) of each completion, through ratio and KL term"""
    metrics: dict[str, float]


def make_groups(objective: Objective) -> list[Group]:
    """The rows of one optimizer step."""
    generator = torch.Generator().manual_seed(5)

    def normal(length: int) -> Tensor:
        return 0.5 * torch.randn(length, generator=generator, dtype=torch.float64)

    return [
        Group(
            [normal(length) for length in lengths],
            [normal(length) for length in lengths],
            [torch.rand(2, length, generator=generator, dtype=torch.float64) for length in lengths],
            feedback,
        )
        for lengths, feedback in zip(LENGTHS[objective.kind], FEEDBACK[objective.kind], strict=True)
    ]


def pad(rows: Sequence[Tensor], width: int, value: float) -> Tensor:
    return torch.stack([torch.nn.functional.pad(row, (0, width - row.shape[-1]), value=value) for row in rows])


def step(
    objective: Objective, limiter: Limiter, micro_batches: list[list[Group]], *, garbage: float = 0.0, padding: int = 0
) -> Result:
    """One optimizer step as the loop does it: sums over micro-batches, divided once. Gradients come back group by group."""
    leaves, losses, weight = [], [], torch.zeros(())
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for groups in micro_batches:
        rows = [[values for group in groups for values in group[field]] for field in range(3)]
        rows[0] = [values.clone().requires_grad_() for values in rows[0]]
        leaves += rows[0]
        width = padding + max(len(values) for values in rows[0])
        mask_BT = pad([torch.ones(len(values), dtype=torch.bool) for values in rows[0]], width, False)
        ratio_BT = pad(rows[0], width, garbage)
        group_B = torch.tensor([index for index, group in enumerate(groups) for _ in group.feedback])
        feedback_B = torch.tensor([value for group in groups for value in group.feedback], dtype=torch.float64)
        log_ratio_BT = ratio_BT + pad(rows[1], width, 0.0)
        facts = Facts(mask_BT, group_B, feedback_B, log_ratio_BT, torch.tensor(0.2, dtype=torch.float64))
        perceived = limiter(ratio_BT, mask_BT, pad(rows[2], width, 0.5).transpose(0, 1))
        result = objective.loss(perceived.ratio_BT, facts)
        losses.append(result.total)
        weight = weight + objective.weight(mask_BT, group_B, feedback_B)
        for name, pair in result.metrics.items():
            earlier = sums.get(name, (torch.zeros(()), torch.zeros(())))
            sums[name] = (earlier[0] + pair[0], earlier[1] + pair[1])
    loss = torch.stack(losses).sum() / weight
    loss.backward()
    assert loss.isfinite() and all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in leaves)
    metrics = {name: (value / count).item() for name, (value, count) in sums.items()}
    return Result(loss.item(), [leaf.grad for leaf in leaves if leaf.grad is not None], metrics)


def assert_same(actual: Result, expected: Result) -> None:
    """Metrics are float32 sums."""
    assert actual.loss == pytest.approx(expected.loss, rel=1e-12, abs=1e-14)
    torch.testing.assert_close(actual.gradients, expected.gradients, rtol=1e-12, atol=1e-14)
    assert any((gradient != 0).any() for gradient in expected.gradients)
    assert actual.metrics == pytest.approx(expected.metrics, rel=1e-5, abs=1e-6, nan_ok=True)


def label(value: object) -> str:
    """The settings of an objective or limiter that differ from their defaults."""
    if not dataclasses.is_dataclass(value):
        return repr(value)
    changed = (f"{f.name}={getattr(value, f.name)}" for f in dataclasses.fields(value) if getattr(value, f.name) != f.default)
    return f"{type(value).__name__}({','.join(changed)})"


every_combination = pytest.mark.parametrize(("objective", "limiter"), COMBINATIONS, ids=label)


@every_combination
def test_the_order_of_groups_does_not_matter(objective: Objective, limiter: Limiter) -> None:
    groups = make_groups(objective)
    forward, backward = step(objective, limiter, [groups]), step(objective, limiter, [groups[::-1]])
    ends = [sum(len(group.feedback) for group in groups[:index]) for index in range(len(groups) + 1)]
    regrouped = [row for start, end in zip(ends[-2::-1], ends[:0:-1], strict=True) for row in forward.gradients[start:end]]
    assert_same(backward, forward._replace(gradients=regrouped))


@every_combination
def test_R9_the_split_into_micro_batches_does_not_matter(objective: Objective, limiter: Limiter) -> None:
    """One micro-batch, one per group, and an uneven split: same loss, gradient and metrics, whatever normalises the step."""
    groups = make_groups(objective)
    whole = step(objective, limiter, [groups])
    assert_same(step(objective, limiter, [[group] for group in groups]), whole)
    assert_same(step(objective, limiter, [groups[:1], groups[1:]]), whole)


@every_combination
@pytest.mark.parametrize("garbage", GARBAGE)
def test_padding_and_what_stands_in_it_does_not_matter(objective: Objective, limiter: Limiter, garbage: float) -> None:
    """Two more columns of padding, filled with anything: nothing leaks into loss, metrics or gradient, not even as NaN."""
    groups = make_groups(objective)
    assert_same(step(objective, limiter, [groups], garbage=garbage, padding=2), step(objective, limiter, [groups]))


@every_combination
@pytest.mark.parametrize("garbage", GARBAGE)
def test_masked_tokens_inside_a_row_are_as_good_as_removed(objective: Objective, limiter: Limiter, garbage: float) -> None:
    """A user turn inside a conversation: masked columns between the tokens against the same row without them."""
    groups = make_groups(objective)
    rows = [values for group in groups for values in group.ratios]
    feedback_B = torch.tensor([value for group in groups for value in group.feedback], dtype=torch.float64)
    group_B = torch.tensor([index for index, group in enumerate(groups) for _ in group.feedback])
    width = max(map(len, rows))
    tight_BT = pad(rows, width, 0.0)
    mask_BT = pad([torch.ones(len(values), dtype=torch.bool) for values in rows], width, False)
    draws_2BT = torch.rand((2, *mask_BT.shape), generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def run(ratio_BT: Tensor, mask_BT: Tensor, uniform_2BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        leaf_BT = ratio_BT.clone().requires_grad_()
        facts = Facts(mask_BT, group_B, feedback_B, leaf_BT, torch.tensor(0.2, dtype=torch.float64))
        loss = objective.loss(limiter(leaf_BT, mask_BT, uniform_2BT).ratio_BT, facts)
        loss.total.backward()
        assert leaf_BT.grad is not None and (leaf_BT.grad[~mask_BT] == 0).all()
        return loss.total.detach(), leaf_BT.grad, objective.weight(mask_BT, group_B, feedback_B)

    loose_BT = torch.full((len(rows), 2 * width), garbage, dtype=torch.float64)
    loose_mask_BT = torch.zeros(loose_BT.shape, dtype=torch.bool)
    loose_draws_2BT = torch.full((2, *loose_BT.shape), 0.5, dtype=torch.float64)
    loose_BT[:, ::2], loose_mask_BT[:, ::2], loose_draws_2BT[:, :, ::2] = tight_BT, mask_BT, draws_2BT
    loose_BT[:, ::2][~mask_BT] = garbage
    total, gradient_BT, weight = run(tight_BT, mask_BT, draws_2BT)
    loose_total, loose_gradient_BT, loose_weight = run(loose_BT, loose_mask_BT, loose_draws_2BT)
    torch.testing.assert_close(loose_total, total, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(loose_gradient_BT[:, ::2], gradient_BT, rtol=1e-12, atol=1e-14)
    assert torch.equal(loose_weight, weight)


@pytest.mark.parametrize("objective", [value for value in WITH_REFERENCE if value.kind == "group"], ids=label)
@pytest.mark.parametrize("limiter", LIMITERS, ids=label)
def test_R26_unscored_completions_are_as_good_as_removed(objective: Objective, limiter: Limiter) -> None:
    """Loss, gradient of the others and metrics stay, for a group with an unscored completion and for a wholly unscored group.

    Only the share of groups without spread counts the wholly unscored group as what it is: one that teaches nothing.
    """
    groups = make_groups(objective)
    scored = [[not math.isnan(value) for value in group.feedback] for group in groups]
    without = [
        Group(*([value for value, keep in zip(values, keeps, strict=True) if keep] for values in group))
        for group, keeps in zip(groups, scored, strict=True)
        if any(keeps)
    ]
    full, rest = step(objective, limiter, [groups]), step(objective, limiter, [without])
    flat = [keep for keeps in scored for keep in keeps]
    assert all((gradient == 0).all() for gradient, keep in zip(full.gradients, flat, strict=True) if not keep)
    kept = [gradient for gradient, keep in zip(full.gradients, flat, strict=True) if keep]
    assert full.metrics.pop("frac_zero_std_groups") == pytest.approx(3 / 5)
    assert rest.metrics.pop("frac_zero_std_groups") == pytest.approx(2 / 4)
    assert_same(full._replace(gradients=kept), rest)


@pytest.mark.parametrize("objective", [DPO(), DPO(label_smoothing=0.2), IPO(), SimPO()], ids=label)
def test_swapping_chosen_and_rejected_negates_the_margin(objective: Objective) -> None:
    """Not an invariance but its mirror: rewards trade places, the accuracy becomes its complement."""
    groups = make_groups(objective)
    swapped = [Group(*(values[::-1] for values in group[:3]), group.feedback) for group in groups]
    metrics, mirrored = step(objective, Off(), [groups]).metrics, step(objective, Off(), [swapped]).metrics
    assert mirrored["reward_margin"] == pytest.approx(-metrics["reward_margin"])
    assert mirrored["reward_chosen"] == pytest.approx(metrics["reward_rejected"])
    assert mirrored["reward_accuracy"] == pytest.approx(1 - metrics["reward_accuracy"])
