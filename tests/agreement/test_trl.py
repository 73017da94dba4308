"""Losses and gradients of the plain objectives against TRL's own trainers on the same rows, in float32.

TRL's side is a real trainer: its data preparation, collator and `compute_loss`. Ours takes the token log-probs of an untouched
copy of the model and hands the log-ratios to the objective. Written against TRL 1.16.0; where definitions differ, the test says how.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from humanline.objectives import DPO, GRPO, IPO, KTO, Facts, Loss, Objective

pytest.importorskip("trl", minversion="1.16.0", reason="TRL is not installed: pip install 'humanline[trl]'")
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, KTOConfig, KTOTrainer

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")

Logps = Callable[[LlamaForCausalLM, Tensor, Tensor], Tensor]
Move = Callable[..., LlamaForCausalLM]
Batch = dict[str, Tensor]

PAIRS = [
    {"prompt": "w1 w2 w3", "chosen": " w4 w5", "rejected": " w6"},
    {"prompt": "w7", "chosen": " w8", "rejected": " w9 w10 w11 w12"},
    {"prompt": "w13 w14", "chosen": " w15 w16 w17", "rejected": " w18 w19"},
]
LABELLED = [
    {"prompt": "w1 w2 w3", "completion": " w4 w5", "label": True},
    {"prompt": "w7", "completion": " w8", "label": False},
    {"prompt": "w13 w14", "completion": " w15 w16 w17 w18", "label": True},
    {"prompt": "w20 w21", "completion": " w22 w23 w24", "label": False},
    {"prompt": "w25", "completion": " w26 w27", "label": True},
]
GROUPS = {
    "w1 w2 w3": [("w4 w5 w6", 1.0), ("w7", 0.0), ("w8 w9 w10 w11 w12", 0.0), ("w13 w14", 0.3)],
    "w15": [("w16 w17 w18", 0.1), ("w19 w20 w21 w22", 0.1), ("w23", 0.1), ("w24 w25", 0.1)],
    "w26 w27": [("w28 w29", -1.0), ("w30 w31 w32 w33 w34 w35", 2.0), ("w36", 0.5), ("w37 w38 w39", 0.0)],
}
MAX_COMPLETION = 8


def settings(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """What every trainer gets: float32 on the CPU, and nothing that reports, saves or drops."""
    common = {"output_dir": str(tmp_path / "trl"), "report_to": "none", "bf16": False, "use_cpu": True, "disable_tqdm": True}
    return common | {"gradient_checkpointing": False} | changes


def gradients(model: LlamaForCausalLM, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}


def assert_agree(ours: tuple[Tensor, dict[str, Tensor]], theirs: tuple[Tensor, dict[str, Tensor]]) -> None:
    """Loss to 1e-5 relative; each parameter's gradient to 1e-5 of the largest entry of the whole gradient."""
    assert ours[0].item() == pytest.approx(theirs[0].item(), rel=1e-5, abs=1e-7)
    assert ours[1].keys() == theirs[1].keys()
    largest = max(gradient.abs().max().item() for gradient in theirs[1].values())
    assert largest > 1e-3, "a zero gradient would agree with anything"
    for name, gradient in theirs[1].items():
        torch.testing.assert_close(ours[1][name], gradient, rtol=0, atol=1e-5 * largest)


def evaluate(objective: Objective, ratio_BT: Tensor, facts: Facts) -> tuple[Loss, Tensor]:
    """The objective on one step held in one micro-batch: sum divided by weight."""
    loss = objective.loss(ratio_BT, facts)
    return loss, loss.total / objective.weight(facts.mask_BT, facts.group_B, facts.feedback_B)


def ratio(
    policy: LlamaForCausalLM, reference: LlamaForCausalLM, batch: Batch, logps: Logps, prefix: str = ""
) -> tuple[Tensor, Tensor]:
    """Token log-ratios and the mask of the completion, at the positions after the first."""
    ids_BL, attention_BL = batch[f"{prefix}input_ids"], batch[f"{prefix}attention_mask"]
    with torch.no_grad():
        reference_BT = logps(reference, ids_BL, attention_BL)
    return logps(policy, ids_BL, attention_BL) - reference_BT, batch[f"{prefix}completion_mask"][:, 1:].bool()


