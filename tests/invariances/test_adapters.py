"""LoRA policies in the loop: the reference follows the adapter, and starts as the adapter that is there."""

from __future__ import annotations

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from builders import config, groups, loop, tiny_llama, train
from humanline.limit import Clip
from humanline.models import disable_dropout
from humanline.objectives import DPO, GRPO, Objective

# peft 0.21 still asks transformers 5.24 by an old name.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")


def adapted(*, start: float = 0.3) -> nn.Module:
    """A tiny Llama under a LoRA adapter with dropout in its configuration; `start` is the scale of its weights, 0 = does nothing yet."""
    model = get_peft_model(
        tiny_llama(), LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.1, task_type="CAUSAL_LM")
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(parameter, std=start) if start else nn.init.zeros_(parameter)
    disable_dropout(model)
    return model.eval()


@pytest.mark.parametrize("sync_every", [1, None])
@pytest.mark.parametrize("objective", [DPO(beta=0.5), GRPO(beta=0.1), GRPO()], ids=["dpo", "grpo", "grpo without kl"])
def test_R5_a_starting_adapter_that_is_not_zero_is_the_reference(objective: Objective, sync_every: int | None):
    """The adapter changes the policy, so "adapter off" would be a wrong reference; here step 1 has log-ratios of exactly 0."""
    model = adapted()
    ids = torch.arange(3, 11)[None]
    with model.disable_adapter():
        off = model(ids).logits
    assert not torch.allclose(model(ids).logits, off, atol=1e-2)
    line = train(model, groups(objective.kind, 8), config(objective, limit=Clip(), sync_every=sync_every), steps=1)[0]
    assert line["log_ratio_std"] == 0.0 and line["grad_norm"] > 0


@pytest.mark.parametrize("sync_every", [1, 3])
def test_R1_the_reference_follows_the_adapter_and_the_base_stays(sync_every: int):
    """Numbers equal a second model copied at every sync, β = 0 included; only LoRA weights move."""
    made = loop(adapted(), groups("group", 8), config(GRPO(), limit=Clip(), sync_every=sync_every), last=6)
    made.sync(1, before=1)
    second, start = copy.deepcopy(made.module), copy.deepcopy(made.module.state_dict())
    for t in range(1, 7):
        for micro_batch in made.feed.work(t).train:
            with torch.no_grad():
                torch.testing.assert_close(made.reference.logps(micro_batch), second(**micro_batch.inputs), atol=1e-5, rtol=0)
        before = copy.deepcopy(made.module.state_dict())
        made.step(t)
        if t % sync_every == 0:
            second.load_state_dict(before)
    moved = {name for name, value in made.module.state_dict().items() if not torch.equal(value, start[name])}
    assert moved and all("lora_" in name for name in moved)
