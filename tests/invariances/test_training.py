"""The whole line from groups to gradient: equal under every split, order and padding; exact at the reference; limits hold."""

from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest
import torch

from builders import config, groups, loop, tiny_gpt2, tiny_llama, train
from humanline.config import OptimizerConfig, TrainConfig
from humanline.data.batch import bundle
from humanline.data.rows import EncodedGroup
from humanline.errors import TrainingError
from humanline.limit import Clip, Limiter, Off, Reject
from humanline.models import disable_dropout
from humanline.objectives import DPO, GRPO, IPO, KTO, SFT, Objective, SimPO

OBJECTIVES: dict[str, Objective] = {
    "dpo": DPO(beta=0.5),
    "cdpo": DPO(beta=0.5, label_smoothing=0.1),
    "ipo": IPO(tau=0.5),
    "kto": KTO(beta=0.5, undesirable_weight=1.5),
    "grpo token": GRPO(beta=0.1),
    "grpo sequence": GRPO(beta=0.1, aggregate="sequence"),
    "grpo constant": GRPO(beta=0.1, aggregate="constant", constant_length=16),
    "simpo": SimPO(),
    "sft": SFT(),
}
WITH_REFERENCE = [name for name, objective in OBJECTIVES.items() if objective.reference]


def gradient(settings: TrainConfig, data: list[EncodedGroup], t: int, model: torch.nn.Module | None = None) -> torch.Tensor:
    """The gradient of step t, flattened, after t − 1 real updates."""
    made = loop(model or tiny_llama(), data, settings, last=8)
    if made.reference:
        made.sync(1, before=1)
    for step in range(1, t):
        made.step(step)
    taken: list[torch.Tensor] = []
    made.optimizer.step = lambda: taken.append(torch.cat([p.grad.flatten() for p in made.module.parameters()]))
    made.step(t)
    return taken[0]


def plain(name: str, **changes: object) -> TrainConfig:
    optimizer = OptimizerConfig(lr=1e-2, warmup=0, max_grad_norm=None)
    return config(OBJECTIVES[name], optimizer=optimizer, **changes)


def assert_close(got: torch.Tensor, expected: torch.Tensor) -> None:
    """1e-6 relative in float32, and not by both being zero."""
    assert expected.norm() > 1e-3
    assert (got - expected).norm() <= 1e-6 * expected.norm()