def preference(
    policy: LlamaForCausalLM,
    reference: LlamaForCausalLM,
    rows: list[dict[str, str]],
    tokenizer: PreTrainedTokenizerFast,
    args: DPOConfig,
) -> tuple[DPOTrainer, list[Batch]]:
    """TRL's DPO trainer on copies of the models, and the batches of one epoch."""
    trainer = DPOTrainer(
        model=copy.deepcopy(policy),
        ref_model=copy.deepcopy(reference),
        args=args,
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
    )
    return trainer, list(trainer.get_train_dataloader())


def pair_facts(
    batches: Iterable[Batch], policy: LlamaForCausalLM, reference: LlamaForCausalLM, logps: Logps
) -> tuple[Tensor, Facts]:
    """TRL's batches hold all chosen, then all rejected sequences; ours alternate."""
    ratios, masks = [], []
    for batch in batches:
        ratio_BT, mask_BT = ratio(policy, reference, batch, logps)
        order = torch.arange(len(ratio_BT)).view(2, -1).T.flatten()
        width = 12 - ratio_BT.shape[1]
        ratios.append(torch.nn.functional.pad(ratio_BT[order], (0, width)))
        masks.append(torch.nn.functional.pad(mask_BT[order], (0, width)))
    ratio_BT, mask_BT = torch.cat(ratios), torch.cat(masks)
    pairs = len(ratio_BT) // 2
    group_B, feedback_B = torch.arange(pairs).repeat_interleave(2), torch.tensor([1.0, 0.0]).repeat(pairs)
    return ratio_BT, Facts(mask_BT, group_B, feedback_B, ratio_BT, torch.zeros(()))


@pytest.mark.parametrize(("loss_type", "objective"), [("sigmoid", DPO(beta=0.2)), ("ipo", IPO(tau=0.2))])
def test_dpo_and_ipo(
    loss_type: str,
    objective: Objective,
    reference: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    move: Move,
    logps: Logps,
    tmp_path: Path,
) -> None:
    """No difference in definition: TRL too averages over pairs, and its IPO takes the mean over completion length, its β being τ.

    Rewards and margins are logged alike too.
    """
    policy = move(reference, seed=1, size=0.05)
    args = DPOConfig(**settings(tmp_path, loss_type=[loss_type], beta=0.2, per_device_train_batch_size=3))
    trainer, batches = preference(policy, reference, PAIRS, tokenizer, args)
    theirs = trainer.compute_loss(trainer.model, batches[0])
    loss, ours = evaluate(objective, *pair_facts(batches, policy, reference, logps))
    assert_agree((ours, gradients(policy, ours)), (theirs, gradients(trainer.model, theirs)))
    if loss_type == "sigmoid":
        for our_name, their_name in (
            ("chosen", "chosen"),
            ("rejected", "rejected"),
            ("margin", "margins"),
            ("accuracy", "accuracies"),
        ):
            value, count = loss.metrics[f"reward_{our_name}"]
            assert (value / count).item() == pytest.approx(trainer._metrics["train"][f"rewards/{their_name}"][0], abs=1e-5)


def test_cdpo(reference: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, move: Move, logps: Logps, tmp_path: Path) -> None:
    """TRL's `sigmoid` no longer reads `label_smoothing`, and its `robust` is another loss (it debiases by 1 − 2 s).

    `aot_unpaired` sorts the margins within a batch and then applies exactly cDPO; with one pair in a batch there is nothing to
    sort. So TRL takes one pair at a time, and its three batch means, averaged, are our one step of three pairs.
    """
    policy = move(reference, seed=2, size=0.05)
    args = DPOConfig(
        **settings(tmp_path, loss_type=["aot_unpaired"], label_smoothing=0.3, beta=0.2, per_device_train_batch_size=1)
    )
    trainer, batches = preference(policy, reference, PAIRS, tokenizer, args)
    theirs = torch.stack([trainer.compute_loss(trainer.model, batch) for batch in batches]).mean()
    _, ours = evaluate(DPO(beta=0.2, label_smoothing=0.3), *pair_facts(batches, policy, reference, logps))
    assert len(batches) == 3
    assert_agree((ours, gradients(policy, ours)), (theirs, gradients(trainer.model, theirs)))


