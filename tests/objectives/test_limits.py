"""Objectives at values where the answer is known without arithmetic, and at the edges of a micro-batch."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from humanline.errors import ConfigError
from humanline.objectives import DPO, GRPO, IPO, KTO, SFT, Facts, Objective, SimPO
from humanline.objectives.base import sequence_mean, sequence_sum, total

EVERY = [
    DPO(),
    DPO(label_smoothing=0.2),
    IPO(),
    SimPO(),
    KTO(),
    SFT(),
    GRPO(),
    GRPO(aggregate="sequence"),
    GRPO(aggregate="constant"),
]
MakeFacts = Callable[..., Facts]


@pytest.mark.parametrize("label_smoothing", [0.0, 0.3])
def test_dpo_at_the_reference_is_log_two(label_smoothing: float, make_facts: MakeFacts) -> None:
    """Two pairs: 2 ln 2 whatever the smoothing. A tie is half an accurate pair."""
    facts = make_facts(DPO())
    loss = DPO(label_smoothing=label_smoothing).loss(torch.zeros(facts.mask_BT.shape, dtype=torch.float64), facts)
    assert loss.total.item() == pytest.approx(2 * math.log(2), rel=1e-15)
    assert [x.item() for x in loss.metrics["reward_accuracy"]] == [1.0, 2.0]


def test_kto_at_the_reference_is_one_half_per_row(make_facts: MakeFacts) -> None:
    """K = 0: 1 − σ(0) = ½ for both classes; three rows, weights 1 and 3, give ½ + 3/2 + ½."""
    facts = make_facts(KTO())
    loss = KTO(undesirable_weight=3.0).loss(torch.zeros(facts.mask_BT.shape, dtype=torch.float64), facts)
    assert loss.total.item() == 2.5


def test_grpo_at_the_reference_is_minus_the_advantages(make_facts: MakeFacts) -> None:
    """ρ = 1 and k3 = 0: −Σ_i A_i over sequences is 0 in every group; over tokens it is −Σ_i A_i T_i, here with scale none.

    Rewards 0.2, 1, 0.5 (mean 0.56666667) on 3, 2, 4 tokens: −(−1.1 + 0.86666667 − 0.26666667) = 0.5.
    Rewards −1, 2 on 1, 2 tokens: −(−1.5 + 3) = −1.5. A group of one: 0. Sum −1.
    """
    facts = make_facts(GRPO())
    zeros_BT = torch.zeros(facts.mask_BT.shape, dtype=torch.float64)
    loss = GRPO(beta=0.5, scale="none").loss(zeros_BT, facts)
    assert loss.total.item() == pytest.approx(-1.0, abs=1e-12)
    assert GRPO(beta=0.5, aggregate="sequence").loss(zeros_BT, facts).total.item() == pytest.approx(0.0, abs=1e-12)
    assert [x.item() for x in loss.metrics["kl"]] == [0.0, facts.mask_BT.sum().item()]


def test_R13_length_normalised_loss_is_finite_right_after_a_sync(make_facts: MakeFacts) -> None:
    """All log-ratios 0: the mean over completion length is 0/T = 0, so IPO is (1/(2τ))² = 25 per pair, with a gradient."""
    facts = make_facts(IPO())
    ratio_BT = torch.zeros(facts.mask_BT.shape, dtype=torch.float64, requires_grad=True)
    loss = IPO(tau=0.1).loss(ratio_BT, facts)
    loss.total.backward()
    assert loss.total.item() == pytest.approx(50.0)
    assert ratio_BT.grad is not None
    assert ratio_BT.grad[0, :3].tolist() == pytest.approx([-10 / 3] * 3)
    assert ratio_BT.grad[1, :2].tolist() == pytest.approx([5.0] * 2)


@pytest.mark.parametrize("objective", EVERY, ids=repr)
def test_weight_is_a_plain_count(objective: Objective, make_facts: MakeFacts) -> None:
    """Groups for pairs and labels, tokens for SFT and `token`, sequences for `sequence`, sequences × length for `constant`."""
    facts = make_facts(objective)
    sequences, tokens = len(facts.group_B), facts.mask_BT.sum().item()
    expected = {"pair": 2, "label": 3, "chat": tokens, "group": tokens}[objective.kind]
    if isinstance(objective, GRPO) and objective.aggregate != "token":
        expected = sequences * (1024 if objective.aggregate == "constant" else 1)
    assert objective.weight(facts.mask_BT, facts.group_B, facts.feedback_B).item() == expected


@pytest.mark.parametrize("objective", EVERY, ids=repr)
def test_R12_an_empty_micro_batch_weighs_nothing_and_has_a_gradient(objective: Objective) -> None:
    """No rows: loss 0, weight 0, all metric weights 0, and backward works, so that every process can take part in a step."""
    ratio_BT = torch.zeros(0, 3, requires_grad=True)
    group_B = torch.zeros(0, dtype=torch.long)
    facts = Facts(torch.zeros(0, 3, dtype=torch.bool), group_B, torch.zeros(0), ratio_BT.detach(), torch.zeros(()))
    loss = objective.loss(ratio_BT, facts)
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert objective.weight(facts.mask_BT, group_B, facts.feedback_B).item() == 0
    assert loss.metrics and all(value.item() == weight.item() == 0 for value, weight in loss.metrics.values())
    assert ratio_BT.grad is not None


@pytest.mark.parametrize("objective", [SFT(), GRPO(beta=0.1), GRPO(beta=0.1, aggregate="sequence")], ids=repr)
def test_R12_a_fully_masked_micro_batch_gives_zero(objective: Objective, make_facts: MakeFacts) -> None:
    """No token counts: loss and gradient exactly 0, no 0/0, whatever the log-ratios."""
    facts = make_facts(objective)
    ratio_BT = torch.full(facts.mask_BT.shape, 2.0, dtype=torch.float64, requires_grad=True)
    loss = objective.loss(ratio_BT, facts._replace(mask_BT=torch.zeros_like(facts.mask_BT), log_ratio_BT=ratio_BT))
    loss.total.backward()
    assert loss.total.item() == 0.0
    assert ratio_BT.grad is not None and (ratio_BT.grad == 0).all()


def test_sums_and_means_follow_the_mask_alone() -> None:
    """Values 1, 0, 5 with the last one masked: sum 1, mean 1/2 (a zero counts), and an all-masked row gives 0."""
    values_BT = torch.tensor([[1.0, 0.0, 5.0], [2.0, 2.0, 2.0]])
    mask_BT = torch.tensor([[True, True, False], [False, False, False]])
    assert sequence_sum(values_BT, mask_BT).tolist() == [1.0, 0.0]
    assert sequence_mean(values_BT, mask_BT).tolist() == [0.5, 0.0]
    assert [x.item() for x in total(values_BT, mask_BT)] == [1.0, 2.0]
    assert [x.item() for x in total(values_BT)] == [12.0, 6.0]
    assert not any(x.requires_grad for x in total(values_BT.requires_grad_()))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DPO(beta=0.0), "objective.beta is 0.0: expected a finite number above 0, e.g. 0.1."),
        (lambda: DPO(beta=math.inf), "objective.beta is inf: expected a finite number above 0, e.g. 0.1."),
        (lambda: DPO(label_smoothing=0.5), "objective.label_smoothing is 0.5: expected a share in [0, 0.5)."),
        (lambda: IPO(tau=-1.0), "objective.tau is -1.0: expected a finite number above 0, e.g. 0.1."),
        (lambda: SimPO(beta=math.nan), "objective.beta is nan: expected a finite number above 0, e.g. 2.0."),
        (lambda: SimPO(margin=-0.1), "objective.margin is -0.1: expected a finite number from 0 on."),
        (lambda: KTO(beta=-0.1), "objective.beta is -0.1: expected a finite number above 0, e.g. 0.1."),
        (lambda: KTO(desirable_weight=-1.0), "objective.desirable_weight is -1.0: expected a finite number from 0 on."),
        (lambda: KTO(undesirable_weight=math.nan), "objective.undesirable_weight is nan: expected a finite number from 0 on."),
        (lambda: GRPO(beta=-1.0), "objective.beta is -1.0: expected a finite number from 0 on."),
        (lambda: GRPO(epsilon_low=0.0), "objective.epsilon_low is 0.0: expected a number above 0, e.g. 0.2."),
        (lambda: GRPO(epsilon_high=-0.2), "objective.epsilon_high is -0.2: expected a number above 0, e.g. 0.2."),
        (lambda: GRPO(constant_length=0), "objective.constant_length is 0: expected a number of tokens from 1 on."),
    ],
)
def test_settings_out_of_range_are_named(make: Callable[[], Objective], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        make()
    assert str(error.value) == message
