"""GRPO against TRL's own trainer on the same groups: loss, gradient and metrics in float32.

TRL's side is a real `GRPOTrainer`: stored completions and rewards stand in for generation and scoring, all else is its own, from
advantages over shuffling and splitting to `compute_loss`. Written against TRL 1.16.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from comparison import assert_agree, average, one_step, perturbed, token_logps
from humanline.objectives import GRPO, Facts

pytest.importorskip("trl", minversion="1.16.0", reason="TRL 1.16 or later is not installed")
from trl import GRPOConfig, GRPOTrainer

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")

Settings = Callable[..., dict[str, Any]]
Groups = dict[str, list[tuple[str, float | None]]]

GROUPS: Groups = {
    "abc:": [("def", 1.0), ("g", 0.0), ("hijkl", 0.0), ("mn", 0.3)],
    "o:": [("pqr", 0.1), ("stuv", 0.1), ("w", 0.1), ("xy", 0.1)],
    "z1:": [("23", -1.0), ("456789", 2.0), ("0", 0.5), ("a=b", 0.0)],
}
LONGEST_COMPLETION = 8
"""tokens, the length of `dr_grpo`"""


class StoredRollouts:
    """TRL's trainer over stored groups and three different models.

    The reference is the model in `directory`; `old` scores the completions (π_old); then `policy` takes its place.
    """

    def __init__(
        self,
        directory: str,
        old: PreTrainedModel,
        policy: PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        args: GRPOConfig,
        groups: Groups,
    ) -> None:
        self.groups, self.tokenizer = groups, tokenizer
        self.trainer = GRPOTrainer(
            model=directory,
            reward_funcs=self.rewards,
            args=args,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in groups]),
            processing_class=tokenizer,
            rollout_func=self.rollouts,
        )
        self.trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self.trainer.model.load_state_dict(old.state_dict())
        self.trainer.model.train()
        rows = next(iter(self.trainer.get_train_dataloader()))
        self.micro_batches = []
        for _ in range(args.steps_per_generation):
            self.micro_batches.append(self.trainer._prepare_inputs(rows))
            self.trainer._step += 1
        self.trainer.model.load_state_dict(policy.state_dict())

    def stored(self, prompts: list[str]) -> list[tuple[str, float | None]]:
        """The next completion and reward of each prompt; TRL repeats a prompt for every completion."""
        rest = {prompt: iter(group) for prompt, group in self.groups.items()}
        return [next(rest[prompt]) for prompt in prompts]

    def rollouts(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, Any]:
        ids = [self.tokenizer(text)["input_ids"] + [self.tokenizer.eos_token_id] for text, _ in self.stored(prompts)]
        return {"prompt_ids": self.tokenizer(prompts)["input_ids"], "completion_ids": ids, "logprobs": None}

    def rewards(self, prompts: list[str], **_: object) -> list[float | None]:
        return [reward for _, reward in self.stored(prompts)]

    def loss(self) -> Tensor:
        """TRL adds the losses of the micro-batches of one optimizer step."""
        return torch.stack([self.trainer.compute_loss(self.trainer.model, inputs) for inputs in self.micro_batches]).sum()

    def metric(self, name: str) -> float:
        """Mean over micro-batches."""
        values = self.trainer._metrics["train"][name]
        return float(sum(values) / len(values))


def group_step(
    policy: PreTrainedModel, old: PreTrainedModel, reference: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, groups: Groups
) -> tuple[Tensor, Facts]:
    """All groups in order, right-padded: log-ratios against π_old, and in the facts those against the reference."""
    rows = [(index, prompt, text, reward) for index, (prompt, group) in enumerate(groups.items()) for text, reward in group]
    ids = [tokenizer(prompt + text)["input_ids"] + [tokenizer.eos_token_id] for _, prompt, text, _ in rows]
    length = max(map(len, ids))
    ids_BL = torch.tensor([row + [tokenizer.pad_token_id] * (length - len(row)) for row in ids])
    attention_BL = torch.tensor([[1] * len(row) + [0] * (length - len(row)) for row in ids])
    prompt_B1 = torch.tensor([[len(prompt)] for _, prompt, _, _ in rows])
    mask_BT = (attention_BL[:, 1:] == 1) & (torch.arange(1, length) >= prompt_B1)
    with torch.no_grad():
        old_BT, reference_BT = token_logps(old, ids_BL, attention_BL), token_logps(reference, ids_BL, attention_BL)
    policy_BT = token_logps(policy, ids_BL, attention_BL)
    feedback_B = torch.tensor([torch.nan if reward is None else reward for *_, reward in rows])
    group_B = torch.tensor([index for index, *_ in rows])
    return policy_BT - old_BT, Facts(mask_BT, group_B, feedback_B, policy_BT - reference_BT, torch.zeros(()))


def one_step_of(micro_batches: int, settings: Settings, **changes: Any) -> GRPOConfig:
    """One optimizer step over the 12 completions. `num_iterations` 2 makes TRL keep π_old, so that the ratio is not 1."""
    shape = {
        "per_device_train_batch_size": 12 // micro_batches,
        "gradient_accumulation_steps": micro_batches,
        "steps_per_generation": micro_batches,
        "num_iterations": 2,
        "num_generations": 4,
        "max_completion_length": LONGEST_COMPLETION,
        "use_bias_correction_kl": False,
    }
    return GRPOConfig(**settings(**shape, **changes))


@pytest.mark.parametrize(
    ("loss_type", "scale_rewards", "micro_batches", "objective"),
    [
        ("dapo", "group", 1, GRPO(beta=0.04)),
        ("dapo", "group", 3, GRPO(beta=0.04)),
        ("bnpo", "group", 1, GRPO(beta=0.04)),
        ("grpo", "group", 1, GRPO(beta=0.04, aggregate="sequence")),
        ("grpo", "group", 3, GRPO(beta=0.04, aggregate="sequence")),
        ("dr_grpo", "none", 1, GRPO(beta=0.04, aggregate="constant", constant_length=LONGEST_COMPLETION, scale="none")),
        ("dr_grpo", "none", 3, GRPO(beta=0.04, aggregate="constant", constant_length=LONGEST_COMPLETION, scale="none")),
    ],
)
def test_grpo(
    loss_type: str,
    scale_rewards: str,
    micro_batches: int,
    objective: GRPO,
    reference: PreTrainedModel,
    directory: str,
    tokenizer: PreTrainedTokenizerFast,
    settings: Settings,
) -> None:
    """Advantages, ε on both sides, the KL term and the aggregation agree, though TRL shuffles the rows and splits groups.

    Normalisers. `dapo` divides by the completion tokens of the whole generation batch, scaled to one optimizer step: ours,
    whenever a step is a whole generation batch (with several steps in it TRL divides each by their average, we by its own count).
    `grpo` and `dr_grpo` average per micro-batch and divide by the number of micro-batches: ours, as all TRL's are equally large.
    `bnpo` divides by the tokens of each micro-batch, so only a step of one micro-batch has our value.

    KL. TRL multiplies k3 by ρ (DeepSeek-V3.2's estimator) unless `use_bias_correction_kl` is off; ours is the paper's k3: off.
    TRL clamps ρ itself, ours its logarithm; TRL computes k3 as exp(−d) + d − 1, ours as expm1(−d) + d: equal but for rounding.
    """
    old, policy = perturbed(reference, seed=5, size=0.04), perturbed(reference, seed=6, size=0.06)
    args = one_step_of(micro_batches, settings, loss_type=loss_type, scale_rewards=scale_rewards, beta=0.04)
    stored = StoredRollouts(directory, old, policy, tokenizer, args, GROUPS)
    assert len(stored.micro_batches) == micro_batches
    theirs = stored.loss()
    loss, ours = one_step(objective, *group_step(policy, old, reference, tokenizer, GROUPS))
    assert_agree((policy, ours), (stored.trainer.model, theirs))

    assert average(loss, "ppo_clipped_low") > 0 and average(loss, "ppo_clipped_high") > 0 and average(loss, "kl") > 0.01
    assert average(loss, "reward") == pytest.approx(stored.metric("reward"), abs=1e-6)
    assert average(loss, "frac_zero_std_groups") == pytest.approx(stored.metric("frac_reward_zero_std"), abs=1e-6)
    if micro_batches == 1:  # TRL logs a mean over micro-batches, whatever their tokens
        assert average(loss, "kl") == pytest.approx(stored.metric("kl"), rel=1e-5)
        assert average(loss, "ppo_clipped_low") == pytest.approx(stored.metric("clip_ratio/low_mean"), abs=1e-6)
        assert average(loss, "ppo_clipped_high") == pytest.approx(stored.metric("clip_ratio/high_mean"), abs=1e-6)


def test_grpo_with_an_unscored_completion(
    reference: PreTrainedModel, directory: str, tokenizer: PreTrainedTokenizerFast, settings: Settings
) -> None:
    """Both leave an unscored completion out of its group's mean and standard deviation.

    TRL then gives it A = 0 and goes on counting its tokens, and its KL term; for us it takes no part at all. Without a KL term
    the losses therefore differ by exactly the ratio of the token counts.
    """
    group = GROUPS["z1:"]
    groups = GROUPS | {"z1:": [group[0], (group[1][0], None), *group[2:]]}
    old, policy = perturbed(reference, seed=5, size=0.04), perturbed(reference, seed=6, size=0.06)
    stored = StoredRollouts(directory, old, policy, tokenizer, one_step_of(1, settings, loss_type="dapo", beta=0.0), groups)
    theirs = stored.loss()
    ratio_BT, facts = group_step(policy, old, reference, tokenizer, groups)
    _, ours = one_step(GRPO(), ratio_BT, facts)
    tokens, unscored = int(facts.mask_BT.sum()), int(facts.mask_BT[facts.feedback_B.isnan()].sum())
    assert unscored == len("456789") + 1
    assert_agree((policy, ours * (tokens - unscored) / tokens), (stored.trainer.model, theirs))
