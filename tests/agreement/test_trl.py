"""DPO, cDPO, IPO and KTO against TRL's own trainers on the same rows: losses and gradients in float32.

TRL's side is a real trainer: its data preparation, collator and `compute_loss`. Ours takes the token log-probs of an untouched
copy of the model and hands the log-ratios to the objective. Written against TRL 1.16.0; a test says where definitions differ.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from comparison import assert_agree, average, one_step, perturbed, token_logps
from humanline.objectives import DPO, IPO, KTO, Facts, Objective

pytest.importorskip("trl", minversion="1.16.0", reason="TRL 1.16 or later is not installed")
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed:FutureWarning")

Settings = Callable[..., dict[str, Any]]
Batch = dict[str, Tensor]

PAIRS = [
    {"prompt": "abc:", "chosen": "de", "rejected": "f"},
    {"prompt": "g:", "chosen": "h", "rejected": "ijkl"},
    {"prompt": "mn:", "chosen": "opq", "rejected": "rs"},
]
LABELLED = [
    {"prompt": "abc:", "completion": "de", "label": True},
    {"prompt": "g:", "completion": "h", "label": False},
    {"prompt": "mn:", "completion": "opqr", "label": True},
    {"prompt": "st:", "completion": "uvw", "label": False},
    {"prompt": "x:", "completion": "yz", "label": True},
]
LONGEST = 16
"""tokens, at least the longest row"""


def ratios(policy: PreTrainedModel, reference: PreTrainedModel, batch: Batch, prefix: str = "") -> tuple[Tensor, Tensor]:
    """Token log-ratios and the mask of the completion, at the positions after the first, padded to `LONGEST`."""
    ids_BL, attention_BL = batch[f"{prefix}input_ids"], batch[f"{prefix}attention_mask"]
    with torch.no_grad():
        reference_BT = token_logps(reference, ids_BL, attention_BL)
    padding = (0, LONGEST - ids_BL.shape[1])
    mask_BT = torch.nn.functional.pad(batch[f"{prefix}completion_mask"][:, 1:].bool(), padding)
    return torch.nn.functional.pad(token_logps(policy, ids_BL, attention_BL) - reference_BT, padding), mask_BT


def pair_step(policy: PreTrainedModel, reference: PreTrainedModel, batches: Iterable[Batch]) -> tuple[Tensor, Facts]:
    """All batches as one step. TRL's hold all chosen, then all rejected sequences; ours alternate."""
    parts = []
    for batch in batches:
        ratio_BT, mask_BT = ratios(policy, reference, batch)
        order_B = torch.arange(len(ratio_BT)).view(2, -1).T.flatten()
        parts.append((ratio_BT[order_B], mask_BT[order_B]))
    ratio_BT, mask_BT = (torch.cat(part) for part in zip(*parts, strict=True))
    pairs = len(ratio_BT) // 2
    group_B, feedback_B = torch.arange(pairs).repeat_interleave(2), torch.tensor([1.0, 0.0]).repeat(pairs)
    return ratio_BT, Facts(mask_BT, group_B, feedback_B, ratio_BT, torch.zeros(()))


def preference_trainer(
    policy: PreTrainedModel, reference: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, args: DPOConfig
) -> tuple[DPOTrainer, list[Batch]]:
    """TRL's trainer on copies of the models, and the batches of one epoch."""
    trainer = DPOTrainer(
        model=copy.deepcopy(policy),
        ref_model=copy.deepcopy(reference),
        args=args,
        train_dataset=Dataset.from_list(PAIRS),
        processing_class=tokenizer,
    )
    trainer.model.train()
    return trainer, list(trainer.get_train_dataloader())