@pytest.mark.parametrize("swapped", [False, True])
def test_kto(
    swapped: bool, reference: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, move: Move, logps: Logps, tmp_path: Path
) -> None:
    """The loss has one definition: weighted, summed, divided by the number of rows.

    K differs in scope. TRL pairs x_i with y_{i−1} inside each micro-batch, takes max(0, mean) there, and pairs a row with its own
    completion when the micro-batch is a single row; ours is one K for the whole step, over pairs of distinct prompts. On a step
    that is one micro-batch of distinct prompts these are shifts of the same rows, so K is measured here on TRL's mismatched rows.
    Swapping policy and reference negates every log-ratio, so of the two cases one has K > 0 and the other K = 0.
    """
    policy = move(reference, seed=6, size=0.05)
    policy, reference = (reference, policy) if swapped else (policy, reference)
    trainer = KTOTrainer(
        model=copy.deepcopy(policy),
        ref_model=copy.deepcopy(reference),
        args=KTOConfig(**settings(tmp_path, beta=0.2, per_device_train_batch_size=5, undesirable_weight=1.4)),
        train_dataset=Dataset.from_list(LABELLED),
        processing_class=tokenizer,
    )
    (batch,) = list(trainer.get_train_dataloader())
    theirs = trainer.compute_loss(trainer.model, batch)
    mismatched_BT, mismatched_mask_BT = ratio(policy, reference, batch, logps, "KL_")
    mean = mismatched_BT.detach().where(mismatched_mask_BT, 0.0).sum(-1).mean()
    assert abs(mean) > 0.05 and (mean > 0) != swapped
    ratio_BT, mask_BT = ratio(policy, reference, batch, logps)
    facts = Facts(mask_BT, torch.arange(5), batch["label"].float(), ratio_BT, mean.clamp(min=0))
    loss, ours = evaluate(KTO(beta=0.2, undesirable_weight=1.4), ratio_BT, facts)
    assert facts.kl.item() == pytest.approx(trainer._metrics["train"]["kl"][0], abs=1e-5)
    assert_agree((ours, gradients(policy, ours)), (theirs, gradients(trainer.model, theirs)))
    for our_name, their_name in (("desirable", "chosen"), ("undesirable", "rejected")):
        value, count = loss.metrics[f"reward_{our_name}"]
        assert (value / count).item() == pytest.approx(trainer._metrics["train"][f"rewards/{their_name}"][0], abs=1e-5)