@pytest.mark.parametrize("limit", [Clip(-0.3, 0.2), Reject(gamma_policy=2.0)], ids=["clip", "reject"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_R9_gradient_is_the_same_for_every_micro_batch_split(name: str, limit: Limiter):
    """Steps of 4 and of 3 groups, each as one micro-batch, as several, and as one a group."""
    settings = plain(name) if not OBJECTIVES[name].reference else plain(name, limit=limit, sync_every=2)
    data = groups(OBJECTIVES[name].kind, 10)
    for rows in (10, 3):  # a full first step of 4 groups, and a short one of 3
        expected = gradient(settings.replace(micro_batch_tokens=100_000), data[:rows], 1)
        for budget in (1, 60, 130):
            assert_close(gradient(settings.replace(micro_batch_tokens=budget), data[:rows], 1), expected)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_R9_the_short_last_step_has_its_own_weight(name: str):
    """Rows 9 of an epoch of 9 in steps of 4: the short step's gradient is that of a run whose only step is this row."""
    data = groups(OBJECTIVES[name].kind, 9)
    settings = plain(name, micro_batch_tokens=1)
    settings = settings.replace(
        rows=replace(settings.rows, shuffle=False), optimizer=OptimizerConfig(lr=1e-12, warmup=0, max_grad_norm=None)
    )
    last = gradient(settings, data, 3)
    alone = gradient(settings, data[8:], 1)
    assert (last - alone).norm() <= 2e-5 * alone.norm()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradient_does_not_depend_on_the_order_of_rows(name: str):
    data = groups(OBJECTIVES[name].kind, 4)
    settings = plain(name)
    expected = gradient(settings, data, 1)
    for order in ([3, 2, 1, 0], [1, 3, 0, 2]):
        assert_close(gradient(settings, [data[i] for i in order], 1), expected)


@pytest.mark.parametrize("name", WITH_REFERENCE)
@pytest.mark.parametrize("sync_every", [1, 3, None])
def test_R7_policy_and_reference_are_identical_at_step_1(name: str, sync_every: int | None):
    """Every log-ratio is exactly 0: no spread, DPO's loss is ln 2, KTO's ½, IPO's (1/2τ)², GRPO's that of its advantages alone."""
    data = groups(OBJECTIVES[name].kind, 10)
    line = train(tiny_llama(), data, plain(name, limit=Clip(), sync_every=sync_every, micro_batch_tokens=80), steps=1, last=6)[0]
    assert line["log_ratio_std"] == 0.0 and line["log_ratio_mean"] == 0.0 and line["reference_age"] == 0
    expected = {"dpo": math.log(2), "cdpo": math.log(2), "ipo": 1.0, "kto": 0.75 - 0.25 * line.get("desirable_share", 0)}
    if name in expected:
        assert line["loss"] == pytest.approx(expected[name], abs=1e-6)


@pytest.mark.parametrize("sync_every", [1, 2, 3, 5])
@pytest.mark.parametrize("name", ["dpo", "kto", "grpo token"])
def test_numbers_equal_a_second_model_that_is_copied_at_every_sync(name: str, sync_every: int):
    """What others keep in memory: a copy of the policy, taken after the gradients of step t and before its update, t % k == 0."""
    data = groups(OBJECTIVES[name].kind, 10)
    made = loop(tiny_llama(), data, plain(name, limit=Clip(), sync_every=sync_every), last=8)
    made.sync(1, before=1)
    second = copy.deepcopy(made.module)
    for t in range(1, 9):
        work = made.feed.work(t)
        for micro_batch in [*work.train, *work.mismatched]:
            with torch.no_grad():
                expected = second(**micro_batch.inputs)
            torch.testing.assert_close(made.reference.logps(micro_batch), expected, atol=1e-5, rtol=0)
        before = copy.deepcopy(made.module.state_dict())
        made.step(t)
        if t % sync_every == 0:
            second.load_state_dict(before)


@pytest.mark.parametrize("name", WITH_REFERENCE)
def test_infinite_bounds_and_a_late_sync_are_the_plain_objective_to_the_bit(name: str):
    data = groups(OBJECTIVES[name].kind, 10)
    lines = [
        train(tiny_llama(), data, plain(name, limit=limit, sync_every=k), steps=5)
        for limit, k in ((Off(), None), (Clip(-math.inf, math.inf), 6))
    ]
    assert [line["loss"] for line in lines[0]] == [line["loss"] for line in lines[1]]
    assert [line["grad_norm"] for line in lines[0]] == [line["grad_norm"] for line in lines[1]]


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    data = groups("pair", 10)
    runs = [
        [line["loss"] for line in train(tiny_llama(), data, plain("dpo", limit=Reject(), sync_every=2, seed=seed), steps=6)]
        for seed in (0, 0, 1)
    ]
    assert runs[0] == runs[1] != runs[2]


def test_R8_gpt2_with_dropout_in_its_config_trains_without_noise():
    """GPT-2 style with dropout 0.1: after switching it off, the spread of log-ratios at step 1 is exactly 0."""
    model = tiny_gpt2()
    disable_dropout(model)
    line = train(model, groups("group", 8), plain("grpo token", limit=Clip(), sync_every=1), steps=1)[0]
    assert line["log_ratio_std"] == 0.0


def test_R13_length_normalised_loss_right_after_a_sync_is_finite():
    """IPO with k = 1: every ratio of step 1 is 0; dividing by the count of non-zero ratios would be 0/0."""
    lines = train(tiny_llama(), groups("pair", 8), plain("ipo", limit=Clip(), sync_every=1), steps=3)
    assert lines[0]["loss"] == pytest.approx(1.0) and all(math.isfinite(line["loss"]) for line in lines)


def test_R23_equal_rewards_give_no_advantage_and_are_counted():
    """Rewards [1, 1, 1, 1]: with β = 0 loss and gradient are exactly 0; with β > 0 only the KL term acts."""
    data = [replace_rewards(group, 1.0) for group in groups("group", 4)]
    plain_line = train(tiny_llama(), data, config(GRPO()), steps=1)[0]
    assert plain_line["loss"] == 0.0 and plain_line["grad_norm"] == 0.0 and plain_line["frac_zero_std_groups"] == 1.0
    kl = train(tiny_llama(), [*groups("group", 4), *data], config(GRPO(beta=0.1), batch_size=4), steps=3)
    assert all(math.isfinite(line["loss"]) for line in kl)
    skipped = train(tiny_llama(), data, config(GRPO(beta=0.1, skip_equal_groups=True)), steps=2)
    assert [line["loss"] for line in skipped] == [0.0, 0.0] and skipped[1]["grad_norm"] == 0.0


def replace_rewards(group: EncodedGroup, reward: float) -> EncodedGroup:
    return replace(group, completions=tuple(replace(completion, feedback=reward) for completion in group.completions))


def test_R24_kto_works_in_micro_batches_of_one_and_with_a_single_prompt():
    """K does not depend on micro-batches (1e-5 after five updates that carry rounding on); a step of one prompt has K = 0."""
    data = [replace_rewards(group, 1.0) for group in groups("label", 9)]
    one, all_at_once = (
        train(tiny_llama(), data, plain("kto", limit=Clip(), sync_every=4, micro_batch_tokens=budget), steps=6)
        for budget in (1, 10_000)
    )
    assert [line["kl_mismatched"] for line in one] == pytest.approx([line["kl_mismatched"] for line in all_at_once], abs=1e-5)
    assert any(line["kl_mismatched"] > 0 for line in one)
    alone = train(tiny_llama(), data[:1], plain("kto", batch_size=1), steps=2)
    assert [line["kl_mismatched"] for line in alone] == [0.0, 0.0]


def test_R31_stored_log_probs_stand_in_for_the_old_policy():
    """Plain GRPO with the sampler's log-probs needs no scoring pass, and equals scoring when they are the starting policy's."""
    data = groups("group", 6)
    scored = train(tiny_llama(), data, plain("grpo token").replace(objective=GRPO()), steps=3)
    settings = config(GRPO(), optimizer=OptimizerConfig(lr=1e-2, warmup=0, max_grad_norm=None))
    first = loop(tiny_llama(), data, settings, last=3)
    first.sync(1, before=1)
    stored = [
        replace(
            group,
            completions=tuple(
                replace(completion, logps=first.reference.numbers[sequence.key])
                for completion, sequence in zip(group.completions, bundle(group, row), strict=True)
            ),
        )
        for row, group in enumerate(data)
    ]
    made = loop(tiny_llama(), stored, settings, last=3)
    assert made.reference is None
    assert [made.step(t)["loss"] for t in (1, 2, 3)] == [line["loss"] for line in scored]


def test_non_finite_loss_stops_before_the_update():
    made = loop(tiny_llama(), groups("pair", 4), plain("dpo"), last=3)
    made.sync(1, before=1)
    for values in made.reference.numbers.values():
        values[:] = math.nan
    before = copy.deepcopy(made.module.state_dict())
    with pytest.raises(TrainingError, match=r"step 1: loss nan.*weights are those of step 0"):
        made.step(1)
    assert all(torch.equal(value, before[name]) for name, value in made.module.state_dict().items())
