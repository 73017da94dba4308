"""Losses and gradients of every objective, worked out by hand in float64.

Each test states the arithmetic it checks. Rows are token log-ratios in nats, padded with a loud value that must not count.
"""

from __future__ import annotations

import pytest
import torch

from humanline.limit import Clip, Limiter, Off
from humanline.objectives import DPO, GRPO, IPO, KTO, SFT, Facts, Objective, SimPO

PADDING = 7.0
"""nats at padded positions"""
PLAIN = Off()


@pytest.fixture(params=[torch.float64, torch.float32], ids=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def approx(expected: object, dtype: torch.dtype = torch.float32) -> object:
    """Eight printed decimals in float64, single precision in float32, which all metrics have."""
    return pytest.approx(expected, rel=0, abs=2e-8 if dtype is torch.float64 else 2e-6)


class Evaluated:
    """An objective behind a limiter on literal rows: loss, weight, metrics as ratios, and the gradient of every row's tokens."""

    def __init__(
        self,
        objective: Objective,
        rows: list[list[float]],
        feedback: list[float],
        groups: list[int],
        dtype: torch.dtype,
        *,
        limiter: Limiter = PLAIN,
        kl: float = 0.0,
    ) -> None:
        longest = max(map(len, rows))
        ratio_BT = torch.tensor([row + [PADDING] * (longest - len(row)) for row in rows], dtype=dtype, requires_grad=True)
        mask_BT = torch.tensor([[t < len(row) for t in range(longest)] for row in rows])
        group_B = torch.tensor(groups)
        feedback_B = torch.tensor(feedback, dtype=dtype)
        facts = Facts(mask_BT, group_B, feedback_B, ratio_BT, torch.tensor(kl, dtype=dtype))
        loss = objective.loss(limiter(ratio_BT, mask_BT).ratio_BT, facts)
        loss.total.backward()
        assert ratio_BT.grad is not None and (ratio_BT.grad[~mask_BT] == 0).all()
        self.total = loss.total.item()
        self.weight = objective.weight(mask_BT, group_B, feedback_B).item()
        self.metrics = {name: (value / weight).item() for name, (value, weight) in loss.metrics.items()}
        self.gradients = [gradient[: len(row)].tolist() for gradient, row in zip(ratio_BT.grad, rows, strict=True)]


PAIR_ROWS = [[0.3, -1.7], [1.2, -0.4, 0.1]]
PAIR = (PAIR_ROWS, [1.0, 0.0], [0, 0])
PAIR_BOUNDS = Clip(low=-1.0, high=0.8)


def test_dpo_clipped(dtype: torch.dtype) -> None:
    """Perceived chosen 0.3, −1.0 (sum −0.7), rejected 0.8, −0.4, 0.1 (sum 0.5); h = 0.2 (−0.7 − 0.5) = −0.24.

    −log σ(−0.24) = log(1 + e^0.24) = 0.82032997;  d/dr = ∓β σ(−h) = ∓0.2 · 0.55971365 = ∓0.11194273, 0 on the two clipped tokens.
    """
    result = Evaluated(DPO(beta=0.2), *PAIR, dtype, limiter=PAIR_BOUNDS)
    assert result.total == approx(0.82032997, dtype)
    assert result.weight == 1
    assert result.gradients[0] == [approx(-0.11194273, dtype), 0.0]
    assert result.gradients[1] == [0.0, approx(0.11194273, dtype), approx(0.11194273, dtype)]
    assert result.metrics == approx(
        {"reward_chosen": -0.14, "reward_rejected": 0.1, "reward_margin": -0.24, "reward_accuracy": 0.0}
    )


def test_dpo_plain(dtype: torch.dtype) -> None:
    """The same pair without bounds: sums −1.4 and 0.9, h = −0.46, loss log(1 + e^0.46) = 0.94936722.

    d/dr = ∓0.2 σ(0.46) = ∓0.12260284.
    """
    result = Evaluated(DPO(beta=0.2), *PAIR, dtype)
    assert result.total == approx(0.94936722, dtype)
    assert result.gradients == [approx([-0.12260284] * 2, dtype), approx([0.12260284] * 3, dtype)]


def test_cdpo_clipped(dtype: torch.dtype) -> None:
    """Smoothing 0.1, h = −0.24: 0.9 log(1 + e^0.24) + 0.1 log(1 + e^−0.24) = 0.9 · 0.82032997 + 0.1 · 0.58032997 = 0.79632997.

    d/dr = ∓β (σ(−h) − s) = ∓0.2 (0.55971365 − 0.1) = ∓0.09194273.
    """
    result = Evaluated(DPO(beta=0.2, label_smoothing=0.1), *PAIR, dtype, limiter=PAIR_BOUNDS)
    assert result.total == approx(0.79632997, dtype)
    assert result.gradients[0] == [approx(-0.09194273, dtype), 0.0]
    assert result.gradients[1] == [0.0, approx(0.09194273, dtype), approx(0.09194273, dtype)]


def test_ipo_clipped(dtype: torch.dtype) -> None:
    """τ = 0.5, target 1. Perceived means −0.35 and 0.5/3: (−0.35 − 0.16666667 − 1)² = (−1.51666667)² = 2.30027778.

    d/dr = 2 · (−1.51666667)/2 = −1.51666667 on chosen, +2 · 1.51666667/3 = 1.01111111 on rejected tokens, 0 on clipped ones.
    """
    result = Evaluated(IPO(tau=0.5), *PAIR, dtype, limiter=PAIR_BOUNDS)
    assert result.total == approx(2.30027778, dtype)
    assert result.gradients[0] == [approx(-1.51666667, dtype), 0.0]
    assert result.gradients[1] == [0.0, approx(1.01111111, dtype), approx(1.01111111, dtype)]


def test_ipo_plain(dtype: torch.dtype) -> None:
    """Means −0.7 and 0.3: (−0.7 − 0.3 − 1)² = 4; d/dr = 2 (−2)/2 = −2 on chosen and +4/3 on rejected tokens."""
    result = Evaluated(IPO(tau=0.5), *PAIR, dtype)
    assert result.total == approx(4.0, dtype)
    assert result.gradients == [approx([-2.0, -2.0], dtype), approx([4 / 3] * 3, dtype)]


def test_simpo(dtype: torch.dtype) -> None:
    """β 2, γ 1. Mean log-probs −1.0 and −1.2: h = 2 · 0.2 − 1 = −0.6, loss log(1 + e^0.6) = 1.03748795.

    d/d log π = ∓β σ(0.6)/T = ∓2 · 0.64565631/T: −0.64565631 on two chosen tokens, +1.29131261 on the single rejected one.
    """
    result = Evaluated(SimPO(beta=2.0, margin=1.0), [[-0.5, -1.5], [-1.2]], [1.0, 0.0], [0, 0], dtype)
    assert result.total == approx(1.03748795, dtype)
    assert result.gradients == [approx([-0.64565631] * 2, dtype), approx([1.29131261], dtype)]
    assert result.metrics["reward_margin"] == approx(0.4)


def test_sft(dtype: torch.dtype) -> None:
    """Log-probs −0.5, −1.5 and −0.25: sum 2.25 over 3 tokens, gradient −1 on each."""
    result = Evaluated(SFT(), [[-0.5, -1.5], [-0.25]], [1.0, 1.0], [0, 1], dtype)
    assert (result.total, result.weight) == (2.25, 3)
    assert result.gradients == [[-1.0, -1.0], [-1.0]]
    assert result.metrics == {"logp": -0.75}


def test_kto_both_classes(dtype: torch.dtype) -> None:
    """β 0.5, λ_U 1.5, K 0.4. Desirable R = 0.5 + 0.7 = 1.2: 1 − σ(0.5 · 0.8) = 0.40131234.

    Undesirable R = 0.9: 1.5 (1 − σ(0.5 (0.4 − 0.9))) = 1.5 · 0.56217650 = 0.84326475. Sum 1.24457709 over two rows, not over Σ λ.
    d/dr = −0.5 · σ(0.4) σ(−0.4) = −0.12013037 and +1.5 · 0.5 · σ(0.25) σ(−0.25) = 0.18460056.
    """
    result = Evaluated(KTO(beta=0.5, undesirable_weight=1.5), [[0.5, 0.7], [0.9]], [1.0, 0.0], [0, 1], dtype, kl=0.4)
    assert result.total == approx(1.24457709, dtype)
    assert result.weight == 2
    assert result.gradients == [approx([-0.12013037] * 2, dtype), approx([0.18460056], dtype)]
    assert result.metrics == approx({"reward_desirable": 0.6, "reward_undesirable": 0.45, "desirable_share": 0.5})


def test_kto_clipped(dtype: torch.dtype) -> None:
    """Bounds −1 and 0.6 turn the desirable row 0.5, 0.7 into R = 1.1: 1.2 (1 − σ(0.5 · 0.7)) = 1.2 · 0.41338242 = 0.49605891.

    d/dr = −1.2 · 0.5 · σ(0.35) σ(−0.35) = −0.14549844 on the first token, 0 on the clipped second.
    """
    result = Evaluated(KTO(beta=0.5, desirable_weight=1.2), [[0.5, 0.7]], [1.0], [0], dtype, limiter=Clip(-1.0, 0.6), kl=0.4)
    assert result.total == approx(0.49605891, dtype)
    assert result.gradients == [[approx(-0.14549844, dtype), 0.0]]


def test_kto_keeps_the_gradient_of_a_far_row(dtype: torch.dtype) -> None:
    """β (R − K) = 20: loss σ(−20) = 2.0611537e-09 and slope −2.0611537e-09, though σ(20) is 1 in float32."""
    result = Evaluated(KTO(beta=1.0), [[20.0]], [1.0], [0], dtype)
    assert result.total == pytest.approx(2.0611537e-09, rel=1e-6)
    assert result.gradients[0][0] == pytest.approx(-2.0611537e-09, rel=1e-6)


GROUP_ROWS = [[0.1, 0.5], [-0.5, 0.1, -0.1]]
GROUP = (GROUP_ROWS, [1.0, 0.0], [0, 0])
"""Rewards 1 and 0: mean 0.5, unbiased std √0.5, A = ±0.5/(0.70710678 + 0.0001) = ±0.70700680."""


@pytest.mark.parametrize(
    ("settings", "total", "weight", "scale_up", "scale_down"),
    [
        ({"aggregate": "token"}, 0.35692349, 5, 1, 1),
        ({"aggregate": "sequence"}, -0.15265409, 2, 1 / 2, 1 / 3),
        ({"aggregate": "constant", "constant_length": 4}, 0.35692349, 8, 1, 1),
    ],
)
def test_grpo_aggregation(
    settings: dict[str, object], total: float, weight: float, scale_up: float, scale_down: float, dtype: torch.dtype
) -> None:
    """ε = 0.2. ρ of the better completion: 1.10517092, 1.64872127 → 1.2; of the worse: 0.60653066 → 0.8, 1.10517092, 0.90483742.

    Sums 2.30517092 and 2.81000834. Tokens: A (2.81000834 − 2.30517092) = 0.35692349, over 5 tokens or over 2 · 4.
    Sequences: A (2.81000834/3 − 2.30517092/2) = −0.15265409, over 2 sequences.
    d/dr = ∓A ρ: −0.78136335 and 0 (clipped) · 0 (clipped), 0.78136335, 0.63972620; divided by the row's length for sequences.
    """
    result = Evaluated(GRPO(**settings), *GROUP, dtype)
    assert result.total == approx(total, dtype)
    assert result.weight == weight
    assert result.gradients[0] == [approx(-0.78136335 * scale_up, dtype), 0.0]
    assert result.gradients[1] == [0.0, approx(0.78136335 * scale_down, dtype), approx(0.63972620 * scale_down, dtype)]
    assert result.metrics["ppo_clipped_high"] == approx(1 / 5)
    assert result.metrics["ppo_clipped_low"] == approx(1 / 5)
    assert result.metrics["reward"] == 0.5
    assert result.metrics["frac_zero_std_groups"] == 0.0


def test_grpo_clips_twice(dtype: torch.dtype) -> None:
    """scale none, A = ±0.5, bounds ±1.5 nats, then ε = 0.2. The one-sided ε leaves ρ free where A pushes it back.

    Better completion: r = −2 → −1.5, ρ = 0.22313016, loss −0.5 ρ = −0.11156508, no gradient (limiter);
    r = 1.7 → 1.5, ρ → 1.2, loss −0.6, no gradient (both); r = 0.3, ρ = 1.34985881 → 1.2, loss −0.6, no gradient (ε alone).
    Worse: r = 2 → 1.5, ρ = 4.48168907, loss 2.24084454, no gradient (limiter); r = −0.3 → 0.8, loss 0.4, no gradient (ε alone);
    r = 1.4, ρ = 4.05519997, loss 2.02759998, gradient 0.5 ρ = 2.02759998. Sum 3.35687944.
    """
    rows = [[-2.0, 1.7, 0.3], [2.0, -0.3, 1.4]]
    result = Evaluated(GRPO(scale="none"), rows, [1.0, 0.0], [0, 0], dtype, limiter=Clip())
    assert result.total == approx(3.35687944, dtype)
    assert result.gradients == [[0.0, 0.0, 0.0], [0.0, 0.0, approx(2.02759998, dtype)]]
    plain = Evaluated(GRPO(scale="none"), rows, [1.0, 0.0], [0, 0], dtype)
    assert plain.gradients[0] == [approx(-0.06766764, dtype), 0.0, 0.0], (
        "−0.5 e^−2: without the limiter the same token pulls back"
    )
    assert plain.gradients[1] == [approx(3.69452805, dtype), 0.0, approx(2.02759998, dtype)], "0.5 e^2"


def test_grpo_kl_reads_the_unclipped_ratio(dtype: torch.dtype) -> None:
    """A group of one: A = 0, so only β k3 is left. d = 2 and −0.5 under bounds ±0.25: k3 = e^−2 + 1 and e^0.5 − 1.5.

    1.13533528 + 0.14872127 = 1.28405655, times β 0.1 = 0.12840566. d/dd = 0.1 (1 − e^−d) = 0.08646647 and −0.06487213: the KL
    term pulls on tokens that the limiter stopped.
    """
    result = Evaluated(GRPO(beta=0.1), [[2.0, -0.5]], [3.0], [0], dtype, limiter=Clip(-0.25, 0.25))
    assert result.total == approx(0.12840566, dtype)
    assert result.gradients == [approx([0.08646647, -0.06487213], dtype)]
    assert result.metrics["kl"] == approx(1.28405655 / 2)
    assert result.metrics["frac_zero_std_groups"] == 1.0
