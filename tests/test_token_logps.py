"""Log-probs equal a float64 reference whatever the padding, side, batch mates or chunking."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import CohereConfig, CohereForCausalLM, Gemma2Config, Gemma2ForCausalLM, GraniteConfig, GraniteForCausalLM

from builders import VOCABULARY, groups, tiny_gpt2, tiny_llama
from humanline import token_logps
from humanline.data.batch import Bundle, bundle, collate
from humanline.errors import ModelError
from humanline.models import disable_dropout
from humanline.token_logps import TokenLogps

SMALL = dict(
    vocab_size=VOCABULARY, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=128, initializer_range=0.2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip


def models() -> dict[str, torch.nn.Module]:
    torch.manual_seed(0)
    gpt2 = tiny_gpt2()
    disable_dropout(gpt2)
    return {
        "llama": tiny_llama(),
        "gpt2": gpt2,
        "gemma2": Gemma2ForCausalLM(Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=5.0)).eval(),
        "cohere": CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.5)).eval(),
        "granite": GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=3.0)).eval(),
    }


def exact(model: torch.nn.Module, sequences: Bundle) -> list[torch.Tensor]:
    """float64, one sequence at a time, through the model's own forward and a full log-softmax."""
    model = copy.deepcopy(model).double()
    rows = []
    for sequence in sequences:
        ids = torch.tensor([*sequence.prompt_ids.tolist(), *sequence.completion.ids.tolist()])[None]
        logps = model(input_ids=ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
        rows.append(logps[len(sequence.prompt_ids) - 1 :].detach())
    return rows


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "cohere", "granite"])
@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_R6_log_probs_equal_float64_under_any_padding(name: str, padding_side: str):
    """Rows of 3 to 24 tokens, alone and with batch mates of other lengths: within 1e-5 nats of float64."""
    model = models()[name]
    module = TokenLogps(model)
    bundles = [bundle(group, row) for row, group in enumerate(groups("pair", 6))]
    together = module(**collate(bundles, padding_side=padding_side).inputs)
    expected = exact(model, tuple(sequence for group in bundles for sequence in group))
    alone = [row for group in bundles for row in module(**collate([group], padding_side=padding_side).inputs)]
    for b, row in enumerate(expected):
        torch.testing.assert_close(together[b, : len(row)].double(), row, atol=1e-5, rtol=0)
        torch.testing.assert_close(alone[b][: len(row)].double(), row, atol=1e-5, rtol=0)
        assert together[b, len(row) :].abs().sum() == 0


def test_R11_chunked_vocabulary_equals_the_plain_path(monkeypatch: pytest.MonkeyPatch):
    """Chunks of 3 tokens against one chunk: log-probs within 1e-6, gradients within 1e-6 relative."""
    batch = collate([bundle(group, row) for row, group in enumerate(groups("pair", 4))])
    outcomes = []
    for chunk in (token_logps.CHUNK_ELEMENTS, 3 * VOCABULARY):
        monkeypatch.setattr(token_logps, "CHUNK_ELEMENTS", chunk)
        module = TokenLogps(tiny_llama())
        logp_BT = module(**batch.inputs)
        logp_BT.square().sum().backward()
        outcomes.append((logp_BT.detach(), torch.cat([p.grad.flatten() for p in module.parameters()])))
    (plain, plain_gradient), (chunked, chunked_gradient) = outcomes
    torch.testing.assert_close(chunked, plain, atol=1e-6, rtol=0)
    assert (chunked_gradient - plain_gradient).norm() <= 1e-6 * plain_gradient.norm()


def test_masked_tokens_inside_a_completion_get_zero_and_no_gradient():
    group = groups("chat", 1)[0]
    mask = group.completions[0].mask
    mask[0] = False
    batch = collate([bundle(group, 0)])
    logp_BT = TokenLogps(tiny_llama())(**batch.inputs)
    assert logp_BT[0, 0] == 0 and (logp_BT[0, 1 : len(mask)] < 0).all()


def test_R8_dropout_is_found_and_switched_off():
    """GPT-2 as configured differs between two training passes, which is refused; without dropout both are equal to the bit."""
    model = tiny_gpt2().train()
    with pytest.raises(ModelError, match="two forward passes over the same tokens differ"):
        TokenLogps(model)
    assert disable_dropout(model) > 0
    module = TokenLogps(model)
    batch = collate([bundle(group, row) for row, group in enumerate(groups("pair", 2))])
    assert torch.equal(module(**batch.inputs), module(**batch.inputs))


def test_a_model_with_logits_of_its_own_is_called_whole(caplog: pytest.LogCaptureFixture):
    """A head followed by an unknown step: the self-check notices, and log-probs are those of the model's own forward."""

    class Shifted(type(tiny_llama())):
        def forward(self, *args, **kwargs):
            output = super().forward(*args, **kwargs)
            output.logits = output.logits * torch.linspace(0.5, 1.5, VOCABULARY)
            return output

    model = tiny_llama()
    model.__class__ = Shifted
    module = TokenLogps(model)
    assert module.whole and "every position goes through its own forward" in caplog.text
    bundles = [bundle(group, row) for row, group in enumerate(groups("label", 3))]
    got = module(**collate(bundles).inputs)
    for b, row in enumerate(exact(model, tuple(sequence for group in bundles for sequence in group))):
        torch.testing.assert_close(got[b, : len(row)].double(), row, atol=1e-5, rtol=0)