class StoredRollouts:
    """TRL's GRPO trainer fed with fixed completions and rewards in place of generation, and three different models.

    The reference is the model on disk. The completions are scored by a second (π_old); the policy is a third.
    """

    def __init__(
        self,
        args: GRPOConfig,
        directory: str,
        old: LlamaForCausalLM,
        policy: LlamaForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        groups: dict[str, list[tuple[str, float | None]]],
    ) -> None:
        self.rewards = {prompt: [reward for _, reward in completions] for prompt, completions in groups.items()}
        self.ids = {
            prompt: [tokenizer(text)["input_ids"] + [tokenizer.eos_token_id] for text, _ in group]
            for prompt, group in groups.items()
        }
        self.tokenizer = tokenizer
        self.trainer = GRPOTrainer(
            model=directory,
            reward_funcs=self.reward,
            args=args,
            train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in groups]),
            processing_class=tokenizer,
            rollout_func=self.rollout,
        )
        self.trainer.current_gradient_accumulation_steps = args.gradient_accumulation_steps
        self.trainer.model.load_state_dict(old.state_dict())
        self.trainer.model.train()
        rows = next(iter(self.trainer.get_train_dataloader()))
        self.batches = []
        for _ in range(args.steps_per_generation):
            self.batches.append(self.trainer._prepare_inputs(rows))
            self.trainer._step += 1
        self.trainer.model.load_state_dict(policy.state_dict())

    def rollout(self, prompts: list[str], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        taken = {prompt: iter(ids) for prompt, ids in self.ids.items()}
        return {
            "prompt_ids": [self.tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [next(taken[prompt]) for prompt in prompts],
            "logprobs": None,
        }

    def reward(self, prompts: list[str], completions: list[str], **_: object) -> list[float | None]:
        taken = {prompt: iter(rewards) for prompt, rewards in self.rewards.items()}
        return [next(taken[prompt]) for prompt in prompts]

    def loss(self) -> Tensor:
        """TRL adds the losses of the micro-batches of one optimizer step."""
        return torch.stack([self.trainer.compute_loss(self.trainer.model, batch) for batch in self.batches]).sum()

    def metric(self, name: str) -> float:
        """Mean over micro-batches."""
        values = self.trainer._metrics["train"][name]
        return float(sum(values) / len(values))


def group_facts(
    models: tuple[LlamaForCausalLM, LlamaForCausalLM, LlamaForCausalLM],
    tokenizer: PreTrainedTokenizerFast,
    groups: dict[str, list[tuple[str, float | None]]],
    logps: Logps,
) -> tuple[Tensor, Facts]:
    """The same rows, right-padded, groups in order: log-ratios against π_old, and against the reference for the KL term."""
    policy, old, reference = models
    rows = [(index, prompt, *completion) for index, (prompt, group) in enumerate(groups.items()) for completion in group]
    ids = [tokenizer(f"{prompt} {text}")["input_ids"] + [tokenizer.eos_token_id] for _, prompt, text, _ in rows]
    width = max(map(len, ids))
    ids_BL = torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in ids])
    attention_BL = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in ids])
    prompt_B1 = torch.tensor([[len(tokenizer(prompt)["input_ids"])] for _, prompt, _, _ in rows])
    mask_BT = (attention_BL[:, 1:] == 1) & (torch.arange(1, width) >= prompt_B1)
    with torch.no_grad():
        old_BT, reference_BT = logps(old, ids_BL, attention_BL), logps(reference, ids_BL, attention_BL)
    policy_BT = logps(policy, ids_BL, attention_BL)
    feedback_B = torch.tensor([torch.nan if reward is None else reward for *_, reward in rows])
    group_B = torch.tensor([index for index, *_ in rows])
    return policy_BT - old_BT, Facts(mask_BT, group_B, feedback_B, policy_BT - reference_BT, torch.zeros(()))


def rollout_settings(tmp_path: Path, micro_batches: int, **changes: Any) -> GRPOConfig:
    """One optimizer step over 12 completions. `num_iterations` 2 makes TRL keep π_old, so that the ratio is not 1."""
    return GRPOConfig(
        **settings(
            tmp_path,
            per_device_train_batch_size=12 // micro_batches,
            gradient_accumulation_steps=micro_batches,
            steps_per_generation=micro_batches,
            num_iterations=2,
            num_generations=4,
            max_completion_length=MAX_COMPLETION,
            use_bias_correction_kl=False,
            **changes,
        )
    )