@pytest.mark.parametrize(("loss_type", "objective"), [("sigmoid", DPO(beta=0.2)), ("ipo", IPO(tau=0.2))])
def test_dpo_and_ipo(
    loss_type: str, objective: Objective, reference: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: Settings
) -> None:
    """No difference in definition: TRL too averages over pairs, and its IPO takes the mean over completion length, its β being τ.

    DPO's rewards, margins and accuracy are logged alike too (but for a tie, which is half right for us and wrong for TRL).
    """
    policy = perturbed(reference, seed=1, size=0.05)
    args = DPOConfig(**settings(loss_type=[loss_type], beta=0.2, per_device_train_batch_size=3))
    trainer, batches = preference_trainer(policy, reference, tokenizer, args)
    theirs = trainer.compute_loss(trainer.model, batches[0])
    loss, ours = one_step(objective, *pair_step(policy, reference, batches))
    assert_agree((policy, ours), (trainer.model, theirs))
    if loss_type == "sigmoid":
        for our_name, their_name in (
            ("chosen", "chosen"),
            ("rejected", "rejected"),
            ("margin", "margins"),
            ("accuracy", "accuracies"),
        ):
            their_value = trainer._metrics["train"][f"rewards/{their_name}"][0]
            assert average(loss, f"reward_{our_name}") == pytest.approx(their_value, abs=1e-5)


def test_cdpo(reference: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: Settings) -> None:
    """TRL's `sigmoid` no longer reads `label_smoothing`, and its `robust` is another loss (it debiases by 1 − 2 s).

    `aot_unpaired` sorts the margins within a batch and then applies exactly cDPO; with one pair in a batch there is nothing to
    sort. So TRL takes one pair at a time, and its three batch means, averaged, are our one step of three pairs.
    """
    policy = perturbed(reference, seed=2, size=0.05)
    args = DPOConfig(**settings(loss_type=["aot_unpaired"], label_smoothing=0.3, beta=0.2, per_device_train_batch_size=1))
    trainer, batches = preference_trainer(policy, reference, tokenizer, args)
    assert len(batches) == 3
    theirs = torch.stack([trainer.compute_loss(trainer.model, batch) for batch in batches]).mean()
    _, ours = one_step(DPO(beta=0.2, label_smoothing=0.3), *pair_step(policy, reference, batches))
    assert_agree((policy, ours), (trainer.model, theirs))


@pytest.mark.parametrize("swapped", [False, True])
def test_kto(swapped: bool, reference: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, settings: Settings) -> None:
    """The loss has one definition: weighted, summed, divided by the number of rows.

    K differs in scope. TRL pairs x_i with y_{i−1} inside each micro-batch, takes max(0, mean) there, and pairs a row with its own
    completion when the micro-batch is a single row; ours is one K for the whole step, over pairs of distinct prompts. On a step
    that is one micro-batch of distinct prompts these are shifts of the same rows, so K is measured here on TRL's mismatched rows.
    Swapping policy and reference negates every log-ratio, so of the two cases one has K > 0 and the other K = 0.
    """
    policy = perturbed(reference, seed=3, size=0.05)
    policy, reference = (reference, policy) if swapped else (policy, reference)
    trainer = KTOTrainer(
        model=copy.deepcopy(policy),
        ref_model=copy.deepcopy(reference),
        args=KTOConfig(**settings(beta=0.2, per_device_train_batch_size=5, undesirable_weight=1.4)),
        train_dataset=Dataset.from_list(LABELLED),
        processing_class=tokenizer,
    )
    trainer.model.train()
    (batch,) = trainer.get_train_dataloader()
    theirs = trainer.compute_loss(trainer.model, batch)
    mismatched_BT, mismatched_mask_BT = ratios(policy, reference, batch, "KL_")
    mean = mismatched_BT.detach().where(mismatched_mask_BT, 0.0).sum(-1).mean()
    assert mean < -0.05 if swapped else mean > 0.05
    ratio_BT, mask_BT = ratios(policy, reference, batch)
    facts = Facts(mask_BT, torch.arange(5), batch["label"].float(), ratio_BT, mean.clamp(min=0))
    loss, ours = one_step(KTO(beta=0.2, undesirable_weight=1.4), ratio_BT, facts)
    assert facts.kl.item() == pytest.approx(trainer._metrics["train"]["kl"][0], abs=1e-5)
    assert_agree((policy, ours), (trainer.model, theirs))
    for our_name, their_name in (("desirable", "chosen"), ("undesirable", "rejected")):
        their_value = trainer._metrics["train"][f"rewards/{their_name}"][0]
        assert average(loss, f"reward_{our_name}") == pytest.approx(their_value, abs=1e-5)