@pytest.mark.parametrize(
    ("loss_type", "scale_rewards", "micro_batches", "objective"),
    [
        ("dapo", "group", 1, GRPO(beta=0.04)),
        ("dapo", "group", 3, GRPO(beta=0.04)),
        ("bnpo", "group", 1, GRPO(beta=0.04)),
        ("grpo", "group", 1, GRPO(beta=0.04, aggregate="sequence")),
        ("grpo", "group", 3, GRPO(beta=0.04, aggregate="sequence")),
        ("dr_grpo", "none", 1, GRPO(beta=0.04, aggregate="constant", constant_length=MAX_COMPLETION, scale="none")),
        ("dr_grpo", "none", 3, GRPO(beta=0.04, aggregate="constant", constant_length=MAX_COMPLETION, scale="none")),
    ],
)
def test_grpo(
    loss_type: str,
    scale_rewards: str,
    micro_batches: int,
    objective: GRPO,
    reference: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    move: Move,
    logps: Logps,
    save: Callable[[LlamaForCausalLM], str],
    tmp_path: Path,
) -> None:
    """Advantages, ε on both sides, the k3 term against the reference and the aggregation agree; TRL shuffles and splits the rows.

    Normalisers. `dapo` divides by the completion tokens of the whole generation batch, scaled to one optimizer step: ours,
    whenever a step is a whole generation batch (with several steps in it TRL divides each by their average, ours by its own count).
    `grpo` and `dr_grpo` average per micro-batch and divide by the number of micro-batches: ours, as all TRL's are equally large.
    `bnpo` divides by the tokens of each micro-batch, so only a step of one micro-batch has our value.

    KL. TRL multiplies k3 by ρ (DeepSeek-V3.2's estimator) unless `use_bias_correction_kl` is off; ours is the paper's k3: off.
    TRL clamps ρ itself, ours its logarithm; TRL computes k3 as exp(−d) + d − 1, ours as expm1(−d) + d: equal but for rounding.
    """
    old, policy = move(reference, seed=5, size=0.04), move(reference, seed=6, size=0.06)
    args = rollout_settings(tmp_path, micro_batches, loss_type=loss_type, scale_rewards=scale_rewards, beta=0.04)
    stored = StoredRollouts(args, save(reference), old, policy, tokenizer, GROUPS)
    assert len(stored.batches) == micro_batches
    theirs = stored.loss()
    loss, ours = evaluate(objective, *group_facts((policy, old, reference), tokenizer, GROUPS, logps))
    assert_agree((ours, gradients(policy, ours)), (theirs, gradients(stored.trainer.model, theirs)))

    metrics = {name: (value / count).item() for name, (value, count) in loss.metrics.items()}
    assert metrics["reward"] == pytest.approx(stored.metric("reward"), abs=1e-5)
    assert metrics["frac_zero_std_groups"] == pytest.approx(stored.metric("frac_reward_zero_std"), abs=1e-5)
    assert metrics["ppo_clipped_low"] > 0 and metrics["ppo_clipped_high"] > 0
    if micro_batches == 1:
        assert metrics["kl"] == pytest.approx(stored.metric("kl"), rel=1e-5)
        assert metrics["ppo_clipped_low"] == pytest.approx(stored.metric("clip_ratio/low_mean"), abs=1e-5)
        assert metrics["ppo_clipped_high"] == pytest.approx(stored.metric("clip_ratio/high_mean"), abs=1e-5)


def test_grpo_with_an_unscored_completion(
    reference: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    move: Move,
    logps: Logps,
    save: Callable[[LlamaForCausalLM], str],
    tmp_path: Path,
) -> None:
    """Both leave an unscored completion out of its group's mean and std. TRL then gives it A = 0 and goes on counting its tokens

    (and its KL term); for us it takes no part at all. With β = 0 the losses differ by just the ratio of the token counts.
    """
    groups: dict[str, list[tuple[str, float | None]]] = {**GROUPS, "w26 w27": [*GROUPS["w26 w27"]]}
    groups["w26 w27"][1] = (groups["w26 w27"][1][0], None)
    old, policy = move(reference, seed=5, size=0.04), move(reference, seed=6, size=0.06)
    args = rollout_settings(tmp_path, 1, loss_type="dapo", beta=0.0)
    stored = StoredRollouts(args, save(reference), old, policy, tokenizer, groups)
    theirs = stored.loss()
    ratio_BT, facts = group_facts((policy, old, reference), tokenizer, groups, logps)
    _, ours = evaluate(GRPO(), ratio_BT, facts)
    all_tokens, scored_tokens = facts.mask_BT.sum(), facts.mask_BT[~facts.feedback_B.isnan()].sum()
    assert (all_tokens - scored_tokens).item() == 7
    ours = ours * scored_tokens / all_tokens
    assert_agree((ours, gradients(policy, ours)), (theirs, gradients(stored.trainer.model, theirs)))
